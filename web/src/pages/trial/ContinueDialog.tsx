// Two ways to go on from a checkpoint. They differ in what counts the steps, so the words say exactly that.
import { useId, useState, type ReactNode } from "react";
import { api, requestId } from "../../api/client";
import type { Checkpoint, Experiment, Trial } from "../../api/types";
import { Dialog } from "../../components/Dialog";
import { say } from "../../components/Toasts";
import { navigate, useResource } from "../../components/hooks";
import { formatBytes, formatTime, shortId } from "../../model/format";
import { parseOverrides } from "../../model/overrides";
import { link } from "../../model/route";
import { isLive } from "../../model/states";

interface Props {
  trial: Trial;
  experiment: Experiment;
  /** Left out: the latest. */
  from?: Checkpoint;
  onClose: () => void;
}

export function ContinueDialog({ trial, experiment, from, onClose }: Props): ReactNode {
  const id = useId();
  // The same dialog sent twice (a lost answer) must not make two trials.
  const [request] = useState(requestId);
  const running = isLive(trial.state) || trial.state === "QUEUED";
  const [fresh, setFresh] = useState(running);
  const [chosen, setChosen] = useState(from?.id ?? "");
  const [text, setText] = useState("");
  const checkpoints = useResource(`continue ${trial.id}`, (signal) =>
    api.trialCheckpoints(trial.id, { limit: 1000, sort: "steps_completed", order: "desc" }, signal));
  const overrides = parseOverrides(text);
  const latest = trial.latest_checkpoint;
  const picked = checkpoints.data?.checkpoints.find((one) => one.id === chosen);
  const step = chosen === "" ? latest?.steps_completed : (picked?.steps_completed ?? from?.steps_completed);

  const submit = async (): Promise<void> => {
    if (fresh && !overrides.ok) throw new Error(overrides.message);
    const made = await api.continueTrial(trial.id, {
      new: fresh,
      request_id: request,
      ...(chosen === "" ? {} : { from: chosen }),
      ...(fresh && overrides.ok && Object.keys(overrides.value).length > 0 ? { config: overrides.value } : {}),
    });
    if (fresh) {
      say(`Experiment ${made.id} begins with the weights of step ${step}.`);
      navigate(link(["experiments", made.id]));
    } else {
      say(`Trial ${trial.id} goes on from step ${step}.`);
    }
  };

  return (
    <Dialog title={`Continue trial ${trial.id}`} submit={fresh ? "Start a new trial" : `Go on from step ${step ?? "?"}`} disabled={fresh && !overrides.ok} onSubmit={submit} onClose={onClose}>
      <fieldset className="choices">
        <legend className="hidden">How to continue</legend>
        <label className={running ? "big-choice off" : "big-choice"}>
          <input type="radio" name={`${id}-how`} checked={!fresh} disabled={running} onChange={() => setFresh(false)} />
          <span>
            <strong>Go on with this trial from step {step ?? "?"}</strong>
            <span className="hint">
              {running
                ? "Not while it is running or waiting: pause it first."
                : "The same trial, its step count, its curves. Reports after that step, and of steps that it reports again, are archived."}
            </span>
          </span>
        </label>
        <label className="big-choice">
          <input type="radio" name={`${id}-how`} checked={fresh} onChange={() => setFresh(true)} />
          <span>
            <strong>New trial with these weights, from batch 0</strong>
            <span className="hint">A new experiment that begins at step 0 with the weights of step {step ?? "?"}. This one stays as it is.</span>
          </span>
        </label>
      </fieldset>
      <div className="field">
        <label htmlFor={`${id}-from`}>Checkpoint</label>
        <select id={`${id}-from`} value={chosen} onChange={(event) => setChosen(event.target.value)}>
          <option value="">latest{latest ? ` (step ${latest.steps_completed})` : ""}</option>
          {from && !picked && <option value={from.id}>step {from.steps_completed}</option>}
          {checkpoints.data?.checkpoints.map((one) => (
            <option key={one.id} value={one.id}>
              step {one.steps_completed} · {formatBytes(one.bytes)} · {formatTime(one.time)} · {shortId(one.id)}{one.pinned ? " · pinned" : ""}
            </option>
          ))}
        </select>
      </div>
      {fresh && <div className="field">
        <label htmlFor={`${id}-config`}>Config overrides, one a line</label>
        <textarea
          id={`${id}-config`}
          rows={3}
          value={text}
          spellCheck={false}
          placeholder={"for example:\nhyperparameters.lr = 0.01"}
          aria-describedby={`${id}-config-note`}
          onChange={(event) => setText(event.target.value)}
        />
        <span id={`${id}-config-note`} className={overrides.ok ? "hint" : "problem"}>
          {overrides.ok ? `Laid over the config of experiment ${experiment.id}.` : overrides.message}
        </span>
      </div>}
    </Dialog>
  );
}
