import { useEffect, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Checkpoint, Experiment, FileEntry, Tensor, Trial, Verification } from "../../api/types";
import { Command, Empty, Facts, Failure, PathText, StateBadge, Tabs, Waiting } from "../../components/basics";
import { useResource, useRoute, useSettled, useTitle } from "../../components/hooks";
import { useMay } from "../../components/session";
import { attempt } from "../../components/Toasts";
import { usePages } from "../../components/usePages";
import { VirtualTable, type Column } from "../../components/VirtualTable";
import { formatBytes, formatCount, formatJson, formatNumber, formatShape, formatTime } from "../../model/format";
import { link } from "../../model/route";
import { ContinueDialog } from "../trial/ContinueDialog";
import { DeleteDialog } from "./DeleteDialog";
import { LineageGraph } from "./LineageGraph";

export function CheckpointPage({ id }: { id: string }): ReactNode {
  const { path } = useRoute();
  const tab = path[2] ?? "overview";
  const may = useMay("user");
  const [asking, setAsking] = useState<"delete" | { experiment: Experiment; trial: Trial } | null>(null);
  const checkpoint = useResource(`checkpoint ${id}`, (signal) => api.checkpoint(id, signal),
    (event) => event.kind === "checkpoint" && event.body?.["id"] === id);
  useTitle(checkpoint.data ? `Checkpoint of step ${checkpoint.data.steps_completed}` : "Checkpoint");
  if (checkpoint.error && !checkpoint.data) return <Failure page error={checkpoint.error} retry={checkpoint.reload} />;
  if (!checkpoint.data) return <Waiting />;
  const one = checkpoint.data;
  const whole = one.state === "COMPLETED";
  const goOn = async (): Promise<void> => {
    const [experiment, trial] = await Promise.all([api.experiment(one.experiment), api.trial(one.trial)]);
    if (trial.detached) throw new Error("It was started by hand: start its command again, and it goes on.");
    setAsking({ experiment, trial });
  };
  const pin = (): void => {
    void attempt(one.pinned ? "Let go." : "Pinned: it stays until it is let go.", async () => checkpoint.set(await api.patchCheckpoint(id, { pinned: !one.pinned })));
  };
  return (
    <>
      <header className="page-head trial-head">
        <div>
          <p className="crumbs">
            <a href={link(["experiments", one.experiment])}>Experiment {one.experiment}</a> / <a href={link(["trials", one.trial, "checkpoints"])}>Trial {one.trial}</a>
          </p>
          <h1>Checkpoint of step {one.steps_completed}</h1>
          <p className="under-title faint"><code>{one.id}</code></p>
        </div>
        <div className="head-state">
          <StateBadge state={one.state} />
          {one.latest && <span className="label">latest</span>}
          {one.pinned && <span className="label">pinned</span>}
        </div>
        {whole && (
          <div className="head-buttons" role="group" aria-label="What to do with this checkpoint">
            {may && <button type="button" className="primary" onClick={() => void attempt(null, goOn)}>Continue from it…</button>}
            {may && <button type="button" onClick={pin}>{one.pinned ? "Unpin" : "Pin"}</button>}
            <span className="download">Download <a href={api.downloadAddress(id, "tar")} download>tar</a> <a href={api.downloadAddress(id, "tar.gz")} download>tar.gz</a> <a href={api.downloadAddress(id, "zip")} download>zip</a></span>
            {may && <button type="button" className="danger" onClick={() => setAsking("delete")}>Delete…</button>}
          </div>
        )}
      </header>
      <Tabs
        label="About this checkpoint"
        current={tab}
        tabs={[["overview", "Overview"], ["files", "Files"], ["tensors", "Tensors"], ["metadata", "Metadata"], ["lineage", "Lineage"]].map(([key, title]) => ({
          key: key!, title: title!, href: link(["checkpoints", id, ...(key === "overview" ? [] : [key!])]),
        }))}
      />
      {tab === "overview" && <Overview checkpoint={one} />}
      {tab === "files" && <Files id={id} />}
      {tab === "tensors" && <Tensors id={id} />}
      {tab === "metadata" && <Metadata checkpoint={one} />}
      {tab === "lineage" && <LineageTab id={id} />}
      {asking === "delete" && <DeleteDialog checkpoints={[one]} onDone={checkpoint.reload} onClose={() => setAsking(null)} />}
      {asking && asking !== "delete" && <ContinueDialog trial={asking.trial} experiment={asking.experiment} from={one} onClose={() => setAsking(null)} />}
    </>
  );
}

