import { useState, type ReactNode } from "react";
import { api, type Action } from "../../api/client";
import type { Experiment } from "../../api/types";
import { Dialog } from "../../components/Dialog";
import { Failure, Progress, StateBadge, Tabs, Waiting } from "../../components/basics";
import { useResource, useTitle } from "../../components/hooks";
import { useMay } from "../../components/session";
import { attempt } from "../../components/Toasts";
import { experimentTitle, formatNumber, isNamed } from "../../model/format";
import { link } from "../../model/route";
import { ACTION_LABELS, allowedForTrials } from "../../model/states";
import { CheckpointsTab } from "../checkpoints/CheckpointsTab";
import { OnlyTrial } from "../trial/TrialPage";
import { CodeTab } from "./CodeTab";
import { ConfigTab } from "./ConfigTab";
import { CurvesTab } from "./CurvesTab";
import { NotesPanel } from "./NotesPanel";
import { ScatterTab } from "./ScatterTab";
import { TrialsTab } from "./TrialsTab";

export function ExperimentPage({ id, tab }: { id: string; tab: string }): ReactNode {
  const experiment = useResource(`experiment ${id}`, (signal) => api.experiment(id, signal),
    (event) => event.experiment === id && ["experiment", "trial", "progress", "checkpoint"].includes(event.kind));
  if (experiment.error && !experiment.data) return <Failure page error={experiment.error} retry={experiment.reload} />;
  if (!experiment.data) return <Waiting />;
  if (experiment.data.trial) return <OnlyTrial experiment={experiment.data} trialId={experiment.data.trial} tab={tab} />;
  return <ManyTrials experiment={experiment.data} tab={tab} onChange={experiment.set} />;
}

const TABS: [string, string][] = [
  ["trials", "Trials"], ["curves", "Learning curves"], ["scatter", "Scatter"], ["checkpoints", "Checkpoints"], ["notes", "Notes"], ["config", "Config"], ["code", "Code"],
];

function ManyTrials({ experiment, tab, onChange }: { experiment: Experiment; tab: string; onChange: (experiment: Experiment) => void }): ReactNode {
  useTitle(experimentTitle(experiment));
  const may = useMay("user");
  const [asking, setAsking] = useState<Action | null>(null);
  const known = TABS.some(([key]) => key === tab) ? tab : "trials";
  const act = async (action: Action): Promise<void> => onChange(await api.actOnExperiment(experiment.id, action));
  const press = (action: Action): void => {
    if (action === "pause" || action === "activate") void attempt(action === "pause" ? "Its trials were asked to save and exit." : "Its paused trials go on.", () => act(action));
    else setAsking(action);
  };
  return (
    <>
      <header className="page-head trial-head">
        <div>
          <p className="crumbs"><a href={link(["experiments"])}>Experiments</a></p>
          <h1>{experiment.name}</h1>
          <p className="under-title faint">{isNamed(experiment) && <>experiment {experiment.id} · </>}{experiment.searcher?.name ?? "search"} · {experiment.trials} trials</p>
        </div>
        <div className="head-state">
          <span role="status" aria-label="State"><StateBadge state={experiment.state} /></span>
          <Progress value={experiment.progress} counted label="Progress" />
          {Object.entries(experiment.trial_states).filter(([, count]) => count > 0).map(([state, count]) => <span key={state} className="label">{count} {state.toLowerCase()}</span>)}
        </div>
        {may && (
          <div className="head-buttons" role="group" aria-label="What to do with this experiment">
            {allowedForTrials(experiment.trial_states, experiment.config?.["detached"] === true).map((action) => (
              <button key={action} type="button" className={action === "kill" ? "danger" : undefined} onClick={(event) => { if (event.detail < 2) press(action); }}>{ACTION_LABELS[action]}</button>
            ))}
          </div>
        )}
        {experiment.best && (
          <p className="best">
            Best: <a href={link(["trials", experiment.best.trial])}>trial {experiment.best.trial}</a> with {experiment.best.metric} {formatNumber(experiment.best.value)}
            {experiment.best.steps_completed === undefined ? "" : ` at step ${experiment.best.steps_completed}`}
          </p>
        )}
        {experiment.message && <p className={experiment.state === "ERROR" ? "problem" : "faint"}>{experiment.message}</p>}
      </header>
      <Tabs label="About this experiment" current={known} tabs={TABS.map(([key, title]) => ({ key, title, href: link(["experiments", experiment.id, key]) }))} />
      {known === "trials" && <TrialsTab experiment={experiment} />}
      {known === "curves" && <CurvesTab experiment={experiment} />}
      {known === "scatter" && <ScatterTab experiment={experiment} />}
      {known === "checkpoints" && <CheckpointsTab experiment={experiment} />}
      {known === "notes" && <NotesPanel experiment={experiment} />}
      {known === "config" && <ConfigTab experiment={experiment} />}
      {known === "code" && <CodeTab experiment={experiment} />}
      {asking && (
        <Dialog title={`${ACTION_LABELS[asking]} experiment ${experiment.id}?`} submit={ACTION_LABELS[asking]} danger onSubmit={() => act(asking)} onClose={() => setAsking(null)}>
          <p>{asking === "kill"
            ? "The processes of all its trials are killed now: what they did since their last checkpoints is lost."
            : "Its trials may save once more, then they end for good. Continue can go on from their checkpoints."}</p>
        </Dialog>
      )}
    </>
  );
}
