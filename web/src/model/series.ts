// Curves: from reports to columns of numbers, smoothed, thinned for the screen.
import type { Json, JsonObject, MetricReport } from "../api/types";
import { toNumber } from "./format";

export interface Series {
  group: string;
  name: string;
  steps: number[];
  times: number[];
  /** NaN where the report had no finite number. */
  values: number[];
  runs: number[];
}

/** What is in nested reports, under names like "val/loss". */
export function eachLeaf(values: JsonObject, into: (name: string, value: Json) => void, prefix = ""): void {
  for (const [key, value] of Object.entries(values)) {
    const name = prefix === "" ? key : `${prefix}/${key}`;
    if (value !== null && typeof value === "object" && !Array.isArray(value)) eachLeaf(value, into, name);
    else into(name, value);
  }
}

function isNumber(value: Json): value is number | string {
  return typeof value === "number" || value === "NaN" || value === "Infinity" || value === "-Infinity";
}

export type SeriesMap = Map<string, Series>;

export function seriesKey(group: string, name: string): string {
  return `${group}\n${name}`;
}

/** Adds reports that are in the order of steps. False: one went back, so that a run was resumed and all has to be read again. */
export function addReports(map: SeriesMap, reports: MetricReport[]): boolean {
  let inOrder = true;
  for (const report of reports) {
    if (report.archived) continue;
    eachLeaf(report.values, (name, value) => {
      if (!isNumber(value)) return;
      const key = seriesKey(report.group, name);
      let series = map.get(key);
      if (!series) {
        series = { group: report.group, name, steps: [], times: [], values: [], runs: [] };
        map.set(key, series);
      }
      const last = series.steps.length - 1;
      if (last >= 0 && report.steps_completed <= series.steps[last]!) {
        // The same report once more (an event that a read had already seen) is no step back.
        if (report.steps_completed < series.steps[last]! || report.run_id !== series.runs[last]!) inOrder = false;
        return;
      }
      series.steps.push(report.steps_completed);
      series.times.push(report.time);
      series.values.push(toNumber(value));
      series.runs.push(report.run_id);
    });
  }
  return inOrder;
}

export function toSeries(reports: MetricReport[]): SeriesMap {
  const map: SeriesMap = new Map();
  const sorted = [...reports].sort((a, b) => a.steps_completed - b.steps_completed);
  addReports(map, sorted);
  return map;
}

/** Metrics in the order in which they are shown: those of validation too, each name once. */
export function metricNames(maps: Iterable<SeriesMap>): string[] {
  const names = new Set<string>();
  for (const map of maps) for (const series of map.values()) names.add(series.name);
  return [...names].sort((a, b) => a.localeCompare(b));
}

/** An exponential moving average without the pull to zero at the beginning; gaps stay gaps. weight: 0 … 0.999. */
export function smooth(values: ArrayLike<number>, weight: number): number[] {
  const out = new Array<number>(values.length);
  if (weight <= 0) {
    for (let i = 0; i < values.length; i++) out[i] = values[i]!;
    return out;
  }
  let average = 0;
  let norm = 0;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (!Number.isFinite(value)) {
      out[i] = NaN;
      continue;
    }
    average = average * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    out[i] = average / norm;
  }
  return out;
}

function lowerBound(xs: ArrayLike<number>, x: number): number {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle]! < x) low = middle + 1;
    else high = middle;
  }
  return low;
}

export interface Points {
  x: number[];
  y: (number | null)[];
}

/**
 * What a screen of that many columns can show of the curve between from and to: of each column the first, least, greatest and last
 * value, in their order, so that spikes stay and nothing moves when the view does. One point outside on each side, so that
 * lines leave the view.
 */
export function thin(xs: ArrayLike<number>, ys: ArrayLike<number>, from: number, to: number, columns: number): Points {
  const begin = Math.max(0, lowerBound(xs, from) - 1);
  let end = lowerBound(xs, to);
  while (end < xs.length && xs[end]! <= to) end++;
  end = Math.min(xs.length, end + 1);
  const x: number[] = [];
  const y: (number | null)[] = [];
  const put = (i: number): void => {
    const value = ys[i]!;
    x.push(xs[i]!);
    y.push(Number.isFinite(value) ? value : null);
  };
  if (end - begin <= columns * 4) {
    for (let i = begin; i < end; i++) put(i);
    return { x, y };
  }
  // Columns at fixed places of the axis, not of the view: panning shifts them without changing them.
  const width = columnWidth(to - from, columns);
  let i = begin;
  while (i < end) {
    const column = Math.floor(xs[i]! / width);
    const first = i;
    let least = -1;
    let greatest = -1;
    let gap = -1;
    let last = i;
    while (i < end && Math.floor(xs[i]! / width) === column) {
      const value = ys[i]!;
      if (Number.isFinite(value)) {
        if (least < 0 || value < ys[least]!) least = i;
        if (greatest < 0 || value > ys[greatest]!) greatest = i;
      } else if (gap < 0) {
        gap = i;
      }
      last = i;
      i++;
    }
    let previous = -1;
    for (const at of [first, least, greatest, gap, last].filter((at) => at >= 0).sort((a, b) => a - b)) {
      if (at !== previous) put(at);
      previous = at;
    }
  }
  return { x, y };
}

