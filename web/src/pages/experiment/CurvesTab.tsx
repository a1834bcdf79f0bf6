import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { Failure, Waiting } from "../../components/basics";
import { useResource } from "../../components/hooks";
import { MOST_COMPARED } from "../metrics/ComparePage";
import { MetricsView } from "../metrics/MetricsView";

/** The curves of the ten best trials; more lines than that cannot be told apart. */
export function CurvesTab({ experiment }: { experiment: Experiment }): ReactNode {
  const order = experiment.searcher?.smaller_is_better === false ? "desc" : "asc";
  const best = useResource(`curves ${experiment.id} ${order}`,
    (signal) => api.experimentTrials(experiment.id, { sort: "best", order, limit: MOST_COMPARED }, signal),
    (event) => event.experiment === experiment.id && event.kind === "trial");
  if (best.error && !best.data) return <Failure error={best.error} retry={best.reload} />;
  if (!best.data) return <Waiting />;
  const trials = best.data.trials.map((trial) => trial.id);
  return (
    <>
      <p className="hint">The {trials.length} best of {best.data.total} trials{experiment.searcher?.metric ? ` by ${experiment.searcher.metric}` : ""}.</p>
      <MetricsView trials={trials} single={trials.length === 1} only={experiment.searcher?.metric} />
    </>
  );
}
