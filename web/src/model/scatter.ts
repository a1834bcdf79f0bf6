// Points of a scatter plot: a hyperparameter that is a number along an axis, any other one in columns of its values.
import type { Json } from "../api/types";
import { formatJson, formatNumber } from "./format";

export interface ScatterPoint {
  id: string;
  y: number;
  px: number;
  py: number;
  xLabel: string;
}
export interface Tick {
  at: number;
  label: string;
}
export interface Scatter {
  points: ScatterPoint[];
  xTicks: Tick[];
  yTicks: Tick[];
  /** Trials that have no place. */
  left: number;
}

const LEFT = 76;
const RIGHT = 24;
const TOP = 20;
const BOTTOM = 48;
/** Of a letter, and of the shortest label that says something, in points. */
const LETTER = 7;
const LEAST_LABEL = 42;

export function placePoints(rows: { id: string; x: Json; y: number }[], size: { width: number; height: number; log: boolean }): Scatter {
  const numeric = rows.every((row) => typeof row.x === "number" || typeof row.x === "bigint" || row.x === null);
  const usable = rows.filter((row) => Number.isFinite(row.y) && row.x !== null && (!numeric || !size.log || (row.x as number) > 0));
  const wide = size.width - LEFT - RIGHT;
  const high = size.height - TOP - BOTTOM;
  const ys = usable.map((row) => row.y);
  const [y0, y1] = [Math.min(...ys), Math.max(...ys)];
  const placeY = (y: number): number => TOP + (y1 > y0 ? (1 - (y - y0) / (y1 - y0)) * high : high / 2);

  let placeX: (x: Json) => number;
  let xTicks: Tick[];
  if (numeric) {
    const scale = (x: number): number => (size.log ? Math.log10(x) : x);
    const xs = usable.map((row) => scale(Number(row.x)));
    const [x0, x1] = [Math.min(...xs), Math.max(...xs)];
    const at = (x: number): number => LEFT + (x1 > x0 ? ((x - x0) / (x1 - x0)) * wide : wide / 2);
    placeX = (x) => at(scale(Number(x)));
    const whole = xs.every(Number.isInteger) && !size.log;
    xTicks = (size.log ? logTicks(x0, x1) : ticks(x0, x1, whole)).map((x) => ({ at: at(x), label: formatNumber(size.log ? 10 ** x : x) }));
    xTicks = withRoom(xTicks);
  } else {
    const values = [...new Set(usable.map((row) => formatJson(row.x)))].sort();
    const at = (value: string): number => LEFT + ((values.indexOf(value) + 0.5) / values.length) * wide;
    placeX = (x) => at(formatJson(x));
    // As many of them as have room beside each other, each cut to what is left for it.
    const every = Math.ceil((values.length * LEAST_LABEL) / wide);
    const letters = Math.min(14, Math.floor((wide / values.length) * every / LETTER) - 1);
    xTicks = values.filter((_, index) => index % every === 0).map((value) => ({ at: at(value), label: value.length > letters ? `${value.slice(0, letters - 1)}…` : value }));
  }
  return {
    points: usable.map((row) => ({ id: row.id, y: row.y, px: placeX(row.x), py: placeY(row.y), xLabel: formatJson(row.x) })),
    xTicks: usable.length === 0 ? [] : xTicks,
    yTicks: usable.length === 0 ? [] : ticks(y0, y1).map((y) => ({ at: placeY(y), label: formatNumber(y) })),
    left: rows.length - usable.length,
  };
}

/** All of them, or every second, third, …: as many as do not run into each other. */
function withRoom(marks: Tick[]): Tick[] {
  for (let every = 1; every < marks.length; every++) {
    const some = marks.filter((_, index) => index % every === 0);
    if (some.slice(1).every((mark, i) => mark.at - some[i]!.at >= ((mark.label.length + some[i]!.label.length) / 2 + 1) * LETTER)) return some;
  }
  return marks.slice(0, 1);
}

/** Round numbers between the two, about five: a reader counts by them. `whole`: there is nothing between 2 and 3. */
function ticks(from: number, to: number, whole = false): number[] {
  if (!(to > from)) return [from];
  const rough = (to - from) / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const by = Math.max(whole ? 1 : 0, power * ([1, 2, 5].find((one) => one * power >= rough) ?? 10));
  const first = Math.ceil(from / by);
  return Array.from({ length: Math.floor(to / by) - first + 1 }, (_, n) => (first + n) * by);
}

/** The same of logarithms: powers of ten, and what is between them where there are few. */
function logTicks(from: number, to: number): number[] {
  if (!(to > from)) return [from];
  const inside = (steps: number[]): number[] => {
    const found: number[] = [];
    for (let power = Math.floor(from); power <= to; power++) found.push(...steps.map((step) => power + Math.log10(step)));
    return found.filter((one) => one >= from && one <= to);
  };
  const decades = inside([1]);
  if (decades.length > 1) return decades;
  const more = inside([1, 2, 5]);
  return more.length > 1 ? more : [from, to];
}
