// The checkpoints of a trial, or of all trials of an experiment.
import { useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Checkpoint, Experiment, Trial } from "../../api/types";
import { Choice, Empty, Failure, StateBadge, Waiting } from "../../components/basics";
import { navigate, useNow, useResource, useSelection } from "../../components/hooks";
import { useMay } from "../../components/session";
import { attempt } from "../../components/Toasts";
import { VirtualTable, type Column } from "../../components/VirtualTable";
import { formatAge, formatBytes, formatNumber, formatTime, shortId } from "../../model/format";
import { link } from "../../model/route";
import { sortBy, type Order } from "../../model/sorting";
import { ContinueDialog } from "../trial/ContinueDialog";
import { PolicyPanel } from "../storage/PolicyPanel";
import { DeleteDialog } from "./DeleteDialog";

const SORT_KEYS: { [key: string]: (row: Checkpoint) => number | string | boolean | null | undefined } = {
  step: (row) => row.steps_completed,
  trial: (row) => row.trial,
  state: (row) => row.state,
  metric: (row) => row.score,
  bytes: (row) => row.bytes,
  new: (row) => row.new_bytes,
  kind: (row) => row.kind,
  pinned: (row) => row.pinned,
  age: (row) => row.time,
};

interface Props {
  experiment: Experiment;
  /** Left out: of all trials. */
  trial?: Trial;
}

