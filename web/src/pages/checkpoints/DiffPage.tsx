import { useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { TensorDifference } from "../../api/types";
import { Command, Empty, Facts, Failure, Waiting } from "../../components/basics";
import { useResource, useTitle } from "../../components/hooks";
import { VirtualTable, type Column } from "../../components/VirtualTable";
import { formatCount, formatNumber, formatPercent } from "../../model/format";
import { link } from "../../model/route";
import { sortBy, type Order } from "../../model/sorting";

function changedPart(row: TensorDifference): string {
  if (row.rows_changed !== undefined) return `rows: ${formatCount(row.rows_changed)} changed, ${formatCount(row.rows_added ?? 0)} added, ${formatCount(row.rows_removed ?? 0)} removed`;
  if (row.changed_elements === undefined) return "–";
  return `${formatCount(row.changed_elements)}${row.elements ? ` of ${formatCount(row.elements)} (${formatPercent(row.changed_elements / row.elements)})` : ""}`;
}

const COLUMNS: Column<TensorDifference>[] = [
  { key: "name", title: "Tensor", sortable: true, wide: true, render: (row) => <code>{row.name}</code> },
  { key: "kind", title: "What", sortable: true, render: (row) => row.kind },
  { key: "max_difference", title: "Greatest difference", sortable: true, numeric: true, render: (row) => formatNumber(row.max_difference) },
  {
    key: "changed_elements", title: "Changed elements", sortable: true, numeric: true,
    render: changedPart,
  },
];

/** Two checkpoints, tensor by tensor. */
export function DiffPage({ a, b }: { a: string; b: string }): ReactNode {
  useTitle("Compare checkpoints");
  const [sort, setSort] = useState<{ key: string; order: Order }>({ key: "max_difference", order: "desc" });
  const both = useResource(`diff ends ${a} ${b}`, (signal) => Promise.all([api.checkpoint(a, signal), api.checkpoint(b, signal)]));
  const diff = useResource(`diff ${a} ${b}`, (signal) => api.diff(a, b, signal));
  if (both.error && !both.data) return <Failure page error={both.error} retry={both.reload} />;
  if (!both.data) return <Waiting />;
  const [left, right] = both.data;
  const rows = sortBy(diff.data?.tensors ?? [], (row) => row[sort.key as "name" | "max_difference"], sort.order);
  return (
    <>
      <p className="crumbs"><a href={link(["trials", left.trial, "checkpoints"])}>Checkpoints of trial {left.trial}</a></p>
      <h1>
        <a href={link(["checkpoints", a])}>Step {left.steps_completed}</a> compared with <a href={link(["checkpoints", b])}>step {right.steps_completed}</a>
        {left.trial !== right.trial && ` of trial ${right.trial}`}
      </h1>
      {diff.error ? <Failure error={diff.error} retry={diff.reload} /> : !diff.data ? <Waiting /> : (
        <>
          <Facts facts={[
            ["Changed", formatCount(diff.data.changed)], ["Equal", formatCount(diff.data.equal)],
            ["Only in the first", formatCount(diff.data.removed)], ["Only in the second", formatCount(diff.data.added)],
          ]} />
          <VirtualTable<TensorDifference>
            label="Tensors that differ"
            columns={COLUMNS}
            count={rows.length}
            row={(index) => rows[index]}
            rowKey={(row) => row.name}
            sort={sort}
            onSort={(key, order) => setSort({ key, order })}
            rowsHigh={18}
            empty={<Empty title={diff.data.equal > 0 ? "All tensors are equal." : "Neither holds tensors: they are files of the script's own."} />}
          />
          {left.repository && left.repository === right.repository && (
            <p className="faint">The same in a terminal: <Command text={`cairn checkpoint diff ${left.repository} ${left.steps_completed} ${right.steps_completed}`} /></p>
          )}
        </>
      )}
    </>
  );
}
