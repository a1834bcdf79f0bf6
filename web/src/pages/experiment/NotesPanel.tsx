import { useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Experiment } from "../../api/types";
import { attempt } from "../../components/Toasts";
import { useMay } from "../../components/session";

/** What people wrote about the experiment: description, labels, notes. Always text, never markup. */
export function NotesPanel({ experiment }: { experiment: Experiment }): ReactNode {
  const may = useMay("user");
  const [draft, setDraft] = useState<{ name: string; labels: string; notes: string } | null>(null);
  const save = async (): Promise<void> => {
    if (!draft) return;
    const labels = draft.labels.split(",").map((label) => label.trim()).filter(Boolean);
    if (await attempt("Saved.", () => api.patchExperiment(experiment.id, { name: draft.name, labels, notes: draft.notes }))) setDraft(null);
  };
  return (
    <section className="panel" aria-labelledby="notes">
      <h2 id="notes">Notes</h2>
      {draft === null ? (
        <>
          {experiment.description && <p className="text">{experiment.description}</p>}
          <p>{experiment.labels.length === 0 ? <span className="faint">No labels.</span> : experiment.labels.map((label) => <span key={label} className="label">{label}</span>)}</p>
          {experiment.notes ? <p className="text">{experiment.notes}</p> : <p className="faint">No notes.</p>}
          {may && <button type="button" onClick={() => setDraft({ name: experiment.name, labels: experiment.labels.join(", "), notes: experiment.notes ?? "" })}>Edit</button>}
        </>
      ) : (
        <form onSubmit={(event) => { event.preventDefault(); void save(); }}>
          <label className="field"><span>Name</span><input value={draft.name} required maxLength={256} onChange={(event) => setDraft({ ...draft, name: event.target.value })} /></label>
          <label className="field"><span>Labels, separated by commas</span><input value={draft.labels} onChange={(event) => setDraft({ ...draft, labels: event.target.value })} /></label>
          <label className="field"><span>Notes</span><textarea rows={5} value={draft.notes} onChange={(event) => setDraft({ ...draft, notes: event.target.value })} /></label>
          <button type="submit" className="primary">Save</button> <button type="button" onClick={() => setDraft(null)}>Cancel</button>
        </form>
      )}
    </section>
  );
}
