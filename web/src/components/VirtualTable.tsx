// A table of any length of which only the rows in view are in the page. A real <table>, so that it is read as one: rows above and
// below are two empty rows of the right height.
import { useLayoutEffect, useRef, useState, type ReactNode } from "react";
import type { Order } from "../model/sorting";
import { visibleWindow } from "../model/window";

export interface Column<T> {
  key: string;
  title: string;
  /** What the title does not say. */
  hint?: string;
  /** Also the name to sort by. */
  sortable?: boolean;
  numeric?: boolean;
  /** Which order the first click asks for; left out: the greatest number, the first of the alphabet. */
  first?: Order;
  /** Takes what width is left. */
  wide?: boolean;
  render: (row: T) => ReactNode;
}

export interface VirtualTableProps<T> {
  label: string;
  columns: Column<T>[];
  count: number;
  /** undefined: not there yet. */
  row: (index: number) => T | undefined;
  rowKey: (row: T) => string;
  sort?: { key: string; order: Order };
  onSort?: (key: string, order: Order) => void;
  selected?: ReadonlySet<string>;
  onSelect?: (key: string, on: boolean) => void;
  /** What the check box of a row is called. */
  selectLabel?: (row: T) => string;
  /** All that there are, also those that are not in the page; left out: one by one only. */
  onSelectAll?: (on: boolean) => void;
  onWindow?: (first: number, end: number) => void;
  /** Shown instead of rows when there are none. */
  empty: ReactNode;
  /** Of the page, in rows; a shorter table is as high as it has rows. */
  rowsHigh?: number;
}

const ROW = 38;

export function VirtualTable<T>(props: VirtualTableProps<T>): ReactNode {
  const { columns, count, onWindow } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ scroll: 0, height: 640 });

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const measure = (): void => setView({ scroll: element.scrollTop, height: element.clientHeight });
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", measure);
      observer.disconnect();
    };
  }, []);

  // Whoever asks for another order wants to see what is first in it.
  const order = props.sort ? `${props.sort.key} ${props.sort.order}` : "";
  const before = useRef(order);
  useLayoutEffect(() => {
    if (before.current === order) return;
    before.current = order;
    if (box.current) box.current.scrollTop = 0;
  }, [order]);

  const { first, end } = visibleWindow(view.scroll, view.height, ROW, count);
  useLayoutEffect(() => onWindow?.(first, end), [first, end, onWindow]);

  const body: ReactNode[] = [];
  let others = false;
  for (let index = first; index < end; index++) {
    const row = props.row(index);
    if (row === undefined) {
      body.push(
        <tr key={`wait-${index}`} aria-rowindex={index + 2} className="waiting">
          {props.selected && <td />}
          {columns.map((column) => (
            <td key={column.key}>{column === columns[0] ? "…" : ""}</td>
          ))}
        </tr>,
      );
      continue;
    }
    const key = props.rowKey(row);
    const selected = props.selected?.has(key) ?? false;
    others ||= !selected;
    body.push(
      <tr key={key} aria-rowindex={index + 2} aria-selected={props.selected ? selected : undefined} data-key={key}>
        {props.selected && (
          <td className="select">
            <input
              type="checkbox"
              aria-label={props.selectLabel?.(row) ?? `Select ${key}`}
              checked={selected}
              onChange={(event) => props.onSelect?.(key, event.target.checked)}
            />
          </td>
        )}
        {columns.map((column) => (
          <td key={column.key} className={cellClass(column)}>
            {column.render(row)}
          </td>
        ))}
      </tr>,
    );
  }

  const width = columns.length + (props.selected ? 1 : 0);
  // As many as there are may be others, which were selected before the list changed.
  const all = (props.selected?.size ?? 0) >= count && !others;
  return (
    <div className="table-box" ref={box} tabIndex={0} role="region" aria-label={props.label} style={{ maxHeight: props.rowsHigh ? (props.rowsHigh + 1) * ROW : undefined }}>
      <table aria-rowcount={count + 1} aria-label={props.label}>
        <thead>
          <tr aria-rowindex={1}>
            {props.selected && (
              <th className="select">
                {props.onSelectAll && count > 0 ? (
                  <input
                    type="checkbox"
                    aria-label="Select all that match"
                    checked={all}
                    ref={(box) => { if (box) box.indeterminate = props.selected!.size > 0 && !all; }}
                    onChange={(event) => props.onSelectAll!(event.target.checked)}
                  />
                ) : <span className="hidden">Selected</span>}
              </th>
            )}
            {columns.map((column) => (
              <Head key={column.key} column={column} sort={props.sort} onSort={props.onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {first > 0 && (
            <tr aria-hidden="true" className="space">
              <td colSpan={width} style={{ height: first * ROW }} />
            </tr>
          )}
          {body}
          {end < count && (
            <tr aria-hidden="true" className="space">
              <td colSpan={width} style={{ height: (count - end) * ROW }} />
            </tr>
          )}
        </tbody>
      </table>
      {count === 0 && <div className="table-empty">{props.empty}</div>}
    </div>
  );
}

function cellClass<T>(column: Column<T>): string | undefined {
  return [column.numeric ? "numeric" : "", column.wide ? "wide" : ""].filter(Boolean).join(" ") || undefined;
}

interface HeadProps<T> {
  column: Column<T>;
  sort: { key: string; order: Order } | undefined;
  onSort: ((key: string, order: Order) => void) | undefined;
}

function Head<T>({ column, sort, onSort }: HeadProps<T>): ReactNode {
  if (!column.sortable || !onSort) {
    return <th scope="col" className={cellClass(column)} title={column.hint}>{column.title}</th>;
  }
  const active = sort?.key === column.key;
  const next: Order = active ? (sort.order === "asc" ? "desc" : "asc") : column.first ?? (column.numeric ? "desc" : "asc");
  return (
    <th
      scope="col"
      className={cellClass(column)}
      title={column.hint}
      aria-sort={active ? (sort.order === "asc" ? "ascending" : "descending") : "none"}
    >
      <button type="button" className="sort" onClick={() => onSort(column.key, next)}>
        {column.title}
        <span aria-hidden="true" className="sort-mark">{active ? (sort.order === "asc" ? "▲" : "▼") : ""}</span>
      </button>
    </th>
  );
}
