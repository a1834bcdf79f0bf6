import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment, Json, JsonObject, Run, Trial } from "../../api/types";
import { Command, Empty, Facts, Failure, PathText, Waiting } from "../../components/basics";
import { useNow, useResource } from "../../components/hooks";
import { useMay } from "../../components/session";
import { runLabel } from "../../model/bands";
import { DURATION_HINT, formatBytes, formatCount, formatDuration, formatJson, formatNumber, formatTime, ranFor, STARTED_HINT } from "../../model/format";
import { link } from "../../model/route";
import { eachLeaf } from "../../model/series";
import { hasEnded } from "../../model/states";
import { NotesPanel } from "../experiment/NotesPanel";

export function OverviewTab({ experiment, trial }: { experiment: Experiment; trial: Trial }): ReactNode {
  const now = useNow(1000);
  const latest = trial.latest_checkpoint;
  const may = useMay("user");
  // Of one among many the experiment's commands would take another: the best.
  const about = (verb: string): string => (experiment.trial === trial.id ? `cairn experiment ${verb} ${experiment.id}` : `cairn trial ${verb} ${trial.id}`);
  const logs = `cairn trial logs ${trial.id}${hasEnded(trial.state) ? "" : " -f"}`;
  return (
    <div className="panels">
      <section className="panel" aria-labelledby="facts">
        <h2 id="facts">Trial</h2>
        <Facts
          facts={[
            ["Status", trial.status || "–"],
            ["Steps", trial.steps_completed === undefined ? "–" : formatCount(trial.steps_completed)],
            ["Run", trial.run_id === 0 ? "none yet" : `${trial.run_id} (${trial.resume_mode || "fresh"})`],
            // The failure that was one too many was not followed by a restart.
            ["Restarts", `${Math.min(trial.restarts, trial.max_restarts)} of ${trial.max_restarts}`],
            ["Ranks", formatJson(trial.world_size ?? null)],
            ["Created", formatTime(trial.created)],
            ["Started", <span key="s" title={STARTED_HINT}>{formatTime(trial.started)}</span>],
            ["Ended", formatTime(trial.ended)],
            ["Duration", <span key="d" title={DURATION_HINT}>{formatDuration(ranFor(trial, now))}</span>],
            ["Owner", experiment.owner],
            ["Latest checkpoint", latest ? <a href={link(["checkpoints", latest.id])}>step {latest.steps_completed}</a> : hasEnded(trial.state) ? "none" : "none yet"],
            ["Checkpoints", `${formatCount(trial.checkpoints)}, ${formatBytes(trial.checkpoint_bytes)}`],
            ["Best", trial.best ? `${trial.best.metric} ${formatNumber(trial.best.value)}` : "–"],
            ["Repository", <PathText key="r" path={trial.repository ?? experiment.storage ?? "–"} />],
            ...(trial.detached ? [["Detached", trial.external_id ?? "yes"] as [string, ReactNode]] : []),
          ]}
        />
      </section>
      <section className="panel" aria-labelledby="now">
        <h2 id="now">Last reports</h2>
        {Object.keys(trial.latest_metrics ?? {}).length === 0 ? (
          <Empty title={hasEnded(trial.state) ? "Nothing was reported." : "Nothing reported yet."} command={logs}>
            A script reports with ctx.train.report_training_metrics. What it {hasEnded(trial.state) ? "did" : "is doing"}:
          </Empty>
        ) : (
          Object.entries(trial.latest_metrics ?? {}).map(([group, values]) => (
            <div key={group}>
              <h3>{group}</h3>
              <Facts facts={leaves(values).map(([name, value]) => [name, formatJson(value)])} />
            </div>
          ))
        )}
        <h2>Hyperparameters</h2>
        {Object.keys(trial.hparams).length === 0
          ? <p className="faint">None.</p>
          : <Facts facts={leaves(trial.hparams).map(([name, value]) => [name, formatJson(value)])} />}
      </section>
      <Runs trial={trial} />
      <NotesPanel experiment={experiment} />
      <section className="panel" aria-labelledby="cli">
        <h2 id="cli">On the command line</h2>
        <p><Command text={logs} /></p>
        <p><Command text={about("checkpoints")} /></p>
        {may && latest && !trial.detached && <p><Command text={`${about("continue")} --new`} /></p>}
      </section>
    </div>
  );
}

function leaves(values: JsonObject): [string, Json][] {
  const found: [string, Json][] = [];
  eachLeaf(values, (name, value) => found.push([name, value]));
  return found;
}

function Runs({ trial }: { trial: Trial }): ReactNode {
  const runs = useResource(`runs ${trial.id}`, (signal) => api.runs(trial.id, signal),
    (event) => event.trial === trial.id && (event.kind === "run" || event.kind === "trial"));
  return (
    <section className="panel" aria-labelledby="runs">
      <h2 id="runs">Runs</h2>
      {runs.error && !runs.data ? <Failure error={runs.error} retry={runs.reload} />
        : !runs.data ? <Waiting />
          : runs.data.runs.length === 0 ? <p className="faint">It waits for free slots.</p>
            : (
              <ol className="runs">
                {[...runs.data.runs].reverse().map((run) => <li key={run.run_id}><RunLine run={run} /></li>)}
              </ol>
            )}
    </section>
  );
}

function RunLine({ run }: { run: Run }): ReactNode {
  return (
    <>
      {runLabel(run)}
      <span className="faint"> · <span className="nowrap">{run.started ? formatTime(run.started) : `asked for ${formatTime(run.submitted)}`}</span>{run.started && run.ended ? `, ${formatDuration(run.ended - run.started)}` : ""}{run.host ? ` on ${run.host}` : ""}</span>
      {run.message && <div className="faint">{run.message}</div>}
    </>
  );
}
