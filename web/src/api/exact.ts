// JSON with integers of any size. JSON.parse makes doubles of them, which have 53 bits: of a seed of 64 bits the last digits would be
// others. Where people look at what was stored (metadata, hyperparameters, configs), such integers are kept as bigint.
import type { Json } from "./types";

/** What is shown as it was stored. The rest of an answer is computed with, and has doubles. */
const SHOWN = ["metadata", "hparams", "config"];
/** Below these, people chose the names: one may be "config". */
const COMPUTED = ["values", "metrics"];
/** Sixteen digits that are all of a number may be an integer that a double cannot hold. Most doubles have as many in their fractions. */
const LONG = /(?:^|[[:,\s-])\d{16,}(?:[\s,\]}]|$)/;
const LONG_INTEGERS = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
const MARK = "\u0000integer ";
const MARKED = /"\\u0000integer (-?\d+)"/g;

export function parseExactly(text: string): unknown {
  const plain: unknown = JSON.parse(text);
  return LONG.test(text) ? withExact(plain, parseAllExactly(text)) : plain;
}

/** With bigints wherever they are needed. */
export function parseAllExactly(text: string): unknown {
  const plain: unknown = JSON.parse(text); // what is no JSON must not become some by the marks
  if (!LONG.test(text)) return plain;
  const marked = text.replace(LONG_INTEGERS, (token) => (/^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? JSON.stringify(MARK + token) : token));
  return JSON.parse(marked, (_key, value: unknown) => (typeof value === "string" && value.startsWith(MARK) ? integerOf(value) : value)) as unknown;
}

/** A text may begin like a mark and be none. */
function integerOf(text: string): bigint | string {
  const digits = text.slice(MARK.length);
  return /^-?\d+$/.test(digits) ? BigInt(digits) : text;
}

/** The one, with what is shown taken from the other. */
function withExact(plain: unknown, exact: unknown): unknown {
  if (Array.isArray(plain)) return plain.map((item, i) => withExact(item, (exact as unknown[])[i]));
  if (plain === null || typeof plain !== "object") return plain;
  const from = exact as Record<string, unknown>;
  return Object.fromEntries(Object.entries(plain).map(([key, value]) => [key, COMPUTED.includes(key) ? value : SHOWN.includes(key) ? from[key] : withExact(value, from[key])]));
}

/** JSON.stringify of it, with all digits. */
export function writeExactly(value: Json | undefined, indent?: number): string {
  const text = JSON.stringify(value, (_key, item: unknown) => (typeof item === "bigint" ? MARK + item.toString() : item), indent) as string | undefined;
  return (text ?? "").replace(MARKED, "$1");
}
