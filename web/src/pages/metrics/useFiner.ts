// Long curves come thinned. Where somebody zooms in, that part is read once more, as fine as there are points for it.
import { useEffect, useMemo, useState } from "react";
import { api } from "../../api/client";
import type { Range, View } from "../../components/view";
import { pointsWithin, spliced, stepsWithin, toSeries, type SeriesMap } from "../../model/series";
import type { TrialSeries } from "./useMetrics";

/** Nobody wants the parts that a movement only passes through. */
const REST_MS = 300;

interface Reading {
  data: TrialSeries[];
  version: number;
}

export function useFiner({ data, version }: Reading, view: View, axis: "steps" | "times", points: number): Reading {
  const [range, setRange] = useState<Range | null>(null);
  const [parts, setParts] = useState<{ version: number; of: Map<string, SeriesMap> }>({ version: 0, of: new Map() });

  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const unwatch = view.watch(() => {
      clearTimeout(timer);
      timer = setTimeout(() => setRange(view.get()), REST_MS);
    });
    setRange(view.get());
    return () => {
      clearTimeout(timer);
      unwatch();
    };
  }, [view]);

  const trials = data.map((one) => one.trial).join(",");
  useEffect(() => {
    const abort = new AbortController();
    const found = new Map<string, SeriesMap>();
    const put = (): void => setParts((before) => ({ version: before.version + 1, of: new Map(found) }));
    if (parts.of.size > 0) put();
    for (const { trial, series } of range === null ? [] : data) {
      const steps = stepsWithin(series, axis, range!.from, range!.to);
      // With that many there is nothing finer, or nobody could see it.
      if (!steps || pointsWithin(series, steps.from, steps.to) > points / 2 || pointsWithin(series, -Infinity, Infinity) < points / 4) continue;
      api.metrics(trial, { points, from: steps.from, to: steps.to }, abort.signal).then(
        (page) => {
          if (abort.signal.aborted) return;
          found.set(trial, toSeries(page.metrics));
          put();
        },
        () => undefined, // The coarse curve stays.
      );
    }
    return () => abort.abort();
  }, [range, axis, points, trials]);

  return useMemo(() => ({
    data: parts.of.size === 0 ? data : data.map((one) => {
      const finer = parts.of.get(one.trial);
      return finer ? { ...one, series: spliced(one.series, finer) } : one;
    }),
    version: version + parts.version,
  }), [data, version, parts]);
}
