import type { NumberOrText } from "../api/types";
import { toNumber } from "./format";

export type Order = "asc" | "desc";

/** Numbers by size, text by letters; what is missing or not a number is last in both orders. */
export function compareValues(a: NumberOrText | undefined | boolean, b: NumberOrText | undefined | boolean, order: Order): number {
  const sign = order === "asc" ? 1 : -1;
  const left = rank(a);
  const right = rank(b);
  if (left === null || right === null) return left === right ? 0 : left === null ? 1 : -1;
  if (typeof left === "number" && typeof right === "number") return sign * (left < right ? -1 : left > right ? 1 : 0);
  return sign * String(left).localeCompare(String(right), "en", { numeric: true });
}

function rank(value: NumberOrText | undefined | boolean): number | string | null {
  if (value === null || value === undefined || value === "NaN") return null;
  if (typeof value === "boolean") return value ? 1 : 0;
  if (typeof value === "number") return Number.isNaN(value) ? null : value;
  const number = toNumber(value);
  return Number.isNaN(number) ? value : number;
}

export function sortBy<T>(rows: readonly T[], key: (row: T) => NumberOrText | undefined | boolean, order: Order): T[] {
  return [...rows].sort((a, b) => compareValues(key(a), key(b), order));
}
