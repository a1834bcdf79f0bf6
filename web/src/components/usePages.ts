// A long list on the master of which the pages in view are read: again when an event says that it changed, and only those.
import { useCallback, useEffect, useRef, useState } from "react";
import { ApiError } from "../api/client";
import { live } from "../api/live";
import type { MasterEvent } from "../api/types";
import { pagesOf } from "../model/window";

export const PAGE_SIZE = 100;
const RELOAD_MS = 1000;

export interface Pages<T> {
  /** undefined: not known yet. */
  total: number | undefined;
  row: (index: number) => T | undefined;
  want: (first: number, end: number) => void;
  error: ApiError | undefined;
  reload: () => void;
  /** All rows that are in the page now. */
  loaded: () => T[];
}

export function usePages<T>(
  key: string,
  read: (offset: number, limit: number, signal: AbortSignal) => Promise<{ rows: T[]; total: number }>,
  concerns: (event: MasterEvent) => boolean,
): Pages<T> {
  const [, render] = useState(0);
  const reader = useRef(read);
  reader.current = read;
  const filter = useRef(concerns);
  filter.current = concerns;
  const state = useRef({ key: "", pages: new Map<number, T[]>(), total: undefined as number | undefined, error: undefined as ApiError | undefined });
  const wanted = useRef<number[]>([0]);
  const request = useRef<(again: boolean) => void>(() => {});

  if (state.current.key !== key) {
    // Rows of the list before stay until the first page of the new one is there: no flash of nothing while typing.
    state.current = { ...state.current, key };
  }

  useEffect(() => {
    const abort = new AbortController();
    const fresh = new Map<number, T[]>();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let busy = false;
    let asked: "" | "missing" | "all" = "";
    let failed = false;
    let last = 0;

    const run = async (all: boolean): Promise<void> => {
      busy = true;
      asked = "";
      if (all) last = performance.now();
      try {
        for (const page of wanted.current.filter((one) => all || !fresh.has(one))) {
          const { rows, total } = await reader.current(page * PAGE_SIZE, PAGE_SIZE, abort.signal);
          if (abort.signal.aborted) return;
          fresh.set(page, rows);
          if (all) for (const old of [...fresh.keys()]) if (!wanted.current.includes(old)) fresh.delete(old);
          state.current = { key, pages: fresh, total, error: undefined };
          render((n) => n + 1);
        }
        failed = false;
      } catch (caught) {
        if (abort.signal.aborted) return;
        failed = true;
        state.current.error = caught instanceof ApiError ? caught : new ApiError(0, "internal", String(caught));
        render((n) => n + 1);
      }
      busy = false;
      if (asked) plan(asked === "all");
      // What came into view meanwhile may have been among the rows of the list before.
      else if (!failed && wanted.current.some((page) => !fresh.has(page))) plan(false);
    };
    const plan = (all: boolean): void => {
      if (abort.signal.aborted) return;
      if (all || asked === "") asked = all ? "all" : "missing";
      if (busy) return;
      clearTimeout(timer);
      const pause = asked === "all" ? Math.max(0, last + RELOAD_MS - performance.now()) : 40;
      timer = setTimeout(() => void run(asked === "all"), pause);
    };
    request.current = plan;
    void run(true);
    const unlisten = live.listen({
      onEvent: (event) => {
        if (filter.current(event)) plan(true);
      },
      onReset: () => plan(true),
      onOpen: () => {
        if (failed) plan(true);
      },
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
      unlisten();
    };
  }, [key]);

  const want = useCallback((first: number, end: number) => {
    wanted.current = end > first ? pagesOf({ first, end }, PAGE_SIZE) : [0];
    if (wanted.current.some((page) => !state.current.pages.has(page))) request.current(false);
  }, []);

  return {
    total: state.current.total,
    row: (index) => state.current.pages.get(Math.floor(index / PAGE_SIZE))?.[index % PAGE_SIZE],
    want,
    error: state.current.error,
    reload: () => request.current(true),
    loaded: () => [...state.current.pages.values()].flat(),
  };
}
