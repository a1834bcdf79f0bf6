import { useMemo, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import { writeExactly } from "../../api/exact";
import type { Experiment, Trial } from "../../api/types";
import { Empty, Failure, Progress, StateBadge } from "../../components/basics";
import { navigate, useNow, useSelection } from "../../components/hooks";
import { Sparkline } from "../../components/Sparkline";
import { usePages } from "../../components/usePages";
import { VirtualTable, type Column } from "../../components/VirtualTable";
import { allNumbers, DURATION_HINT, formatDuration, formatJson, formatNumber, ranFor } from "../../model/format";
import { link } from "../../model/route";
import type { Order } from "../../model/sorting";
import { MOST_COMPARED } from "../metrics/ComparePage";

/** Hyperparameters that get a column; more make a table that nobody reads. */
const MOST_HPARAMS = 8;

export function TrialsTab({ experiment }: { experiment: Experiment }): ReactNode {
  const metric = experiment.searcher?.metric ?? experiment.best?.metric;
  const [sort, setSort] = useState<{ key: string; order: Order }>({ key: "id", order: "asc" });
  const { selected, onSelect } = useSelection();
  const now = useNow(5000);
  const pages = usePages<Trial>(
    `${experiment.id} ${metric} ${sort.key} ${sort.order}`,
    async (offset, limit, signal) => {
      const page = await api.experimentTrials(experiment.id, { sort: sort.key, order: sort.order, sparkline: metric, offset, limit }, signal);
      return { rows: page.trials, total: page.total };
    },
    (event) => event.experiment === experiment.id && ["trial", "progress", "metrics"].includes(event.kind),
  );
  const rows = pages.loaded();
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.hparams)))].sort();
  const varied = names.filter((name) => new Set(rows.map((row) => writeExactly(row.hparams[name]))).size > 1);
  const shown = (varied.length > 0 ? varied : names).slice(0, MOST_HPARAMS);
  const numbers = new Set(shown.filter((name) => allNumbers(rows.map((row) => row.hparams[name]))));
  const columns = useMemo<Column<Trial>[]>(() => [
    {
      key: "id", title: "Trial", sortable: true,
      render: (row) => <><a href={link(["trials", row.id])}>{row.id}</a>{experiment.best?.trial === row.id && <span className="label good">best</span>}</>,
    },
    { key: "state", title: "State", sortable: true, render: (row) => <StateBadge state={row.state} /> },
    { key: "progress", title: "Progress", sortable: true, render: (row) => <Progress value={row.progress} label={`Progress of trial ${row.id}`} /> },
    { key: "best", title: metric ? `Best ${metric}` : "Best", sortable: true, numeric: true, first: experiment.searcher?.smaller_is_better === false ? "desc" : "asc", render: (row) => formatNumber(row.best?.value) },
    { key: "sparkline", title: metric ?? "Curve", render: (row) => <Sparkline points={row.sparkline ?? []} label={`${metric ?? "metric"} of trial ${row.id}`} /> },
    ...shown.map((name): Column<Trial> => ({ key: `h ${name}`, title: name, numeric: numbers.has(name), render: (row) => formatJson(row.hparams[name]) })),
    { key: "steps_completed", title: "Steps", sortable: true, numeric: true, render: (row) => row.steps_completed ?? "–" },
    { key: "duration", title: "Duration", hint: DURATION_HINT, sortable: true, numeric: true, render: (row) => formatDuration(ranFor(row, now)) },
  ], [metric, shown.join("\n"), [...numbers].join("\n"), experiment.best?.trial, experiment.searcher?.smaller_is_better, now]);

  if (pages.error && pages.total === undefined) return <Failure error={pages.error} retry={pages.reload} />;
  return (
    <>
      <div className="toolbar">
        <button
          type="button"
          disabled={selected.size < 2 || selected.size > MOST_COMPARED}
          onClick={() => navigate(link(["compare"], { trials: [...selected].join(",") }))}
        >
          {selected.size < 2 ? "Compare" : `Compare ${selected.size} trials`}
        </button>
        <span className="hint">Select 2 to {MOST_COMPARED} to see their curves together.</span>
      </div>
      <VirtualTable<Trial>
        label="Trials"
        columns={columns}
        count={pages.total ?? 0}
        row={pages.row}
        rowKey={(row) => row.id}
        sort={sort}
        onSort={(key, order) => setSort({ key, order })}
        selected={selected}
        onSelect={onSelect}
        selectLabel={(row) => `Select trial ${row.id}`}
        onWindow={pages.want}
        empty={pages.total === undefined ? null : <Empty title="No trials yet." command="cairn experiment show ID">The searcher makes them when the experiment starts.</Empty>}
      />
    </>
  );
}
