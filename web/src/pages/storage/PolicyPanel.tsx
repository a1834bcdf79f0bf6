// Which checkpoints stay: the rules of an experiment as a form, with what they would remove before they are set.
import { useEffect, useRef, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment, PolicyPreview } from "../../api/types";
import { Choice, Failure, Field } from "../../components/basics";
import { describe } from "../../components/Dialog";
import { useResource } from "../../components/hooks";
import { useMay } from "../../components/session";
import { attempt } from "../../components/Toasts";
import { formatBytes, shortId } from "../../model/format";
import { fromForm, toForm, type PolicyForm } from "../../model/policy";
import { link } from "../../model/route";

/** `onShown` is called once the rules are there to be seen: until they have been read the panel takes no room. */
export function PolicyPanel({ experiment, onShown }: { experiment: Pick<Experiment, "id">; onShown?: () => void }): ReactNode {
  const may = useMay("user");
  const policy = useResource(`policy ${experiment.id}`, (signal) => api.policy(experiment.id, signal),
    (event) => event.kind === "policy" && event.experiment === experiment.id);
  const [form, setForm] = useState<PolicyForm | null>(null);
  const [preview, setPreview] = useState<PolicyPreview | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const shown = form ?? (policy.data ? toForm(policy.data) : null);
  const changed = form !== null;

  const there = shown !== null;
  useEffect(() => {
    if (there) onShown?.();
    // Once: whoever scrolled on since is not taken back.
  }, [there]);
  // A preview of other rules than those in the form would mislead.
  useEffect(() => setPreview(null), [form]);
  const current = useRef(form);
  current.current = form;
  if (policy.error && !policy.data) return <Failure error={policy.error} retry={policy.reload} />;
  if (!shown) return null;
  const result = fromForm(shown);
  const put = (field: keyof PolicyForm) => (value: string) => setForm({ ...shown, [field]: value });
  const note = (field: keyof PolicyForm): { problem?: string } => (!result.ok && result.field === field ? { problem: result.message } : {});
  const look = async (): Promise<void> => {
    if (!result.ok) return;
    setProblem(null);
    try {
      const found = await api.previewPolicy(experiment.id, result.policy);
      if (current.current === form) setPreview(found);
    } catch (caught) {
      setProblem(describe(caught));
    }
  };
  const save = async (): Promise<void> => {
    if (!result.ok) return;
    if (await attempt("The rules are set.", () => api.setPolicy(experiment.id, result.policy))) {
      setForm(null);
      setPreview(null);
      policy.reload();
    }
  };
  return (
    <section className="panel policy" aria-labelledby={`policy-${experiment.id}`}>
      <h2 id={`policy-${experiment.id}`}>Which checkpoints stay</h2>
      <p className="hint">What any of the first four rules keeps stays, and without any of them all do; then age and size take away, where files that checkpoints share count for each of them. The latest and pinned ones always stay.</p>
      <form onSubmit={(event) => { event.preventDefault(); void look(); }}>
        <fieldset className="form-grid">
          <legend className="hidden">Rules</legend>
          <Field label="The last n" value={shown.keep_last} onChange={put("keep_last")} {...note("keep_last")} />
          <Field label="The best n of each trial" value={shown.keep_best} onChange={put("keep_best")} {...note("keep_best")} />
          <Field label="The best n of all trials" value={shown.experiment_best} onChange={put("experiment_best")} {...note("experiment_best")} />
          <Field label="Every n-th step" value={shown.keep_every} onChange={put("keep_every")} {...note("keep_every")} />
          <Field label="Best by this metric" value={shown.score} onChange={put("score")} placeholder="the searcher's" />
          <Choice label="Best is" value={shown.order} options={[["", "as the searcher has it"], ["min", "the least"], ["max", "the greatest"]]} onChange={(value) => setForm({ ...shown, order: value })} />
          <Field label="Not older than, days" value={shown.max_age_days} onChange={put("max_age_days")} {...note("max_age_days")} />
          <Field label="At most, GiB of each trial" value={shown.max_gib} onChange={put("max_gib")} {...note("max_gib")} />
          <Field label="At most, GiB of all trials" value={shown.experiment_gib} onChange={put("experiment_gib")} {...note("experiment_gib")} />
        </fieldset>
        <div className="toolbar">
          <button type="submit" disabled={!result.ok}>Preview</button>
          {may && <button type="button" className="primary" disabled={!result.ok || !changed || preview === null} onClick={() => void save()}>Set these rules</button>}
          {changed && <button type="button" onClick={() => setForm(null)}>Undo</button>}
          {may && changed && preview === null && <span className="hint">Look at the preview first.</span>}
        </div>
      </form>
      {problem && <p role="alert" className="problem">{problem}</p>}
      {preview && <Preview preview={preview} />}
    </section>
  );
}

function Preview({ preview }: { preview: PolicyPreview }): ReactNode {
  return (
    <div role="status" className="preview">
      <p>
        {preview.removals.length === 0
          ? `Nothing would go; ${preview.kept} stay.`
          : `${preview.removals.length} would go and free up to ${formatBytes(preview.bytes)}; ${preview.kept} stay. What they share with those that stay is not freed.`}
      </p>
      {preview.removals.length > 0 && (
        <ul className="short-list">
          {preview.removals.slice(0, 50).map((one) => (
            <li key={one.id}>
              <a href={link(["checkpoints", one.id])}>step {one.steps_completed}</a> of trial {one.trial}, {formatBytes(one.bytes)}: {one.reason}
              <span className="faint"> {shortId(one.id)}</span>
            </li>
          ))}
          {preview.removals.length > 50 && <li>and {preview.removals.length - 50} more</li>}
        </ul>
      )}
    </div>
  );
}