/** A power of two (or of one half) of steps, so that zooming changes columns rarely. */
function columnWidth(range: number, columns: number): number {
  const wanted = range / columns;
  return wanted > 0 ? 2 ** Math.ceil(Math.log2(wanted)) : 1;
}

/** The steps of all curves between from and to on the axis, with a neighbour on each side; null when there are none. */
export function stepsWithin(map: SeriesMap, axis: "steps" | "times", from: number, to: number): { from: number; to: number } | null {
  let least = Infinity;
  let greatest = -Infinity;
  for (const series of map.values()) {
    const xs = series[axis];
    if (xs.length === 0 || xs[0]! > to || xs[xs.length - 1]! < from) continue;
    const begin = Math.max(0, lowerBound(xs, from) - 1);
    const end = Math.min(xs.length - 1, lowerBound(xs, to));
    least = Math.min(least, series.steps[begin]!);
    greatest = Math.max(greatest, series.steps[end]!);
  }
  return least <= greatest ? { from: least, to: greatest } : null;
}

/** How many points the longest curve has between two steps. */
export function pointsWithin(map: SeriesMap, from: number, to: number): number {
  let most = 0;
  for (const { steps } of map.values()) most = Math.max(most, lowerBound(steps, to + 1) - lowerBound(steps, from));
  return most;
}

/** The curves with a finer reading of a part of them in its place. What came after it was read stays. */
export function spliced(coarse: SeriesMap, finer: SeriesMap): SeriesMap {
  const out: SeriesMap = new Map(coarse);
  for (const [key, part] of finer) {
    const whole = coarse.get(key);
    if (!whole || part.steps.length === 0) continue;
    const begin = lowerBound(whole.steps, part.steps[0]!);
    const end = lowerBound(whole.steps, part.steps[part.steps.length - 1]! + 1);
    const join = (column: "steps" | "times" | "values" | "runs"): number[] =>
      whole[column].slice(0, begin).concat(part[column], whole[column].slice(end));
    out.set(key, { ...whole, steps: join("steps"), times: join("times"), values: join("values"), runs: join("runs") });
  }
  return out;
}

/** How many values of a curve were not finite: they are gaps, and a gap should be said. */
export function countGaps(values: ArrayLike<number>): number {
  let gaps = 0;
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i]!)) gaps++;
  return gaps;
}

/** How many values of a curve a log scale has no place for. */
export function countNotPositive(values: ArrayLike<number>): number {
  let count = 0;
  for (let i = 0; i < values.length; i++) if (values[i]! <= 0 && values[i]! > -Infinity) count++;
  return count;
}

/** The value of a curve at x, between its neighbours; NaN outside. */
export function valueAt(xs: ArrayLike<number>, ys: ArrayLike<number>, x: number): number {
  if (xs.length === 0) return NaN;
  const right = lowerBound(xs, x);
  if (right < xs.length && xs[right] === x) return ys[right]!;
  if (right === 0 || right === xs.length) return NaN;
  const x0 = xs[right - 1]!;
  const share = (x - x0) / (xs[right]! - x0);
  return ys[right - 1]! * (1 - share) + ys[right]! * share;
}

/** The same, and outside of the curve that of its nearer end: of a checkpoint that was saved after the last report. */
export function nearestValue(xs: ArrayLike<number>, ys: ArrayLike<number>, x: number): number {
  if (xs.length === 0) return NaN;
  return valueAt(xs, ys, Math.min(Math.max(x, xs[0]!), xs[xs.length - 1]!));
}

/** The power of ten in whose units curves are drawn: 0 but for values so large or so small that an axis has no marks for them. */
export function powerOf(curves: { y: ArrayLike<number> }[]): number {
  let most = 0;
  for (const { y } of curves) {
    for (let i = 0; i < y.length; i++) {
      const size = Math.abs(y[i]!);
      if (size > most && size < Infinity) most = size;
    }
  }
  const power = most === 0 ? 0 : Math.max(-323, Math.floor(Math.log10(most))); // 10 ** -324 is 0
  return power >= 30 || power <= -25 ? power : 0;
}

/** What a number of a chart in such units is. */
export function fromPower(value: number | null | undefined, power: number): number | undefined {
  if (value === null || value === undefined) return undefined;
  return Math.max(-Number.MAX_VALUE, Math.min(Number.MAX_VALUE, value * 10 ** power));
}

/** The mark of an axis in such units: "2.5" in those of 300 is "2.5e300". */
export function inPower(mark: string, power: number): string {
  const [, digits, exponent] = /^(-?[\d.,]+)(?:e([-+]?\d+))?$/.exec(mark) ?? [];
  if (power === 0 || digits === undefined || Number(digits) === 0) return mark;
  return `${digits}e${Number(exponent ?? 0) + power}`;
}
