import type { ReactNode } from "react";
import { api, ApiError } from "../../api/client";
import { writeExactly } from "../../api/exact";
import type { Trial } from "../../api/types";
import { Empty, Failure, StateBadge, Waiting } from "../../components/basics";
import { navigate, useResource, useRoute, useTitle } from "../../components/hooks";
import { allNumbers, formatJson, formatNumber, numberedName } from "../../model/format";
import { link } from "../../model/route";
import { MetricsView } from "./MetricsView";

export const MOST_COMPARED = 10;

/** Up to ten trials of any experiments: their curves in one chart for each metric, what they differ in as a table. */
export function ComparePage(): ReactNode {
  useTitle("Compare");
  const { query } = useRoute();
  const ids = [...new Set((query.get("trials") ?? "").split(",").filter(Boolean))].slice(0, MOST_COMPARED);
  const trials = useResource(`compare ${ids.join(",")}`, (signal) => Promise.all(ids.map((id) => found(id, signal))),
    (event) => ids.includes(event.trial) && (event.kind === "trial" || event.kind === "progress"));
  // Which experiment each is of: trials of several have nothing else to tell them apart.
  const homes = [...new Set(trials.data?.map((one) => one.trial?.experiment).filter((id) => id !== undefined))];
  const names = useResource(`compare names ${homes.join(",")}`, (signal) => Promise.all(homes.map((id) => api.experiment(id, signal))));
  const nameOf = (id: string): string => {
    const home = names.data?.find((one) => one.id === id);
    return home ? numberedName(home) : id;
  };
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
    return <><h1>Compare</h1>{add}<Empty title="Nothing to compare yet." command="cairn trial ls">Add trials by their ids, or select experiments or trials in their tables.</Empty></>;
  }
  if (trials.error && !trials.data) return <><h1>Compare</h1>{add}<Failure error={trials.error} retry={trials.reload} /></>;
  if (!trials.data) return <Waiting />;
  const there = trials.data.map((one) => one.trial).filter((trial) => trial !== null);
  const differ = [...new Set(there.flatMap((trial) => Object.keys(trial.hparams)))].sort().filter((name) => new Set(there.map((trial) => writeExactly(trial.hparams[name]))).size > 1);
  const align = (name: string): string | undefined => (allNumbers(there.map((trial) => trial.hparams[name])) ? "numeric" : undefined);
  return (
    <>
      <h1>Compare {there.length} {there.length === 1 ? "trial" : "trials"}</h1>
      {add}
      <div className="table-box plain" tabIndex={0} role="region" aria-label="Compared trials">
        <table>
          <thead>
            <tr><th scope="col">Trial</th><th scope="col">Experiment</th><th scope="col">State</th><th scope="col" className="numeric">Steps</th><th scope="col" className="numeric">Best</th>
              {differ.map((name) => <th key={name} scope="col" className={align(name)}>{name}</th>)}<th scope="col"><span className="hidden">Remove</span></th></tr>
          </thead>
          <tbody>
            {trials.data.filter((one) => one.trial === null).map(({ id, problem }) => (
              <tr key={id}>
                <td>trial {id}</td>
                <td colSpan={4 + differ.length} className="problem">{problem}</td>
                <td><Remove id={id} from={ids} /></td>
              </tr>
            ))}
            {there.map((trial, index) => (
              <tr key={trial.id}>
                <td><span className={`swatch colour-${index}`} aria-hidden="true" /> <a href={link(["trials", trial.id])}>trial {trial.id}</a></td>
                <td><a href={link(["experiments", trial.experiment])} title={nameOf(trial.experiment)}>{nameOf(trial.experiment)}</a></td>
                <td><StateBadge state={trial.state} /></td>
                <td className="numeric">{trial.steps_completed ?? "–"}</td>
                <td className="numeric">{trial.best ? `${trial.best.metric} ${formatNumber(trial.best.value)}` : "–"}</td>
                {differ.map((name) => <td key={name} className={align(name)}>{formatJson(trial.hparams[name])}</td>)}
                <td><Remove id={trial.id} from={ids} /></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {there.length > 0 && <MetricsView trials={there.map((trial) => trial.id)} single={false} />}
    </>
  );
}

function show(list: string[]): void {
  navigate(link(["compare"], { trials: list.join(",") }), true);
}

function Remove({ id, from }: { id: string; from: string[] }): ReactNode {
  return <button type="button" className="link" aria-label={`Remove trial ${id}`} onClick={() => show(from.filter((one) => one !== id))}>remove</button>;
}

/** One that is not there hides none of the others: it has a row that says so. */
async function found(id: string, signal: AbortSignal): Promise<{ id: string; trial: Trial | null; problem: string }> {
  try {
    return { id, trial: await api.trial(id, signal), problem: "" };
  } catch (caught) {
    if (!(caught instanceof ApiError) || (caught.status !== 404 && caught.status !== 400)) throw caught;
    return { id, trial: null, problem: caught.message };
  }
}
