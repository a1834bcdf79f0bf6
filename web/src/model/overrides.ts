// Config overrides as people type them: one "key.of.object = value" a line. The value is JSON, or else what a plain
// scalar is in a config file: True and .5 are no strings.
import { parseAllExactly } from "../api/exact";
import type { Json, JsonObject } from "../api/types";

export type Parsed = { ok: true; value: JsonObject } | { ok: false; message: string };

export function parseOverrides(text: string): Parsed {
  const root: JsonObject = {};
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i]!.trim();
    if (line === "" || line.startsWith("#")) continue;
    const equals = line.indexOf("=");
    if (equals <= 0) return { ok: false, message: `Line ${i + 1}: write key = value, as in hyperparameters.lr = 0.1` };
    const keys = line.slice(0, equals).trim().split(".");
    if (keys.some((key) => key === "")) return { ok: false, message: `Line ${i + 1}: a part of the key is empty` };
    const problem = put(root, keys, parseValue(line.slice(equals + 1).trim()));
    if (problem) return { ok: false, message: `Line ${i + 1}: ${problem}` };
  }
  return { ok: true, value: root };
}

function parseValue(text: string): Json {
  try {
    return parseAllExactly(text) as Json;
  } catch {
    return parseScalar(text);
  }
}

// YAML's core schema, as far as JSON does not know it.
function parseScalar(text: string): Json {
  if (/^(True|TRUE)$/.test(text)) return true;
  if (/^(False|FALSE)$/.test(text)) return false;
  if (/^(~|Null|NULL)$/.test(text)) return null;
  if (/^0x[0-9a-fA-F]{1,16}$/.test(text)) return Number.isSafeInteger(Number(text)) ? Number(text) : BigInt(text);
  if (/^[-+]?(\.\d+|\d+\.?\d*)([eE][-+]?\d+)?$/.test(text) && Number.isFinite(Number(text))) return Number(text);
  return text;
}

function put(root: JsonObject, keys: string[], value: Json): string | null {
  let at = root;
  for (const key of keys.slice(0, -1)) {
    if (!Object.hasOwn(at, key)) define(at, key, {});
    const next = at[key]!;
    if (next === null || typeof next !== "object" || Array.isArray(next)) return `${key} was given a value above`;
    at = next;
  }
  define(at, keys[keys.length - 1]!, value);
  return null;
}

// Plain assignment would lose a key that is called __proto__.
function define(object: JsonObject, key: string, value: Json): void {
  Object.defineProperty(object, key, { value, enumerable: true, configurable: true, writable: true });
}
