// Server-sent events over fetch. EventSource would do, but it gives up for good when a restarting master answers with an error,
// and hides why. Here a lost stream is asked for again, after pauses that grow, from the last event that arrived.
import { send, ApiError } from "./client";

export interface SseEvent {
  id: string | null;
  event: string;
  data: string;
}

/** Cuts a stream of text into events; text may be cut anywhere, also inside of a line end. */
export class SseParser {
  private rest = "";
  private id: string | null = null;
  private event = "";
  private data: string[] = [];

  push(text: string): SseEvent[] {
    const events: SseEvent[] = [];
    this.rest += text;
    let start = 0;
    for (;;) {
      const end = this.rest.slice(start).search(/\r\n|\n|\r/);
      if (end < 0) break;
      const at = start + end;
      // A carriage return at the very end may be half of a line end.
      if (this.rest[at] === "\r" && at + 1 === this.rest.length) break;
      const line = this.rest.slice(start, at);
      start = at + (this.rest[at] === "\r" && this.rest[at + 1] === "\n" ? 2 : 1);
      const event = this.line(line);
      if (event) events.push(event);
    }
    this.rest = this.rest.slice(start);
    return events;
  }

  private line(line: string): SseEvent | null {
    if (line === "") {
      const event = { id: this.id, event: this.event || "message", data: this.data.join("\n") };
      const empty = this.data.length === 0 && this.event === "";
      this.event = "";
      this.data = [];
      return empty ? null : event;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return null; // a comment that keeps the connection alive
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "id" && !value.includes("\0")) this.id = value;
    if (field === "event") this.event = value;
    if (field === "data") this.data.push(value);
    return null;
  }
}

export interface StreamOptions {
  url: string;
  /** Where to begin, when an event was seen before. */
  lastEventId?: string | null;
  onEvent: (event: SseEvent) => void;
  /** true: the stream is open. false: it was lost, or could not be opened; it is tried again. */
  onState?: (open: boolean, error?: ApiError) => void;
  /** For tests: how long to wait before the n-th attempt, in milliseconds. */
  pause?: (attempt: number) => number;
}

/** 0.25 s, 0.5 s, 1 s, … at most 5 s. */
export function growingPause(attempt: number): number {
  return Math.min(5000, 250 * 2 ** Math.min(attempt, 10));
}

/** The master sends a comment every 15 s: a stream that is silent for longer is dead. */
const SILENCE_MS = 45_000;

/** Follows a stream until close() is called. */
export class EventStream {
  private closed = false;
  private abort = new AbortController();
  private lastId: string | null;
  private wake: (() => void) | null = null;

  constructor(private readonly options: StreamOptions) {
    this.lastId = options.lastEventId ?? null;
    void this.run();
  }

  close(): void {
    this.closed = true;
    this.abort.abort();
    this.wake?.();
  }

  get lastEventId(): string | null {
    return this.lastId;
  }

  private async run(): Promise<void> {
    let attempt = 0;
    while (!this.closed) {
      let error: ApiError | undefined;
      try {
        await this.once(() => {
          attempt = 0;
        });
      } catch (caught) {
        if (caught instanceof ApiError) error = caught;
      }
      if (this.closed) return;
      this.options.onState?.(false, error);
      // Asking again does not help who may not look.
      if (error && (error.status === 401 || error.status === 403 || error.status === 404)) return;
      const pause = (this.options.pause ?? growingPause)(attempt++);
      await new Promise<void>((resolve) => {
        const timer = setTimeout(resolve, pause);
        this.wake = () => {
          clearTimeout(timer);
          resolve();
        };
      });
    }
  }

  private async once(opened: () => void): Promise<void> {
    this.abort = new AbortController();
    const response = await openStream(this.options.url, this.lastId, this.abort.signal);
    opened();
    this.options.onState?.(true);
    const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
    const parser = new SseParser();
    let watchdog = setTimeout(() => this.abort.abort(), SILENCE_MS);
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done || this.closed) return;
        clearTimeout(watchdog);
        watchdog = setTimeout(() => this.abort.abort(), SILENCE_MS);
        for (const event of parser.push(value)) {
          if (event.id !== null && event.id !== "") this.lastId = event.id;
          this.options.onEvent(event);
          if (this.closed) return;
        }
      }
    } finally {
      clearTimeout(watchdog);
    }
  }
}

async function openStream(url: string, lastId: string | null, signal: AbortSignal): Promise<Response> {
  return send("GET", url, undefined, signal, lastId === null ? {} : { "Last-Event-ID": lastId });
}
