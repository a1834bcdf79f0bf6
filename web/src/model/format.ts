// How numbers, bytes and times are written for people. English, without the browser's locale, so that two people see the same.
import { writeExactly } from "../api/exact";
import type { Json, NumberOrText } from "../api/types";

export function formatCount(value: number): string {
  return Math.round(value).toString().replace(/\B(?=(\d{3})+(?!\d))/g, ",");
}

/** One that was given no name is called by its number, which need not be said twice. */
export function isNamed(experiment: { id: string; name: string }): boolean {
  return experiment.name !== `experiment ${experiment.id}`;
}

export function experimentTitle(experiment: { id: string; name: string }): string {
  return isNamed(experiment) ? `${experiment.name} (${experiment.id})` : experiment.name;
}

/** In a row of others: "7 mnist". */
export function numberedName(experiment: { id: string; name: string }): string {
  return isNamed(experiment) ? `${experiment.id} ${experiment.name}` : experiment.name;
}

export function formatBytes(bytes: number | null | undefined): string {
  if (bytes === null || bytes === undefined) return "–";
  if (bytes < 1024) return `${bytes} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB"];
  let value = bytes;
  let unit = -1;
  do {
    value /= 1024;
    unit++;
  } while (value >= 1023.95 && unit < units.length - 1);
  return `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ${units[unit]}`;
}

export function formatDuration(seconds: number | null | undefined): string {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return "–";
  const total = Math.max(0, Math.round(seconds));
  if (total < 60) return `${total} s`;
  const minutes = Math.floor(total / 60);
  if (minutes < 60) return `${minutes} min ${total % 60} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${minutes % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** How long a trial or an experiment ran, up to now while it does. */
export function ranFor(row: { ran?: number; running_since?: number | null; duration?: number | null }, now: number): number | null {
  if (!row.running_since) return row.duration ?? null;
  return (row.ran ?? 0) + Math.max(0, now - row.running_since);
}

/** What durations count, for titles. */
export const DURATION_HINT = "How long it ran: without pauses and without waiting for slots";
export const STARTED_HINT = "When processes of it were first started, after it got its slots";

export function formatAge(time: number | null | undefined, now: number): string {
  if (time === null || time === undefined) return "–";
  const seconds = now - time;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} d ago`;
}

const two = (value: number): string => value.toString().padStart(2, "0");

/** The local time, as 2026-11-16 09:05:07. */
export function formatTime(time: number | null | undefined): string {
  if (time === null || time === undefined) return "–";
  const date = new Date(time * 1000);
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Where seconds do not matter: 2026-11-16 09:05. */
export function formatMinute(time: number | null | undefined): string {
  return formatTime(time).replace(/:\d\d$/, "");
}

/** Marks of a time axis: as much of the time as tells two neighbours apart. */
export function formatTicks(times: (number | null)[]): string[] {
  const known = times.filter((time) => time !== null);
  const apart = known.length > 1 ? known[1]! - known[0]! : 60;
  let day = "";
  return times.map((time) => {
    if (time === null) return "";
    const [date, clock] = formatTime(time).split(" ") as [string, string];
    if (apart >= 86400) return date;
    const shown = apart < 60 ? clock : clock.slice(0, 5);
    const text = date === day ? shown : `${shown}\n${date}`;
    day = date;
    return text;
  });
}

export function formatClock(time: number): string {
  const date = new Date(time * 1000);
  const millis = Math.floor(date.getMilliseconds()).toString().padStart(3, "0");
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}.${millis}`;
}

/** A metric or hyperparameter: four significant digits, no digits lost of integers. */
export function formatNumber(value: NumberOrText | undefined): string {
  if (value === null || value === undefined) return "–";
  if (typeof value === "string") return value;
  if (Number.isSafeInteger(value)) return value.toString();
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(3);
  return Number(value.toPrecision(4)).toString();
}

/** Marks of an axis: as many digits as tell neighbours apart, whatever their size; 1,000 has a comma from 10,000 on. */
export function formatMarks(marks: (number | null)[]): string[] {
  const known = marks.filter((mark) => mark !== null);
  const most = Math.max(0, ...known.map(Math.abs));
  const gaps = known.slice(1).map((mark, i) => Math.abs(mark - known[i]!)).filter((gap) => gap > 0);
  const gap = Math.min(most || 1, ...gaps);
  const digits = Math.ceil(Math.log10(most / gap) - 1e-9) + 1; // of the greatest, to tell it from its neighbour
  const exponent = most > 0 && (most >= 1e6 || most < 1e-3) && digits <= 5;
  // One more than the size of the gap has: 2.5 is a gap, too.
  const decimals = Math.min(12, Math.max(0, 1 - Math.floor(Math.log10(gap) + 1e-9)));
  return marks.map((mark) => {
    if (mark === null) return "";
    if (mark === 0) return "0";
    if (exponent) return mark.toExponential(digits).replace(/\.?0+e/, "e");
    const [whole, part] = Math.abs(mark).toFixed(decimals).split(".") as [string, string?];
    const fraction = (part ?? "").replace(/0+$/, "");
    return `${mark < 0 ? "-" : ""}${Number(whole) >= 10_000 ? formatCount(Number(whole)) : whole}${fraction === "" ? "" : `.${fraction}`}`;
  });
}

/** How far apart marks of an axis of steps have to be, in points, for numbers up to this one. */
export function roomForStep(step: number): number {
  return Math.max(50, formatCount(Math.abs(step)).length * 7.5 + 14);
}

/** What JSON cannot hold is a string there. Anything that is no number is NaN. */
export function toNumber(value: Json | undefined): number {
  if (typeof value === "number" || typeof value === "bigint") return Number(value);
  if (value === "Infinity") return Infinity;
  if (value === "-Infinity") return -Infinity;
  return NaN;
}

export function formatJson(value: Json | undefined): string {
  if (value === undefined) return "–";
  if (typeof value === "string") return value;
  if (typeof value === "number") return formatNumber(value);
  return writeExactly(value);
}

/** Whether a column of these is one of numbers: they are set flush right. */
export function allNumbers(values: (Json | undefined)[]): boolean {
  return values.every((value) => value === undefined || typeof value === "number" || typeof value === "bigint");
}

/** Something that a service says of itself: its name as words, its unit (the end of the name) with the value. */
export function formatFact(name: string, value: Json | undefined): [string, string] {
  const [, plain, unit] = /^(.+?)_(seconds|bytes)$/.exec(name) ?? [null, name, ""];
  const words = plain!.replaceAll("_", " ");
  const title = words.charAt(0).toUpperCase() + words.slice(1);
  if (typeof value === "boolean") return [title, value ? "yes" : "no"];
  if (typeof value !== "number") return [title, formatJson(value)];
  if (unit === "bytes") return [title, formatBytes(value)];
  if (unit === "seconds") return [title, value < 60 ? `${formatNumber(value)} s` : formatDuration(value)];
  return [title, Number.isInteger(value) ? formatCount(value) : formatNumber(value)];
}

export function formatPercent(fraction: number): string {
  const percent = Math.max(0, Math.min(1, fraction)) * 100;
  // Almost done is not done.
  return `${fraction < 1 ? Math.min(99, Math.floor(percent)) : 100} %`;
}

export function formatShape(shape: number[]): string {
  return shape.length === 0 ? "scalar" : shape.join(" × ");
}

export function shortId(id: string): string {
  return id.length > 12 ? id.slice(0, 8) : id;
}
