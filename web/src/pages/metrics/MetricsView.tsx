// The charts of one trial or of several side by side, with what is set for all of them.
import { useMemo, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Checkpoint, Run } from "../../api/types";
import { Chart, type Line, type Mark } from "../../components/Chart";
import { View } from "../../components/view";
import { Choice, Empty, Failure, Waiting } from "../../components/basics";
import { useNow, useResource } from "../../components/hooks";
import { bandsBySteps, bandsByTime, type Band } from "../../model/bands";
import { formatBytes, formatCount, formatNumber, formatTime } from "../../model/format";
import { link } from "../../model/route";
import { countGaps, countNotPositive, metricNames, smooth, type Series } from "../../model/series";
import { useFiner } from "./useFiner";
import { useMetrics, type TrialSeries } from "./useMetrics";

type Axis = "steps" | "time";
const SMOOTHING: [string, string][] = [["0", "none"], ["0.6", "some"], ["0.9", "strong"], ["0.98", "very strong"]];
/** A page of thousands of charts is one that stands still. */
const MOST_CHARTS = 60;
const DETAIL: [string, string][] = [["2000", "2,000 points"], ["10000", "10,000 points"], ["100000", "100,000 points"]];

interface Props {
  trials: string[];
  /** Runs as bands and checkpoints as marks: of one trial only, several would hide each other. */
  single: boolean;
  /** What the curves of each trial are called. */
  name?: (trial: string) => string;
  /** Only this metric, for the curves of a search. */
  only?: string | undefined;
}

export function MetricsView({ trials, single, name, only }: Props): ReactNode {
  const [axis, setAxis] = useState<Axis>("steps");
  const [log, setLog] = useState(false);
  const [smoothing, setSmoothing] = useState("0");
  const [detail, setDetail] = useState("10000");
  const [filter, setFilter] = useState("");
  const [most, setMost] = useState(MOST_CHARTS);
  const view = useMemo(() => new View(), [axis]);
  const metrics = useMetrics(trials, Number(detail));
  const shown = useFiner(metrics, view, axis === "steps" ? "steps" : "times", Number(detail));
  const marks = useMarks(single ? trials[0]! : null);

  const names = useMemo(
    () => metricNames(metrics.data.map((one) => one.series)).filter((one) => only === undefined || one === only),
    [metrics.data, metrics.version, only],
  );
  const found = names.filter((one) => one.toLowerCase().includes(filter.trim().toLowerCase()));
  const wanted = found.slice(0, most);
  const failed = metrics.data.find((one) => one.error && one.series.size === 0);

  if (failed?.error) return <Failure error={failed.error} retry={metrics.reload} />;
  if (names.length === 0) {
    if (metrics.loading) return <Waiting />;
    return (
      <Empty title="No metrics yet." command={`cairn trial logs ${trials[0] ?? "ID"} -f`}>
        The first curve appears with the first report (ctx.train.report_training_metrics). What the trial is doing:
      </Empty>
    );
  }
  return (
    <>
      <div className="toolbar" role="group" aria-label="Charts">
        <Choice<Axis> label="X axis" value={axis} options={[["steps", "steps"], ["time", "time"]]} onChange={setAxis} />
        <Choice label="Smoothing" value={smoothing} options={SMOOTHING} onChange={setSmoothing} />
        <label className="check"><input type="checkbox" checked={log} onChange={(event) => setLog(event.target.checked)} /> Log scale</label>
        <Choice label="Detail" value={detail} options={DETAIL} onChange={setDetail} />
        {names.length > 4 && <input type="search" aria-label="Metrics whose name contains" placeholder="Metric" value={filter} onChange={(event) => { setFilter(event.target.value); setMost(MOST_CHARTS); }} />}
        <button type="button" onClick={() => view.set(null)}>Show all</button>
        <span className="hint">Drag chooses a part, Shift and drag moves it, a double click shows all.</span>
      </div>
      {wanted.length === 0 && <Empty title="No metric has such a name."><button type="button" onClick={() => setFilter("")}>Show all</button></Empty>}
      <div className={wanted.length === 1 ? "charts one" : "charts"}>
        {wanted.map((metric) => (
          <MetricChart
            key={metric}
            metric={metric}
            data={shown.data}
            version={shown.version}
            axis={axis}
            log={log}
            weight={Number(smoothing)}
            view={view}
            runs={single ? (marks.runs ?? []) : []}
            checkpoints={single ? (marks.checkpoints ?? []) : []}
            name={name}
            tall={wanted.length === 1}
          />
        ))}
      </div>
      {found.length > wanted.length && (
        <p className="toolbar">
          {formatCount(wanted.length)} of {formatCount(found.length)} metrics are shown; a part of a name, above, finds others.{" "}
          <button type="button" onClick={() => setMost(most + MOST_CHARTS)}>Show {Math.min(MOST_CHARTS, found.length - wanted.length)} more</button>
        </p>
      )}
      {single && <MarkList checkpoints={marks.checkpoints ?? []} />}
      {single && <RunList runs={marks.runs ?? []} data={metrics.data} />}
    </>
  );
}

