// The one stream of events of this page, handed to all who asked for a part of it. A tab that nobody looks at lets its
// connection go after a while (a browser has six to one server for all tabs) and catches up, by Last-Event-ID, when it is seen.
import { EventStream } from "./sse";
import type { MasterEvent } from "./types";

export type LiveState = "connecting" | "open" | "lost";
export interface LiveListener {
  /** Events in their order. */
  onEvent?: (event: MasterEvent) => void;
  /** Events may have been missed: what was read before has to be read again. */
  onReset?: () => void;
  /** The stream is open, for the first time or again: what could not be read can be now. */
  onOpen?: () => void;
}

const HIDDEN_MS = 60_000;

export class Live {
  private readonly listeners = new Set<LiveListener>();
  private readonly watchers = new Set<() => void>();
  private stream: EventStream | null = null;
  private lastId: string | null = null;
  private instance: string | null = null;
  private hiddenTimer: ReturnType<typeof setTimeout> | undefined;
  private current: LiveState = "connecting";

  state = (): LiveState => this.current;

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  listen(listener: LiveListener): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  start(): void {
    document.addEventListener("visibilitychange", this.onVisibility);
    this.open();
  }

  stop(): void {
    document.removeEventListener("visibilitychange", this.onVisibility);
    clearTimeout(this.hiddenTimer);
    this.closeStream();
    this.lastId = null;
    this.instance = null;
  }

  private open(): void {
    if (this.stream) return;
    this.stream = new EventStream({
      url: "/api/v1/events",
      lastEventId: this.lastId,
      onState: (open) => this.become(open ? "open" : "lost"),
      onEvent: (event) => this.take(event.event, event.data),
    });
  }

  private closeStream(): void {
    if (this.stream) this.lastId = this.stream.lastEventId;
    this.stream?.close();
    this.stream = null;
  }

  private onVisibility = (): void => {
    clearTimeout(this.hiddenTimer);
    if (document.hidden) this.hiddenTimer = setTimeout(() => this.closeStream(), HIDDEN_MS);
    else this.open();
  };

  private become(state: LiveState): void {
    if (this.current === state) return;
    this.current = state;
    for (const watcher of this.watchers) watcher();
    if (state === "open") for (const listener of [...this.listeners]) listener.onOpen?.();
  }

  private take(kind: string, data: string): void {
    let body: unknown;
    try {
      body = JSON.parse(data === "" ? "{}" : data);
    } catch {
      return; // not ours
    }
    if (kind === "hello") {
      const { instance } = body as { instance?: string };
      // What was read before the first hello may lack what happened in between; and another life of the master may know
      // things that were never events of ours.
      const known = this.instance !== null && this.instance === instance;
      this.instance = instance ?? null;
      if (!known) this.reset();
      return;
    }
    if (kind === "reset") {
      this.reset();
      return;
    }
    const event = body as MasterEvent;
    if (typeof event.seq !== "number") return;
    for (const listener of [...this.listeners]) listener.onEvent?.(event);
  }

  private reset(): void {
    for (const listener of [...this.listeners]) listener.onReset?.();
  }
}

export const live = new Live();
