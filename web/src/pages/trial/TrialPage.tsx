import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment, Trial } from "../../api/types";
import { Failure, Tabs, Waiting } from "../../components/basics";
import { useResource, useTitle } from "../../components/hooks";
import { experimentTitle } from "../../model/format";
import { link } from "../../model/route";
import { CheckpointsTab } from "../checkpoints/CheckpointsTab";
import { CodeTab } from "../experiment/CodeTab";
import { ConfigTab } from "../experiment/ConfigTab";
import { LogsTab } from "../logs/LogsTab";
import { MetricsView } from "../metrics/MetricsView";
import { OverviewTab } from "./OverviewTab";
import { TrialHeader } from "./TrialHeader";

const TABS: [string, string][] = [
  ["overview", "Overview"], ["metrics", "Metrics"], ["checkpoints", "Checkpoints"], ["logs", "Logs"], ["config", "Config"], ["code", "Code"],
];

/** A trial of several: reached by its own id. */
export function TrialPage({ id, tab }: { id: string; tab: string }): ReactNode {
  const trial = useTrial(id);
  const experimentId = trial.data?.experiment;
  if (trial.error && !trial.data) return <Failure page error={trial.error} retry={trial.reload} />;
  if (!trial.data || experimentId === undefined) return <Waiting />;
  return <WithExperiment experimentId={experimentId} trial={trial.data} tab={tab} onTrial={trial.set} />;
}

function WithExperiment({ experimentId, trial, tab, onTrial }: { experimentId: string; trial: Trial; tab: string; onTrial: (trial: Trial) => void }): ReactNode {
  const experiment = useResource(`experiment ${experimentId}`, (signal) => api.experiment(experimentId, signal),
    (event) => event.experiment === experimentId && event.kind === "experiment");
  if (experiment.error && !experiment.data) return <Failure page error={experiment.error} retry={experiment.reload} />;
  if (!experiment.data) return <Waiting />;
  return <TrialView experiment={experiment.data} trial={trial} tab={tab} alone={false} base={["trials", trial.id]} onTrial={onTrial} />;
}

export function useTrial(id: string): ReturnType<typeof useResource<Trial>> {
  return useResource<Trial>(`trial ${id}`, (signal) => api.trial(id, signal),
    (event) => event.trial === id && ["trial", "run", "progress", "metrics", "checkpoint"].includes(event.kind));
}

/** The only trial of an experiment: the experiment's page is the trial's. */
export function OnlyTrial({ experiment, trialId, tab }: { experiment: Experiment; trialId: string; tab: string }): ReactNode {
  const trial = useTrial(trialId);
  if (trial.error && !trial.data) return <Failure page error={trial.error} retry={trial.reload} />;
  if (!trial.data) return <Waiting />;
  return <TrialView experiment={experiment} trial={trial.data} tab={tab} alone base={["experiments", experiment.id]} onTrial={trial.set} />;
}

interface ViewProps {
  experiment: Experiment;
  trial: Trial;
  tab: string;
  alone: boolean;
  base: (string | number)[];
  onTrial: (trial: Trial) => void;
}

function TrialView({ experiment, trial, tab, alone, base, onTrial }: ViewProps): ReactNode {
  const known = TABS.some(([key]) => key === tab) ? tab : "overview";
  useTitle(alone ? experimentTitle(experiment) : `Trial ${trial.id}`);
  return (
    <>
      <TrialHeader experiment={experiment} trial={trial} alone={alone} onTrial={onTrial} />
      <Tabs label="About this trial" current={known} tabs={TABS.map(([key, title]) => ({ key, title, href: link([...base, key]) }))} />
      {known === "overview" && <OverviewTab experiment={experiment} trial={trial} />}
      {known === "metrics" && <MetricsTab trial={trial} />}
      {known === "checkpoints" && <CheckpointsTab experiment={experiment} trial={trial} />}
      {known === "logs" && <LogsTab key={trial.id} trial={trial} base={[...base, "logs"]} />}
      {known === "config" && <ConfigTab experiment={experiment} />}
      {known === "code" && <CodeTab experiment={experiment} />}
    </>
  );
}

function MetricsTab({ trial }: { trial: Trial }): ReactNode {
  const others = [trial.id, ...(trial.parent ? [trial.parent.trial] : [])];
  return (
    <>
      <p className="side-link"><a href={link(["compare"], { trials: others.join(",") })}>{trial.parent ? "Compare with the trial it came from" : "Compare with other trials"}</a></p>
      <MetricsView trials={[trial.id]} single />
    </>
  );
}