function useMarks(trial: string | null): { runs: Run[] | undefined; checkpoints: Checkpoint[] | undefined } {
  const runs = useResource(`marks runs ${trial}`, async (signal) => (trial === null ? { runs: [] } : api.runs(trial, signal)),
    (event) => event.trial === trial && event.kind === "run");
  const checkpoints = useResource(`marks checkpoints ${trial}`,
    async (signal) => (trial === null ? [] : allCheckpoints(trial, signal)),
    (event) => event.trial === trial && event.kind === "checkpoint");
  return { runs: runs.data?.runs, checkpoints: checkpoints.data };
}

/** Every one is a mark, however many there are: the master gives a thousand at a time. */
async function allCheckpoints(trial: string, signal: AbortSignal): Promise<Checkpoint[]> {
  const found: Checkpoint[] = [];
  for (;;) {
    const page = await api.trialCheckpoints(trial, { limit: 1000, offset: found.length, sort: "steps_completed", order: "asc" }, signal);
    found.push(...page.checkpoints);
    if (page.checkpoints.length === 0 || found.length >= page.total) return found;
  }
}

interface ChartProps {
  metric: string;
  data: TrialSeries[];
  version: number;
  axis: Axis;
  log: boolean;
  weight: number;
  view: View;
  runs: Run[];
  checkpoints: Checkpoint[];
  name: ((trial: string) => string) | undefined;
  tall: boolean;
}

function MetricChart(props: ChartProps): ReactNode {
  const { metric, data, version, axis, weight, runs, checkpoints } = props;
  const now = useNow(5000);
  const several = data.length > 1;
  const lines = useMemo(() => {
    const out: Line[] = [];
    data.forEach((one, index) => {
      const groups = [...one.series.values()].filter((series) => series.name === metric).sort(trainingFirst);
      groups.forEach((series, position) => {
        const x = axis === "steps" ? [...series.steps] : [...series.times];
        const label = several ? `${props.name?.(one.trial) ?? `trial ${one.trial}`}${groups.length > 1 ? ` ${series.group}` : ""}` : series.group;
        const base = { x, label, colour: several ? index : position, dashed: several && position > 0 };
        if (weight > 0) out.push({ ...base, y: [...series.values], label: `${label} (as reported)`, faint: true });
        out.push({ ...base, y: smooth(series.values, weight) });
      });
    });
    return out;
  }, [data, version, metric, axis, weight, several]);

  const bands = useMemo<Band[]>(() => {
    const only = data[0];
    if (several || !only || runs.length < 2) return [];
    return axis === "steps" ? bandsBySteps(runs, only.series) : bandsByTime(runs, now);
  }, [data, version, axis, runs, several, axis === "time" ? now : 0]);

  const marks = useMemo<Mark[]>(
    () => checkpoints.filter((one) => one.state === "COMPLETED").map((one) => ({
      x: axis === "steps" ? one.steps_completed : one.time,
      href: link(["checkpoints", one.id]),
      pinned: one.pinned,
      label: markLabel(one),
    })),
    [checkpoints, axis],
  );
  const shown = lines.filter((line) => !line.faint);
  const gaps = shown.reduce((sum, line) => sum + countGaps(line.y), 0);
  const below = props.log ? shown.reduce((sum, line) => sum + countNotPositive(line.y), 0) : 0;
  return (
    <div>
      <Chart title={metric} lines={lines} bands={bands} marks={marks} time={axis === "time"} log={props.log} view={props.view} height={props.tall ? 380 : 240} />
      {gaps > 0 && <p className="problem">{gaps === 1 ? "One value is not finite (NaN or infinite) and shown as a gap." : `${formatCount(gaps)} values are not finite (NaN or infinite) and shown as gaps.`}</p>}
      {below > 0 && <p className="problem">{below === 1 ? "One value is not above zero: a log scale has no place for it." : `${formatCount(below)} values are not above zero: a log scale has no place for them.`}</p>}
    </div>
  );
}

function trainingFirst(a: Series, b: Series): number {
  return Number(b.group === "training") - Number(a.group === "training") || a.group.localeCompare(b.group);
}

function markLabel(one: Checkpoint): string {
  const metrics = Object.entries(one.metrics).slice(0, 3).map(([name, value]) => `${name} ${typeof value === "number" ? formatNumber(value) : JSON.stringify(value)}`);
  return [`Checkpoint of step ${one.steps_completed}`, one.kind ?? "full", formatBytes(one.bytes), ...metrics, one.pinned ? "pinned" : "", formatTime(one.time)]
    .filter(Boolean).join(", ");
}

/** What the marks on the curves mean. */
function MarkList({ checkpoints }: { checkpoints: Checkpoint[] }): ReactNode {
  if (checkpoints.length === 0) return null;
  return (
    <section aria-label="Marks" className="run-legend">
      <span><i className="mark sample" aria-hidden="true" />checkpoint</span>
      <span><i className="mark pinned sample" aria-hidden="true" />pinned checkpoint</span>
    </section>
  );
}

/** What the bands say, in words. */
function RunList({ runs, data }: { runs: Run[]; data: TrialSeries[] }): ReactNode {
  if (runs.length < 2 || !data[0]) return null;
  const bands = bandsBySteps(runs, data[0].series);
  return (
    <section aria-label="Runs" className="run-legend">
      {bands.map((band) => (
        <span key={band.run} className={`run-entry ${band.kind}`}>
          {band.to > band.from && `steps ${band.from} to ${band.to}: `}{band.label}
        </span>
      ))}
    </section>
  );
}
