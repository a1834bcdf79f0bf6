// The curves of some trials, kept up to date: read once, then lengthened by events. A run that went back makes them be read again.
import { useEffect, useRef, useState } from "react";
import { api, ApiError } from "../../api/client";
import { live } from "../../api/live";
import type { JsonObject, MetricReport } from "../../api/types";
import { addReports, toSeries, type SeriesMap } from "../../model/series";

export interface TrialSeries {
  trial: string;
  series: SeriesMap;
  /** Metrics that the trial has, also those that were not read yet. */
  error?: ApiError;
}

/** More often than this nobody sees a difference. */
const SHOW_MS = 250;

export function useMetrics(trials: string[], points: number): { data: TrialSeries[]; version: number; loading: boolean; reload: () => void } {
  const key = `${trials.join(",")} ${points}`;
  const [shown, setShown] = useState({ key, version: 0, loading: true });
  const store = useRef(new Map<string, TrialSeries>());
  const readAll = useRef<() => void>(() => {});

  useEffect(() => {
    const abort = new AbortController();
    const map = new Map<string, TrialSeries>();
    store.current = map;
    const early = new Map<string, MetricReport[]>();
    const reading = new Set<string>();
    const again = new Set<string>();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let pending = trials.length;
    const show = (): void => {
      if (timer !== undefined || abort.signal.aborted) return;
      timer = setTimeout(() => {
        timer = undefined;
        setShown((before) => ({ key, version: before.version + 1, loading: pending > 0 }));
      }, SHOW_MS);
    };
    const showNow = (): void => setShown((before) => ({ key, version: before.version + 1, loading: pending > 0 }));
    const read = async (trial: string): Promise<void> => {
      if (reading.has(trial)) {
        again.add(trial);
        return;
      }
      reading.add(trial);
      early.set(trial, []);
      let lost = false;
      try {
        const page = await api.metrics(trial, { points }, abort.signal);
        const series = toSeries(page.metrics);
        // Events that came while it was read: those it lacks are added, and one that went back is seen.
        lost = !addReports(series, early.get(trial)!);
        map.set(trial, { trial, series });
      } catch (caught) {
        if (abort.signal.aborted) return;
        const before = map.get(trial)?.series ?? new Map();
        map.set(trial, { trial, series: before, error: caught instanceof ApiError ? caught : new ApiError(0, "internal", String(caught)) });
      }
      pending--;
      reading.delete(trial);
      early.delete(trial);
      showNow();
      if (again.delete(trial) || lost) setTimeout(() => { if (!abort.signal.aborted) void read(trial); }, SHOW_MS);
    };
    readAll.current = () => trials.forEach((trial) => void read(trial));
    readAll.current();

    const unlisten = live.listen({
      onEvent: (event) => {
        if (!trials.includes(event.trial)) return;
        if (event.kind === "run") {
          // A new run may archive what came after the step it resumes from.
          void read(event.trial);
          return;
        }
        if (event.kind !== "metrics") return;
        const report = toReport(event.body ?? {}, event.run_id ?? 0, event.time);
        if (!report) return;
        const waiting = early.get(event.trial);
        if (waiting) waiting.push(report);
        const have = map.get(event.trial);
        if (!have || waiting) return;
        if (addReports(have.series, [report])) show();
        else void read(event.trial);
      },
      onReset: () => readAll.current(),
      onOpen: () => {
        for (const [trial, one] of map) if (one.error) void read(trial);
      },
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
      unlisten();
    };
  }, [key]);

  const fresh = shown.key === key;
  return {
    data: fresh ? trials.map((trial) => store.current.get(trial)).filter((one) => one !== undefined) : [],
    version: shown.version,
    loading: !fresh || shown.loading,
    reload: () => readAll.current(),
  };
}

function toReport(body: JsonObject, run: number, time: number): MetricReport | null {
  const { group, steps_completed: step, values } = body;
  if (typeof group !== "string" || typeof step !== "number") return null;
  if (values === null || typeof values !== "object" || Array.isArray(values)) return null;
  return { group, steps_completed: step, run_id: run, time, values };
}
