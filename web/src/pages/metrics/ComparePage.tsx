import type { ReactNode } from "react";
import { api } from "../../api/client";
import { Empty, Failure, StateBadge, Waiting } from "../../components/basics";
import { navigate, useResource, useRoute, useTitle } from "../../components/hooks";
import { formatJson, formatNumber } from "../../model/format";
import { link } from "../../model/route";
import { MetricsView } from "./MetricsView";

export const MOST_COMPARED = 10;

/** Up to ten trials of any experiments: their curves in one chart for each metric, what they differ in as a table. */
export function ComparePage(): ReactNode {
  useTitle("Compare");
  const { query } = useRoute();
  const ids = [...new Set((query.get("trials") ?? "").split(",").filter(Boolean))].slice(0, MOST_COMPARED);
  const trials = useResource(`compare ${ids.join(",")}`, (signal) => Promise.all(ids.map((id) => api.trial(id, signal))),
    (event) => ids.includes(event.trial) && (event.kind === "trial" || event.kind === "progress"));
  const show = (list: string[]): void => navigate(link(["compare"], { trials: list.join(",") }), true);
  const add = (
    <form className="toolbar" onSubmit={(event) => {
      event.preventDefault();
      const field = new FormData(event.currentTarget).get("trial");
      const id = typeof field === "string" ? field.trim() : "";
      if (id !== "") show([...ids, id]);
      event.currentTarget.reset();
    }}>
      <input name="trial" aria-label="Trial to add" placeholder="Trial id" disabled={ids.length >= MOST_COMPARED} />
      <button type="submit" disabled={ids.length >= MOST_COMPARED}>Add a trial</button>
      <span className="hint">{ids.length} of {MOST_COMPARED}</span>
    </form>
  );
  if (ids.length === 0) {
    return <><h1>Compare</h1>{add}<Empty title="Nothing to compare yet." command="cairn trial ls">Add trials by their ids, or select them in the table of an experiment.</Empty></>;
  }
  if (trials.error && !trials.data) return <><h1>Compare</h1>{add}<Failure error={trials.error} retry={trials.reload} /></>;
  if (!trials.data) return <Waiting />;
  const names = [...new Set(trials.data.flatMap((trial) => Object.keys(trial.hparams)))].sort();
  const differ = names.filter((name) => new Set(trials.data!.map((trial) => JSON.stringify(trial.hparams[name]))).size > 1);
  return (
    <>
      <h1>Compare {ids.length} trials</h1>
      {add}
      <div className="table-box plain" tabIndex={0} role="region" aria-label="Compared trials">
        <table>
          <thead>
            <tr><th scope="col">Trial</th><th scope="col">State</th><th scope="col" className="numeric">Steps</th><th scope="col" className="numeric">Best</th>
              {differ.map((name) => <th key={name} scope="col">{name}</th>)}<th scope="col"><span className="hidden">Remove</span></th></tr>
          </thead>
          <tbody>
            {trials.data.map((trial, index) => (
              <tr key={trial.id}>
                <td><span className={`swatch colour-${index}`} aria-hidden="true" /> <a href={link(["trials", trial.id])}>trial {trial.id}</a></td>
                <td><StateBadge state={trial.state} /></td>
                <td className="numeric">{trial.steps_completed ?? "–"}</td>
                <td className="numeric">{trial.best ? `${trial.best.metric} ${formatNumber(trial.best.value)}` : "–"}</td>
                {differ.map((name) => <td key={name}>{formatJson(trial.hparams[name])}</td>)}
                <td><button type="button" className="link" aria-label={`Remove trial ${trial.id}`} onClick={() => show(ids.filter((id) => id !== trial.id))}>remove</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      <MetricsView trials={ids} single={false} />
    </>
  );
}
