// The runs of a trial as bands behind its curves: where each began, what ended it, and the pauses between.
import type { Run } from "../api/types";
import type { SeriesMap } from "./series";

export type BandKind = "run" | "failed" | "pause";
export interface Band {
  from: number;
  to: number;
  kind: BandKind;
  run: number;
  label: string;
}

function endOf(run: Run): string {
  switch (run.outcome) {
    case "paused":
      return "paused";
    case "failed":
      if (run.exit_signal) return `killed by signal ${run.exit_signal}`;
      return run.exit_code ? `failed with exit code ${run.exit_code}` : "failed";
    case "lost":
      return "lost";
    case "canceled":
    case "stopped":
      return "stopped";
    case "completed":
      return "completed";
    default:
      if (run.live) return run.started ? "running" : "waits for slots";
      return "ended";
  }
}

function failed(run: Run): boolean {
  return run.outcome === "failed" || run.outcome === "lost";
}

export function runLabel(run: Run): string {
  const begin =
    run.resume_mode === "continue"
      ? "with another trial's weights"
      : run.from
        ? `from step ${run.from.steps_completed}`
        : "from the beginning";
  return `run ${run.run_id} ${begin}: ${endOf(run)}`;
}

/** By steps a run reaches from where it resumed to where the next one did, or to its last report. */
export function bandsBySteps(runs: Run[], series: SeriesMap): Band[] {
  const reached = new Map<number, number>();
  for (const one of series.values()) {
    for (let i = 0; i < one.steps.length; i++) {
      const run = one.runs[i]!;
      if ((reached.get(run) ?? -1) < one.steps[i]!) reached.set(run, one.steps[i]!);
    }
  }
  const bands: Band[] = [];
  let previousEnd = 0;
  for (const run of runs) {
    const begin = run.resume_mode === "continue" ? 0 : (run.from?.steps_completed ?? 0);
    // A run that reported nothing that counts still is to be seen.
    const end = Math.max(begin, reached.get(run.run_id) ?? begin);
    const last = bands[bands.length - 1];
    if (last && begin < last.to) last.to = Math.max(last.from, begin);
    bands.push({ from: begin, to: end, kind: failed(run) ? "failed" : "run", run: run.run_id, label: runLabel(run) });
    previousEnd = Math.max(previousEnd, end);
  }
  return bands;
}

/** By time the gaps between runs are bands too. */
export function bandsByTime(runs: Run[], now: number): Band[] {
  const bands: Band[] = [];
  let before: Run | null = null;
  for (const run of runs) {
    // What still waits for slots, or never got any, has no place in time.
    if (!run.started) continue;
    if (before?.ended && run.started - before.ended > 0) {
      const why = before.outcome === "paused" ? "paused" : failed(before) ? "restarting" : "not running";
      bands.push({ from: before.ended, to: run.started, kind: "pause", run: before.run_id, label: `${why} after run ${before.run_id}` });
    }
    bands.push({
      from: run.started,
      to: run.ended ?? now,
      kind: failed(run) ? "failed" : "run",
      run: run.run_id,
      label: runLabel(run),
    });
    before = run;
  }
  return bands;
}
