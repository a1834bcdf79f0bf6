import { useCallback, useEffect, useRef, useState, useSyncExternalStore } from "react";
import { ApiError, masterNow } from "../api/client";
import { live } from "../api/live";
import type { MasterEvent } from "../api/types";
import { parseRoute, type Route } from "../model/route";

export interface Resource<T> {
  data: T | undefined;
  error: ApiError | undefined;
  reload: () => void;
  /** Puts something in place before the master confirms it by an event. */
  set: (value: T) => void;
}

/** At most one reading in this time, however many events there are. */
const RELOAD_MS = 400;

function toApiError(caught: unknown): ApiError {
  if (caught instanceof ApiError) return caught;
  return new ApiError(0, "internal", caught instanceof Error ? caught.message : String(caught));
}

/**
 * Reads something now, and again when an event concerns it, when events may have been missed, and (after a failure) when the
 * stream of events is back. `key` names what is read: another key forgets what was there.
 */
export function useResource<T>(
  key: string,
  load: (signal: AbortSignal) => Promise<T>,
  concerns: (event: MasterEvent) => boolean = () => false,
): Resource<T> {
  const [state, setState] = useState<{ key: string; data?: T; error?: ApiError }>({ key });
  const loader = useRef(load);
  const filter = useRef(concerns);
  loader.current = load;
  filter.current = concerns;
  const again = useRef<() => void>(() => {});

  useEffect(() => {
    const abort = new AbortController();
    let busy = false;
    let wanted = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let last = 0;
    let failed = false;
    const read = async (): Promise<void> => {
      busy = true;
      wanted = false;
      last = performance.now();
      try {
        const data = await loader.current(abort.signal);
        if (!abort.signal.aborted) setState({ key, data });
        failed = false;
      } catch (caught) {
        failed = true;
        const error = toApiError(caught);
        // What was read stays on the screen while the master is away.
        if (!abort.signal.aborted) {
          setState((before) => (before.key === key && before.data !== undefined && error.status !== 404
            ? { key, data: before.data, error } : { key, error }));
        }
      }
      busy = false;
      if (wanted) plan();
    };
    const plan = (): void => {
      wanted = true;
      if (busy || timer !== undefined || abort.signal.aborted) return;
      timer = setTimeout(() => {
        timer = undefined;
        if (!busy && !abort.signal.aborted) void read();
      }, Math.max(0, last + RELOAD_MS - performance.now()));
    };
    again.current = plan;
    void read();
    const unlisten = live.listen({
      onEvent: (event) => {
        if (filter.current(event)) plan();
      },
      onReset: plan,
      onOpen: () => {
        if (failed) plan();
      },
    });
    return () => {
      abort.abort();
      clearTimeout(timer);
      unlisten();
    };
  }, [key]);

  const current = state.key === key ? state : { key };
  return {
    data: current.data,
    error: current.error,
    reload: useCallback(() => again.current(), []),
    set: useCallback((data: T) => setState({ key, data }), [key]),
  };
}

/** What is chosen of a table, by key. */
export interface Selection {
  selected: ReadonlySet<string>;
  onSelect: (key: string, on: boolean) => void;
  setSelected: (keys: Iterable<string>) => void;
}

export function useSelection(): Selection {
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const onSelect = useCallback((key: string, on: boolean) => setSelected((before) => {
    const next = new Set(before);
    if (on) next.add(key);
    else next.delete(key);
    return next;
  }), []);
  return { selected, onSelect, setSelected: useCallback((keys: Iterable<string>) => setSelected(new Set(keys)), []) };
}

export function useLiveState(): string {
  return useSyncExternalStore(live.watch, live.state);
}

function subscribeHash(callback: () => void): () => void {
  window.addEventListener("hashchange", callback);
  return () => window.removeEventListener("hashchange", callback);
}

export function useRoute(): Route {
  const hash = useSyncExternalStore(subscribeHash, () => window.location.hash);
  return parseRoute(hash);
}

export function navigate(to: string, replace = false): void {
  if (replace) {
    window.history.replaceState(null, "", to);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    window.location.hash = to;
  }
}

/** The master's time, renewed as often as it is shown. */
export function useNow(everyMs: number): number {
  const [now, setNow] = useState(masterNow);
  useEffect(() => {
    const timer = setInterval(() => setNow(masterNow()), everyMs);
    return () => clearInterval(timer);
  }, [everyMs]);
  return now;
}

/** The value once it has not changed for that long: for fields that are asked about while one types. */
export function useSettled<T>(value: T, ms: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), ms);
    return () => clearTimeout(timer);
  }, [value, ms]);
  return settled;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = title === "" ? "Cairn" : `${title} · Cairn`;
  }, [title]);
}
