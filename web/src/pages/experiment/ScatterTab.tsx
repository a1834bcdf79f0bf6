import { useLayoutEffect, useRef, useState, type ReactNode, type RefObject } from "react";
import { api } from "../../api/client";
import { writeExactly } from "../../api/exact";
import type { Experiment, Trial } from "../../api/types";
import { Choice, Empty, Failure, Waiting } from "../../components/basics";
import { useResource } from "../../components/hooks";
import { formatNumber, toNumber } from "../../model/format";
import { link } from "../../model/route";
import { placePoints } from "../../model/scatter";

/** One hyperparameter against the best metric, a point for each trial. */
export function ScatterTab({ experiment }: { experiment: Experiment }): ReactNode {
  const [chosen, setChosen] = useState("");
  const [log, setLog] = useState(false);
  const list = useResource(`scatter ${experiment.id}`, (signal) => api.experimentTrials(experiment.id, { limit: 1000 }, signal),
    (event) => event.experiment === experiment.id && event.kind === "trial");
  if (list.error && !list.data) return <Failure error={list.error} retry={list.reload} />;
  if (!list.data) return <Waiting />;
  const trials = list.data.trials;
  const names = [...new Set(trials.flatMap((trial) => Object.keys(trial.hparams)))].sort();
  const varied = names.filter((name) => new Set(trials.map((trial) => writeExactly(trial.hparams[name]))).size > 1);
  const name = chosen !== "" && names.includes(chosen) ? chosen : (varied[0] ?? names[0]);
  const metric = experiment.searcher?.metric ?? experiment.best?.metric ?? "metric";
  if (name === undefined) return <Empty title="The trials have no hyperparameters to compare.">A config with ranges under <code>hyperparameters</code> has some.</Empty>;
  return (
    <>
      <div className="toolbar" role="group" aria-label="Scatter">
        <Choice label="Hyperparameter" value={name} options={(varied.length > 0 ? varied : names).map((one): [string, string] => [one, one])} onChange={setChosen} />
        <label className="check"><input type="checkbox" checked={log} onChange={(event) => setLog(event.target.checked)} /> Log scale of the hyperparameter</label>
        {list.data.total > trials.length && <span className="hint">The first {trials.length} of {list.data.total} trials.</span>}
      </div>
      <Scatter experiment={experiment.id} trials={trials} name={name} metric={metric} log={log} best={experiment.best?.trial} />
    </>
  );
}

/** As wide as there is room, and not higher than the window: a drawing that is scaled has texts that nobody can read. */
function useRoom(): [RefObject<HTMLElement | null>, { width: number; height: number }] {
  const box = useRef<HTMLElement>(null);
  const [room, setRoom] = useState({ width: 820, height: 400 });
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = (): void => {
      const { paddingLeft, paddingRight } = getComputedStyle(element);
      const width = Math.max(240, Math.floor(element.clientWidth - parseFloat(paddingLeft) - parseFloat(paddingRight)));
      const height = Math.round(Math.min(Math.max(260, window.innerHeight - 390), Math.max(260, width * 0.6)));
      setRoom((before) => (before.width === width && before.height === height ? before : { width, height }));
    };
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    window.addEventListener("resize", measure);
    return () => {
      observer.disconnect();
      window.removeEventListener("resize", measure);
    };
  }, []);
  return [box, room];
}

interface ScatterProps {
  experiment: string;
  trials: Trial[];
  name: string;
  metric: string;
  log: boolean;
  best: string | undefined;
}

function Scatter({ experiment, trials, name, metric, log, best }: ScatterProps): ReactNode {
  const [box, { width, height }] = useRoom();
  const placed = placePoints(
    trials.map((trial) => ({ id: trial.id, x: trial.hparams[name] ?? null, y: toNumber(trial.best?.value ?? null) })),
    { width, height, log },
  );
  return (
    <figure className="panel" ref={box}>
      <figcaption>{metric} by {name}</figcaption>
      {placed.points.length === 0 ? (
        <Empty title={`No trial has both ${name} and ${metric} yet.`} command={`cairn trial ls -e ${experiment}`}>A point appears with the first report of the metric. What the trials are doing:</Empty>
      ) : <svg className="scatter" width={width} height={height} role="group" aria-label={`${metric} by ${name}, ${placed.points.length} trials`}>
        {placed.yTicks.map((tick) => (
          <g key={`y${tick.at}`}>
            <line x1={64} x2={width - 12} y1={tick.at} y2={tick.at} />
            <text x={58} y={tick.at + 4} textAnchor="end">{tick.label}</text>
          </g>
        ))}
        {placed.xTicks.map((tick) => (
          <g key={`x${tick.at}`}>
            <line x1={tick.at} x2={tick.at} y1={12} y2={height - 36} />
            <text x={tick.at} y={height - 20} textAnchor="middle">{tick.label}</text>
          </g>
        ))}
        <text x={width - 12} y={height - 2} textAnchor="end" className="axis-name">{name}</text>
        <text x={64} y={9} className="axis-name">{metric}</text>
        {[...placed.points].sort((a, b) => Number(a.id === best) - Number(b.id === best)).map((point) => {
          const text = `Trial ${point.id}: ${name} ${point.xLabel}, ${metric} ${formatNumber(point.y)}`;
          return (
            <a key={point.id} href={link(["trials", point.id])} aria-label={text}>
              <circle cx={point.px} cy={point.py} r={point.id === best ? 8 : 5} className={point.id === best ? "point best" : "point"}><title>{text}</title></circle>
            </a>
          );
        })}
      </svg>}
      {placed.left > 0 && placed.points.length > 0 && <p className="hint">{placed.left} trials have no finite value yet{log ? " or a hyperparameter that has no logarithm" : ""}.</p>}
    </figure>
  );
}