function newBytes({ bytes, new_bytes: fresh }: Checkpoint): string {
  if (fresh === null || fresh === undefined) return "not known";
  return fresh < bytes ? `${formatBytes(fresh)}, the rest is shared with earlier ones` : `${formatBytes(fresh)}, all of it`;
}

function Overview({ checkpoint: one }: { checkpoint: Checkpoint }): ReactNode {
  return (
    <div className="panels">
      <section className="panel" aria-labelledby="what">
        <h2 id="what">What it holds</h2>
        <Facts facts={[
          ["Kind", one.kind === "increment" && one.base ? <>increment of <a href={link(["checkpoints", one.base])}>{one.base}</a></> : (one.kind ?? "full")],
          ["Bytes", formatBytes(one.bytes)],
          ["New bytes", newBytes(one)],
          ["Score", formatNumber(one.score)],
          ["Time", formatTime(one.time)],
          ["Run", one.run_id],
          ["Ranks", one.ranks ?? "–"],
          ["Generation, sequence", `${one.generation ?? "–"}, ${one.sequence ?? "–"}`],
          ...(one.path ? [["Directory", <PathText key="d" path={one.path} />] as [string, ReactNode]] : []),
          ["Repository", <PathText key="r" path={one.repository ?? "–"} />],
          ...(one.reason ? [["Reason", one.reason] as [string, ReactNode]] : []),
        ]} />
      </section>
      <section className="panel" aria-labelledby="metrics">
        <h2 id="metrics">Metrics</h2>
        {Object.keys(one.metrics).length === 0 ? <p className="faint">None were saved with it.</p>
          : <Facts facts={Object.entries(one.metrics).map(([name, value]) => [name, formatJson(value)])} />}
      </section>
      {one.state === "COMPLETED" && <Verify id={one.id} />}
      {one.state === "COMPLETED" && (
        <section className="panel" aria-labelledby="cli">
          <h2 id="cli">On the command line</h2>
          <p><Command text={`cairn experiment download ${one.experiment} --checkpoint ${one.id} -o DIR/`} /></p>
          {one.repository && <p className="faint">On a machine that reaches its storage:</p>}
          {one.repository && <p><Command text={`cairn checkpoint show ${one.repository} ${one.steps_completed}`} /></p>}
        </section>
      )}
    </div>
  );
}

function Verify({ id }: { id: string }): ReactNode {
  const may = useMay("user");
  const result = useResource(`verify ${id}`, (signal) => api.verification(id, signal),
    (event) => event.kind === "verification" && (event.body?.["id"] ?? id) === id);
  const start = (): void => {
    void attempt("Every byte is being compared with its checksum.", async () => result.set(await api.verify(id)));
  };
  const state = result.data;
  // How far it is comes with no event; it is asked while it runs.
  const running = state?.state === "RUNNING";
  const { reload } = result;
  useEffect(() => {
    if (!running) return;
    const timer = setInterval(reload, 1000);
    return () => clearInterval(timer);
  }, [running, reload]);
  return (
    <section className="panel" aria-labelledby="verify">
      <h2 id="verify">Verify</h2>
      {result.error && !state ? <Failure error={result.error} /> : !state ? <Waiting /> : <VerifyResult state={state} />}
      {may && <button type="button" disabled={running} onClick={start}>Verify all bytes</button>}
    </section>
  );
}

