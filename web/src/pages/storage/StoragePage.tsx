import { useEffect, useRef, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { StorageUse } from "../../api/types";
import { Empty, Facts, Failure, Waiting } from "../../components/basics";
import { useResource, useTitle } from "../../components/hooks";
import { VirtualTable, type Column } from "../../components/VirtualTable";
import { formatBytes, formatCount } from "../../model/format";
import { link } from "../../model/route";
import { sortBy, type Order } from "../../model/sorting";
import { PolicyPanel } from "./PolicyPanel";

/** They come into view where they appear, below a table that may be as high as the window. */
function Rules({ experiment }: { experiment: string }): ReactNode {
  const heading = useRef<HTMLHeadingElement>(null);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  // Not before they are there: a heading at the foot of the page has nowhere to be scrolled to.
  const show = (): void => heading.current?.scrollIntoView({ block: "start" });
  return <><h2 ref={heading} tabIndex={-1}>Experiment {experiment}</h2><PolicyPanel experiment={{ id: experiment }} onShown={show} /></>;
}

/** Who uses how much, and the rules of one of them. */
export function StoragePage(): ReactNode {
  useTitle("Storage");
  const [sort, setSort] = useState<{ key: string; order: Order }>({ key: "bytes", order: "desc" });
  const [chosen, setChosen] = useState<string | null>(null);
  const storage = useResource("storage", (signal) => api.storage(signal), (event) => event.kind === "checkpoint" || event.kind === "experiment");
  if (storage.error && !storage.data) return <Failure page error={storage.error} retry={storage.reload} />;
  if (!storage.data) return <Waiting />;
  const { data } = storage;
  const most = Math.max(1, ...data.experiments.map((row) => row.bytes));
  const columns: Column<StorageUse>[] = [
    { key: "experiment", title: "Experiment", sortable: true, render: (row) => <a href={link(["experiments", row.experiment, "checkpoints"])}>{row.experiment}</a> },
    { key: "name", title: "Name", sortable: true, wide: true, render: (row) => <a href={link(["experiments", row.experiment])}>{row.name}</a> },
    {
      key: "bytes", title: "Bytes", sortable: true, numeric: true,
      render: (row) => (
        <span className="bar-cell">
          <meter aria-label={`Share of experiment ${row.experiment}`} min={0} max={most} value={row.bytes} />
          <span>{formatBytes(row.bytes)}</span>
        </span>
      ),
    },
    { key: "pinned_bytes", title: "Pinned", sortable: true, numeric: true, render: (row) => formatBytes(row.pinned_bytes) },
    { key: "checkpoints", title: "Checkpoints", sortable: true, numeric: true, render: (row) => formatCount(row.checkpoints) },
    { key: "storage", title: "Where", render: (row) => <code>{row.storage ?? ""}</code> },
    {
      key: "policy", title: "Rules",
      render: (row) => <button type="button" className="link" aria-pressed={chosen === row.experiment} aria-label={`Rules of experiment ${row.experiment}`} onClick={() => setChosen(chosen === row.experiment ? null : row.experiment)}>rules</button>,
    },
  ];
  const rows = sortBy(data.experiments, (row) => row[sort.key as "bytes" | "name"], sort.order);
  return (
    <>
      <h1>Storage</h1>
      <Facts facts={[
        ["In checkpoints", formatBytes(data.bytes)],
        ["Checkpoints", formatCount(data.checkpoints)],
        ["Free on the disk", formatBytes(data.free_bytes)],
      ]} />
      <p className="hint">A file that several checkpoints share is counted with each of them.</p>
      <VirtualTable<StorageUse>
        label="Bytes of checkpoints by experiment"
        columns={columns}
        count={rows.length}
        row={(index) => rows[index]}
        rowKey={(row) => row.experiment}
        sort={sort}
        onSort={(key, order) => setSort({ key, order })}
        rowsHigh={14}
        empty={<Empty title="No checkpoints yet." command="cairn experiment create CONFIG DIR -f">They appear with the first save of a trial.</Empty>}
      />
      {chosen !== null && <Rules key={chosen} experiment={chosen} />}
    </>
  );
}
