// Lines of a log in the page: in the order of their ids, each once, and not more than a browser likes to hold.
import type { LogLine } from "../api/types";

export const MOST_LINES = 50_000;

/** Puts lines together that are each in order; cuts at the end that is not looked at. */
export function mergeLines(have: LogLine[], more: LogLine[], keep: "newest" | "oldest", most = MOST_LINES): LogLine[] {
  if (more.length === 0) return have;
  let out: LogLine[];
  if (have.length === 0 || more[0]!.id > have[have.length - 1]!.id) out = have.concat(more);
  else if (more[more.length - 1]!.id < have[0]!.id) out = more.concat(have);
  else {
    const byId = new Map<number, LogLine>();
    for (const line of have) byId.set(line.id, line);
    for (const line of more) byId.set(line.id, line);
    out = [...byId.values()].sort((a, b) => a.id - b.id);
  }
  if (out.length <= most) return out;
  return keep === "newest" ? out.slice(out.length - most) : out.slice(0, most);
}

// What terminals colour by: the page shows the text alone.
const ANSI = /\u001b\[[0-?]*[ -/]*[@-~]/g;
/** A line as a terminal would leave it: of a progress bar that was written over itself the last state. */
export function plainText(text: string): string {
  const plain = text.includes("\u001b") ? text.replace(ANSI, "") : text;
  return plain.includes("\r") ? plain.replace(/\r+$/, "").replace(/^.*\r/s, "") : plain;
}