function VerifyResult({ state }: { state: Verification }): ReactNode {
  if (state.state === "NONE") return <p className="faint">Not verified since the master began.</p>;
  if (state.state === "RUNNING") {
    return (
      <p role="status">
        <progress aria-label="Verified" max={Math.max(1, state.bytes_total)} value={state.bytes_done} /> {formatBytes(state.bytes_done)} of {formatBytes(state.bytes_total)}
      </p>
    );
  }
  return (
    <div role="status">
      <p><StateBadge state={state.state} /> {state.state === "GOOD" ? `all ${formatBytes(state.bytes_total)} are as they were written` : ""} <span className="faint">{formatTime(state.time)}</span></p>
      {state.problems.length > 0 && <ul className="short-list">{state.problems.map((problem) => <li key={problem} className="problem">{problem}</li>)}</ul>}
    </div>
  );
}

function Files({ id }: { id: string }): ReactNode {
  const files = useResource(`files ${id}`, (signal) => api.checkpointFiles(id, signal));
  if (files.error && !files.data) return <Failure error={files.error} retry={files.reload} />;
  if (!files.data) return <Waiting />;
  const list = files.data.files;
  return (
    <VirtualTable<FileEntry>
      label="Files"
      columns={[
        { key: "path", title: "Path", wide: true, render: (row) => <code>{row.path}</code> },
        { key: "bytes", title: "Bytes", numeric: true, render: (row) => formatBytes(row.bytes) },
      ]}
      count={list.length}
      row={(index) => list[index]}
      rowKey={(row) => row.path}
      rowsHigh={18}
      empty={<Empty title="It has no files." />}
    />
  );
}

const TENSOR_COLUMNS: Column<Tensor>[] = [
  { key: "name", title: "Name", wide: true, render: (row) => <code>{row.name}</code> },
  { key: "dtype", title: "Type", render: (row) => row.dtype },
  { key: "shape", title: "Shape", render: (row) => formatShape(row.shape) },
  { key: "bytes", title: "Bytes", numeric: true, render: (row) => formatBytes(row.bytes) },
  { key: "file", title: "File", render: (row) => <code>{row.file ?? ""}</code> },
];

function Tensors({ id }: { id: string }): ReactNode {
  const [text, setText] = useState("");
  const search = useSettled(text, 200);
  const pages = usePages<Tensor>(`${id} ${search}`, async (offset, limit, signal) => {
    const page = await api.tensors(id, { search, offset, limit }, signal);
    return { rows: page.tensors, total: page.total };
  }, () => false);
  if (pages.error && pages.total === undefined) return <Failure error={pages.error} retry={pages.reload} />;
  return (
    <>
      <div className="toolbar" role="search">
        <input type="search" aria-label="Tensors whose name contains" placeholder="Name" value={text} onChange={(event) => setText(event.target.value)} />
        <span className="faint">{pages.total === undefined ? "" : `${formatCount(pages.total)} ${pages.total === 1 ? "tensor" : "tensors"}`}</span>
      </div>
      <VirtualTable<Tensor>
        label="Tensors"
        columns={TENSOR_COLUMNS}
        count={pages.total ?? 0}
        row={pages.row}
        rowKey={(row) => `${row.file ?? ""} ${row.name}`}
        onWindow={pages.want}
        rowsHigh={18}
        empty={pages.total === undefined ? null : search ? <Empty title="No tensor has such a name."><button type="button" onClick={() => setText("")}>Show all</button></Empty>
          : <Empty title="It holds files only, no tensors."><a href={link(["checkpoints", id, "files"])}>To its files</a></Empty>}
      />
    </>
  );
}

function Metadata({ checkpoint: one }: { checkpoint: Checkpoint }): ReactNode {
  const entries = Object.entries(one.metadata);
  if (entries.length === 0) return <Empty title="It has no metadata.">A script gives it with store_path(metadata).</Empty>;
  return (
    <section className="panel" aria-label="Metadata">
      <Facts facts={entries.map(([name, value]) => [name, <span key={name} className="text">{formatJson(value)}</span>])} />
    </section>
  );
}

function LineageTab({ id }: { id: string }): ReactNode {
  const lineage = useResource(`lineage ${id}`, (signal) => api.lineage(id, signal), (event) => event.kind === "checkpoint");
  if (lineage.error && !lineage.data) return <Failure error={lineage.error} retry={lineage.reload} />;
  if (!lineage.data) return <Waiting />;
  return <LineageGraph lineage={lineage.data} current={id} />;
}
