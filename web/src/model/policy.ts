// The retention policy as a form: texts of fields to the object that the master takes, and back.
import type { Policy } from "../api/types";

export interface PolicyForm {
  keep_last: string;
  keep_best: string;
  experiment_best: string;
  keep_every: string;
  score: string;
  order: "" | "min" | "max";
  max_age_days: string;
  max_gib: string;
  experiment_gib: string;
}

const text = (value: number | null | undefined): string => (value === null || value === undefined ? "" : String(value));

export function toForm(policy: Policy): PolicyForm {
  const days = policy.max_age_seconds;
  const gib = (bytes: number | null | undefined): string => (bytes === null || bytes === undefined ? "" : String(bytes / 2 ** 30));
  return {
    keep_last: text(policy.keep_last),
    keep_best: text(policy.keep_best),
    experiment_best: text(policy.experiment_best),
    keep_every: text(policy.keep_every),
    score: policy.score ?? "",
    order: policy.order ?? "",
    max_age_days: days === null || days === undefined ? "" : String(days / 86400),
    max_gib: gib(policy.max_bytes),
    experiment_gib: gib(policy.experiment_bytes),
  };
}

export type FormResult = { ok: true; policy: Policy } | { ok: false; field: keyof PolicyForm; message: string };

export function fromForm(form: PolicyForm): FormResult {
  const policy: Policy = {};
  for (const field of ["keep_last", "keep_best", "experiment_best", "keep_every"] as const) {
    const value = form[field].trim();
    if (value === "") continue;
    if (!/^\d+$/.test(value) || Number(value) < 1) {
      return { ok: false, field, message: "A whole number, at least 1; empty for no such rule" };
    }
    policy[field] = Number(value);
  }
  if (form.score.trim() !== "") policy.score = form.score.trim();
  if (form.order !== "") policy.order = form.order;
  const days = form.max_age_days.trim();
  if (days !== "") {
    if (!(Number(days) >= 0)) return { ok: false, field: "max_age_days", message: "A number of days; empty for no limit" };
    policy.max_age_seconds = Number(days) * 86400;
  }
  for (const [field, rule] of [["max_gib", "max_bytes"], ["experiment_gib", "experiment_bytes"]] as const) {
    const gib = form[field].trim();
    if (gib === "") continue;
    if (!(Number(gib) >= 0)) return { ok: false, field, message: "A number of GiB; empty for no limit" };
    policy[rule] = Math.round(Number(gib) * 2 ** 30);
  }
  return { ok: true, policy };
}
