// JSON with integers of any size. JSON.parse makes doubles of them, which have 53 bits: of a seed of 64 bits the last digits would be
// others. Where people look at what was stored (metadata, hyperparameters, configs), such integers are kept as bigint.
import type { Json } from "./types";

/** What is shown as it was stored. The rest of an answer is computed with, and has doubles. */
const SHOWN = ["metadata", "hparams", "config"];
/** Sixteen digits in a row may be an integer that a double cannot hold. */
const LONG = /\d{16}/;
const LONG_INTEGERS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?/g;
/** In no text that is stored. */
const MARK = "\u0000integer ";
const MARKED = /"\\u0000integer (-?\d+)"/g;

export function parseExactly(text: string): unknown {
  const plain: unknown = JSON.parse(text);
  if (!LONG.test(text)) return plain;
  const marked = text.replace(LONG_INTEGERS, (token) => (/^-?\d{16,}$/.test(token) && !Number.isSafeInteger(Number(token)) ? JSON.stringify(MARK + token) : token));
  const exact: unknown = JSON.parse(marked, (_key, value: unknown) => (typeof value === "string" && value.startsWith(MARK) ? BigInt(value.slice(MARK.length)) : value));
  return withExact(plain, exact);
}

/** The one, with what is shown taken from the other. */
function withExact(plain: unknown, exact: unknown): unknown {
  if (Array.isArray(plain)) return plain.map((item, i) => withExact(item, (exact as unknown[])[i]));
  if (plain === null || typeof plain !== "object") return plain;
  const from = exact as Record<string, unknown>;
  return Object.fromEntries(Object.entries(plain).map(([key, value]) => [key, SHOWN.includes(key) ? from[key] : withExact(value, from[key])]));
}

/** JSON.stringify of it, with all digits. */
export function writeExactly(value: Json | undefined, indent?: number): string {
  const text = JSON.stringify(value, (_key, item: unknown) => (typeof item === "bigint" ? MARK + item.toString() : item), indent) as string | undefined;
  return (text ?? "").replace(MARKED, "$1");
}
