// State, progress and the buttons of one trial; what a pause will come to; the questions before something is lost.
import { useState, type ReactNode } from "react";
import { api, requestId, type Action } from "../../api/client";
import type { Experiment, Trial } from "../../api/types";
import { Dialog } from "../../components/Dialog";
import { attempt } from "../../components/Toasts";
import { Progress, StateBadge } from "../../components/basics";
import { useNow } from "../../components/hooks";
import { useMay } from "../../components/session";
import { formatDuration, isNamed, numberedName } from "../../model/format";
import { link } from "../../model/route";
import { ACTION_LABELS, allowedActions, whatIsLost } from "../../model/states";
import { ContinueDialog } from "./ContinueDialog";

const DONE: Record<Action, string> = {
  pause: "It was asked to save and exit.",
  activate: "It goes on.",
  cancel: "It was asked to end.",
  kill: "It is being killed.",
};

interface Props {
  experiment: Experiment;
  trial: Trial;
  /** The trial is the whole experiment: its name is the heading. */
  alone: boolean;
  onTrial: (trial: Trial) => void;
}

export function TrialHeader({ experiment, trial, alone, onTrial }: Props): ReactNode {
  const may = useMay("user");
  const [asking, setAsking] = useState<Action | "continue" | null>(null);
  const latest = trial.latest_checkpoint ?? null;
  const act = async (action: Action): Promise<void> => onTrial(await api.actOnTrial(trial.id, action));
  const press = (action: Action): void => {
    if (whatIsLost(action, latest?.steps_completed ?? null, trial.steps_completed ?? null) === null) {
      void attempt(DONE[action], () => act(action));
    } else {
      setAsking(action);
    }
  };
  const again = async (): Promise<void> => {
    await api.continueTrial(trial.id, { new: false, request_id: requestId() });
    onTrial(await api.trial(trial.id));
  };
  return (
    <header className="page-head trial-head">
      <div>
        <p className="crumbs">
          <a href={link(["experiments"])}>Experiments</a>
          {!alone && <> / <a href={link(["experiments", experiment.id])}>{numberedName(experiment)}</a></>}
        </p>
        <h1>{alone ? experiment.name : `Trial ${trial.id}`}</h1>
        <p className="under-title">
          {alone && <span className="faint">{isNamed(experiment) && <>experiment {experiment.id} · </>}trial {trial.id}</span>}
          <Parent trial={trial} experiment={experiment} />
        </p>
      </div>
      <div className="head-state">
        <span role="status" aria-label="State"><StateBadge state={trial.state} /></span>
        <Progress value={trial.progress} label="Progress" />
        <span className="faint">{trial.steps_completed === undefined ? "" : `step ${trial.steps_completed}`}</span>
      </div>
      {may && (
        <div className="head-buttons" role="group" aria-label="What to do with this trial">
          {/* The second click of a double click on Pause would be on Activate, which has come to its place. */}
          {allowedActions(trial.state, trial.detached).map((action) => (
            <button key={action} type="button" className={action === "kill" ? "danger" : undefined} onClick={(event) => { if (event.detail < 2) press(action); }}>
              {ACTION_LABELS[action]}
            </button>
          ))}
          {latest && !trial.detached && <button type="button" className="primary" onClick={() => setAsking("continue")}>Continue…</button>}
          {!latest && startsAgain(trial) && <button type="button" onClick={() => void attempt("It starts again.", again)}>Start again</button>}
        </div>
      )}
      <PauseNote trial={trial} />
      {trial.message && trial.state !== "RUNNING" && (
        <p className={trial.state === "ERROR" ? "problem" : "faint"}>
          {trial.message}
          {trial.state === "ERROR" && <>: <a href={link([...(alone ? ["experiments", experiment.id] : ["trials", trial.id]), "logs"])}>see its log</a></>}
        </p>
      )}
      {asking === "continue" && <ContinueDialog trial={trial} experiment={experiment} onClose={() => setAsking(null)} />}
      {asking && asking !== "continue" && (
        <Dialog
          title={`${ACTION_LABELS[asking]} trial ${trial.id}?`}
          submit={ACTION_LABELS[asking]}
          danger
          onSubmit={() => act(asking)}
          onClose={() => setAsking(null)}
        >
          <p>{whatIsLost(asking, latest?.steps_completed ?? null, trial.steps_completed ?? null)}</p>
          {latest && <p className="faint">The latest checkpoint is of step {latest.steps_completed} and stays.</p>}
        </Dialog>
      )}
    </header>
  );
}

/** One that failed or was ended before it saved anything can only begin anew; what somebody else starts is theirs to start. */
function startsAgain(trial: Trial): boolean {
  return (trial.state === "ERROR" || trial.state === "CANCELED") && !trial.detached;
}

function Parent({ trial, experiment }: { trial: Trial; experiment: Experiment }): ReactNode {
  const parent = trial.parent ?? experiment.parent;
  if (!parent) return null;
  return (
    <span className="faint">
      {" "}began with the weights of{" "}
      <a href={link(["checkpoints", parent.checkpoint])}>step {parent.steps_completed ?? "?"}</a> of{" "}
      <a href={link(["trials", parent.trial])}>trial {parent.trial}</a>
    </span>
  );
}

function PauseNote({ trial }: { trial: Trial }): ReactNode {
  const now = useNow(500);
  if (trial.state !== "PAUSING" && trial.state !== "PAUSED" && trial.state !== "STOPPING") return null;
  const step = trial.resumes_from_step;
  const where = step === null || step === undefined ? "from the beginning: there is no checkpoint yet" : `from step ${step}`;
  if (trial.state === "PAUSED" && trial.detached) return <p className="pause-note">It was started by hand: start its command again, and it goes on {where}</p>;
  if (trial.state === "PAUSED") return <p className="pause-note">Activate goes on {where}</p>;
  const deadline = trial.preemption_deadline;
  const left = deadline ? Math.max(0, deadline - now) : null;
  const clock = left === null ? "" : left > 0 ? `, at most ${formatDuration(left)} more` : ", its time is over";
  return (
    <p className="pause-note">
      {trial.state === "PAUSING" ? `Saving${clock}; without another checkpoint it will resume ${where}` : `Ending${clock}`}
    </p>
  );
}