export function CheckpointsTab({ experiment, trial }: Props): ReactNode {
  const may = useMay("user");
  const now = useNow(10_000);
  const [states, setStates] = useState("COMPLETED");
  const [sort, setSort] = useState<{ key: string; order: Order }>({ key: "age", order: "desc" });
  const { selected, onSelect, setSelected } = useSelection();
  const [continuing, setContinuing] = useState<{ checkpoint: Checkpoint; trial: Trial } | null>(null);
  const [deleting, setDeleting] = useState<Checkpoint[] | null>(null);
  const query = { limit: 1000, state: states, sort: "time", order: "desc" };
  const list = useResource(
    `checkpoints ${experiment.id} ${trial?.id ?? ""} ${states}`,
    (signal) => (trial ? api.trialCheckpoints(trial.id, query, signal) : api.experimentCheckpoints(experiment.id, query, signal)),
    (event) => (event.kind === "checkpoint" || event.kind === "policy") && (trial ? event.trial === trial.id : event.experiment === experiment.id),
  );

  const detached = trial?.detached ?? false;
  const pin = (row: Checkpoint): void => {
    void attempt(row.pinned ? "Let go." : "Pinned: it stays until it is let go.", () => api.patchCheckpoint(row.id, { pinned: !row.pinned })).then(list.reload);
  };
  const goOn = (row: Checkpoint): void => {
    if (trial) setContinuing({ checkpoint: row, trial });
    else void attempt(null, async () => setContinuing({ checkpoint: row, trial: await api.trial(row.trial) }));
  };
  const columns: Column<Checkpoint>[] = [
    {
      key: "step", title: "Step", sortable: true, numeric: true,
      render: (row) => (row.id === "" ? row.steps_completed : <a href={link(["checkpoints", row.id])} title={row.id}>{row.steps_completed}</a>),
    },
    ...(trial ? [] : [{ key: "trial", title: "Trial", sortable: true, render: (row: Checkpoint) => <a href={link(["trials", row.trial])}>{row.trial}</a> }]),
    {
      key: "state", title: "State", sortable: true,
      render: (row) => (
        <span title={row.reason}>
          <StateBadge state={row.state} /> {row.latest && <span className="label">latest</span>}
        </span>
      ),
    },
    {
      key: "metric", title: experiment.searcher?.metric ? `Metric (${experiment.searcher.metric})` : "Metric", sortable: true, numeric: true,
      render: (row) => formatNumber(row.score),
    },
    { key: "bytes", title: "Bytes", sortable: true, numeric: true, render: (row) => formatBytes(row.bytes) },
    { key: "new", title: "New bytes", hint: "What was written for it: files that it shares with earlier ones are left out", sortable: true, numeric: true, render: (row) => formatBytes(row.new_bytes) },
    {
      key: "kind", title: "Kind", sortable: true,
      render: (row) => (row.kind === "increment"
        ? <>increment{row.base && <> of <a href={link(["checkpoints", row.base])}>{shortId(row.base)}</a></>}</>
        : (row.kind ?? "full")),
    },
    {
      key: "pinned", title: "Pinned", sortable: true,
      render: (row) => (
        <span className="row-actions">
          {row.pinned && <span className="label">pinned</span>}
          {may && row.state === "COMPLETED" && (
            <button type="button" className="link" aria-label={`${row.pinned ? "Unpin" : "Pin"} step ${row.steps_completed}`} onClick={() => pin(row)}>{row.pinned ? "unpin" : "pin"}</button>
          )}
        </span>
      ),
    },
    { key: "age", title: "Age", sortable: true, render: (row) => <span title={formatTime(row.time)}>{formatAge(row.time, now)}</span> },
    {
      key: "actions", title: "Actions",
      render: (row) => (row.state === "COMPLETED" ? (
        <span className="row-actions">
          {may && !detached && <button type="button" className="link" aria-label={`Continue from step ${row.steps_completed}`} onClick={() => goOn(row)}>continue</button>}
          <a href={api.downloadAddress(row.id, "tar")} download aria-label={`Download step ${row.steps_completed}`}>download</a>
          {may && <button type="button" className="link bad" aria-label={`Delete step ${row.steps_completed}`} onClick={() => setDeleting([row])}>delete</button>}
        </span>
      ) : row.reason ?? ""),
    },
  ];

  if (list.error && !list.data) return <Failure error={list.error} retry={list.reload} />;
  if (!list.data) return <Waiting />;
  const rows = sortBy(list.data.checkpoints, SORT_KEYS[sort.key] ?? ((row) => row.time), sort.order);
  const chosen = rows.filter((row) => selected.has(row.id));
  const [older, newer] = [...chosen].sort((a, b) => a.time - b.time);
  return (
    <>
      <div className="toolbar">
        <Choice
          label="Show"
          value={states}
          options={[["COMPLETED", "completed"], ["ACTIVE,COMPLETED,ERROR", "also unfinished"], ["ACTIVE,COMPLETED,DELETED,ERROR", "also deleted"]]}
          onChange={setStates}
        />
        {chosen.length > 0 && <strong>{chosen.length} selected</strong>}
        {chosen.length === 2 && older && newer && (
          <button type="button" onClick={() => navigate(link(["checkpoints", older.id, "compare", newer.id]))}>Compare the two</button>
        )}
        {may && chosen.length > 0 && <button type="button" className="danger" onClick={() => setDeleting(chosen)}>Delete {chosen.length}…</button>}
        {chosen.length !== 2 && <span className="hint">Select two to compare their tensors.</span>}
      </div>
      <VirtualTable<Checkpoint>
        label="Checkpoints"
        columns={columns}
        count={rows.length}
        row={(index) => rows[index]}
        rowKey={(row) => row.id || (row.registration ?? String(row.time))}
        sort={sort}
        onSort={(key, order) => setSort({ key, order })}
        selected={selected}
        onSelect={onSelect}
        selectLabel={(row) => `Select step ${row.steps_completed}`}
        onSelectAll={(on) => setSelected(on ? rows.map((row) => row.id).filter((id) => id !== "") : [])}
        rowsHigh={14}
        empty={<Empty title="No checkpoints yet." command={trial ? `cairn trial logs ${trial.id} -f` : `cairn experiment logs ${experiment.id} -f`}>A script saves with ctx.checkpoint.store_path. What it is doing:</Empty>}
      />
      {list.data.total > rows.length && <p className="hint">The newest {rows.length} of {list.data.total}.</p>}
      <PolicyPanel experiment={experiment} />
      {continuing && <ContinueDialog trial={continuing.trial} experiment={experiment} from={continuing.checkpoint} onClose={() => setContinuing(null)} />}
      {deleting && <DeleteDialog checkpoints={deleting} onDone={() => { setSelected([]); list.reload(); }} onClose={() => setDeleting(null)} />}
    </>
  );
}
