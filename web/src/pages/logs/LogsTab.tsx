// The log of a trial as it comes: the last lines first, older ones when one scrolls up, filters that the master applies, and an
// address for each line.
import { useCallback, useEffect, useLayoutEffect, useRef, useState, type ReactNode } from "react";
import { api, ApiError, type Query } from "../../api/client";
import { live } from "../../api/live";
import { EventStream } from "../../api/sse";
import type { Level, LogLine, Trial } from "../../api/types";
import { Choice, Empty, Failure } from "../../components/basics";
import { navigate, useRoute, useSettled } from "../../components/hooks";
import { say } from "../../components/Toasts";
import { formatClock, formatTime } from "../../model/format";
import { mergeLines, plainText } from "../../model/logs";
import { link } from "../../model/route";
import { hasEnded } from "../../model/states";
import { visibleWindow } from "../../model/window";

const ROW = 20;
const PAGE = 1000;
/** So many lines fill a screen: one scrolls to see more of them. */
const ENOUGH = 200;
const LEVELS: [string, string][] = [["", "all"], ["DEBUG", "debug and above"], ["INFO", "info and above"], ["WARNING", "warning and above"], ["ERROR", "error and above"]];

interface LogState {
  lines: LogLine[];
  older: boolean;
  /** Up to which line older ones were looked at, and up to which newer ones: few of them may have passed the filters. */
  previous: number;
  next: number;
  searching: boolean;
  following: boolean;
  ended: boolean;
  error: ApiError | undefined;
  ready: boolean;
}
const BEGIN: LogState = { lines: [], older: false, previous: 0, next: 0, searching: false, following: false, ended: false, error: undefined, ready: false };

/** Lines of the trial that pass the filters; with `line`, those around it first. */
function useLog(trial: Trial, filters: Query, line: number | null, follow: boolean): [LogState, () => void, () => void] {
  const [state, setState] = useState<LogState>(BEGIN);
  const [attempts, setAttempts] = useState(0);
  const key = JSON.stringify([trial.id, filters, line, attempts]);
  const current = useRef(state);
  current.current = state;
  // A trial that begins another run writes again, and its stream has to be opened again.
  const life = `${trial.run_id} ${["PAUSED", "COMPLETED", "CANCELED", "ERROR"].includes(trial.state)}`;

  useEffect(() => {
    const abort = new AbortController();
    setState(BEGIN);
    const read = async (): Promise<void> => {
      try {
        let page = line === null
          ? await api.logs(trial.id, { ...filters, tail: PAGE, limit: PAGE }, abort.signal)
          : await api.logs(trial.id, { ...filters, before: line + PAGE / 2, limit: PAGE }, abort.signal);
        const { next } = page;
        let { lines } = page;
        while (page.more && lines.length < ENOUGH) {
          setState({ ...BEGIN, lines, searching: true });
          page = await api.logs(trial.id, { ...filters, before: page.previous, limit: PAGE }, abort.signal);
          lines = mergeLines(lines, page.lines, "newest");
        }
        setState({ ...BEGIN, lines, older: page.more, previous: page.previous, next, ready: true });
      } catch (caught) {
        if (!abort.signal.aborted) setState({ ...BEGIN, error: toError(caught) });
      }
    };
    void read();
    // What could not be read while the master was away is read when it is back.
    const unlisten = live.listen({
      onOpen: () => {
        if (!current.current.ready && current.current.error) void read();
      },
    });
    return () => {
      abort.abort();
      unlisten();
    };
  }, [key]);

  useEffect(() => {
    if (!state.ready || !follow) return;
    const have = current.current.lines;
    const last = Math.max(have[have.length - 1]?.id ?? 0, current.current.next);
    let waiting: LogLine[] = [];
    let frame = 0;
    const flush = (): void => {
      frame = 0;
      const more = waiting;
      waiting = [];
      // Who came to see a line keeps it, however much is written after it.
      setState((before) => ({ ...before, lines: mergeLines(before.lines, more, line === null ? "newest" : "oldest") }));
    };
    const stream = new EventStream({
      url: api.logStream(trial.id, { ...filters, after: last }),
      onState: (open, error) => setState((before) => ({ ...before, following: open, error: open ? undefined : error })),
      onEvent: (event) => {
        if (event.event === "end") {
          stream.close();
          setState((before) => ({ ...before, following: false, ended: true }));
        } else if (event.event === "log") {
          waiting.push(JSON.parse(event.data) as LogLine);
          // A frame shows all that came since the last one. Hidden pages have no frames, so a timer does it there.
          if (frame === 0) frame = window.setTimeout(flush, 50);
        }
      },
    });
    setState((before) => ({ ...before, ended: false }));
    return () => {
      stream.close();
      clearTimeout(frame);
    };
  }, [key, state.ready, follow, life]);

  const busy = useRef(false);
  const asked = useRef(key);
  asked.current = key;
  const readOlder = useCallback(() => {
    if (busy.current || !current.current.older) return;
    busy.current = true;
    const of = asked.current;
    const read = async (): Promise<void> => {
      let { previous } = current.current;
      for (let found = 0, more = true; more && found < ENOUGH && of === asked.current;) {
        const page = await api.logs(trial.id, { ...filters, before: previous, limit: PAGE });
        if (of !== asked.current) return;
        previous = page.previous;
        more = page.more;
        found += page.lines.length;
        setState((before) => ({ ...before, lines: mergeLines(before.lines, page.lines, "oldest"), older: page.more, previous: page.previous, searching: page.more && found < ENOUGH }));
      }
    };
    read()
      .catch((caught: unknown) => setState((before) => ({ ...before, error: toError(caught), searching: false })))
      .finally(() => { busy.current = false; });
  }, [key]);
  return [state, readOlder, () => setAttempts((before) => before + 1)];
}

function toError(caught: unknown): ApiError {
  return caught instanceof ApiError ? caught : new ApiError(0, "internal", String(caught));
}

export function LogsTab({ trial, base }: { trial: Trial; base: (string | number)[] }): ReactNode {
  const { query } = useRoute();
  const line = Number(query.get("line")) || null;
  // The address says what is shown: Back from elsewhere, and whoever it is sent to, finds the same lines.
  const level = query.get("level") ?? "";
  const rank = query.get("rank") ?? "";
  const search = query.get("search") ?? "";
  const [text, setText] = useState(search);
  const settled = useSettled(text, 250);
  const go = (change: Query): void => navigate(link(base, { level, rank, search, line: line ?? undefined, ...change }), true);
  const written = useRef(search);
  useEffect(() => {
    if (settled === search) return;
    written.current = settled;
    go({ search: settled });
  }, [settled]);
  useEffect(() => {
    if (search !== written.current) setText(search); // by a link, or Back
    written.current = search;
  }, [search]);
  const filters: Query = { level: (level || undefined) as Level | undefined, rank: rank === "" ? undefined : Number(rank), search: search || undefined };
  const [atEnd, setAtEnd] = useState(line === null);
  const [state, readOlder, again] = useLog(trial, filters, line, true);
  const ranks = Array.from({ length: Math.min(1024, Math.max(1, trial.world_size ?? 1)) }, (_, i): [string, string] => [String(i), `rank ${i}`]);
  const stayAtEnd = (on: boolean): void => {
    setAtEnd(on);
    if (on && line !== null) go({ line: undefined });
  };
  const filtered = level !== "" || rank !== "" || search !== "";

  return (
    <>
      <div className="toolbar" role="search">
        <input type="search" aria-label="Lines that contain" placeholder="Text" value={text} onChange={(event) => setText(event.target.value)} />
        <Choice label="Level" value={level} options={LEVELS} onChange={(value) => go({ level: value })} />
        <Choice label="Rank" value={rank} options={[["", "all"], ...ranks]} onChange={(value) => go({ rank: value })} />
        <label className="check"><input type="checkbox" checked={atEnd} onChange={(event) => stayAtEnd(event.target.checked)} /> Stay at the end</label>
        <span className="faint" role="status">
          {state.error && state.lines.length > 0 ? "connection lost, trying again" : state.searching ? "searching older lines" : state.following ? "live" : state.ended ? "all lines are here" : ""}
        </span>
      </div>
      {state.error && state.lines.length === 0 ? <Failure error={state.error} retry={again} />
        : state.ready && state.lines.length === 0
          ? (filtered
            ? <Empty title="No line passes the filters."><button type="button" onClick={() => { setText(""); go({ level: "", rank: "", search: "" }); }}>Show all lines</button></Empty>
            : trial.detached
              ? <Empty title="It has sent no lines.">Somebody started it by hand: what it writes to its standard output and error is sent here once it has joined, unless it was told not to (send_output).</Empty>
              : hasEnded(trial.state)
                ? <Empty title="Nothing was written.">It has ended, and no process of it wrote to its standard output or error.</Empty>
                : <Empty title="Nothing was written yet." command={`cairn trial logs ${trial.id} -f`}>Lines appear here as they are written. The same in a terminal:</Empty>)
          : <LogLines lines={state.lines} marked={line} atEnd={atEnd} setAtEnd={setAtEnd} readOlder={readOlder} base={base} onMark={(id) => go({ line: id })} />}
    </>
  );
}

interface LinesProps {
  lines: LogLine[];
  marked: number | null;
  atEnd: boolean;
  setAtEnd: (value: boolean) => void;
  readOlder: () => void;
  base: (string | number)[];
  onMark: (id: number) => void;
}

function LogLines({ lines, marked, atEnd, setAtEnd, readOlder, base, onMark }: LinesProps): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ scroll: 0, height: 600 });
  const first = lines[0]?.id;
  const before = useRef({ first, count: lines.length });
  const shownMark = useRef<number | null>(null);
  const stay = useRef(atEnd);
  stay.current = atEnd;

  useLayoutEffect(() => {
    const element = box.current!;
    const measure = (): void => setView({ scroll: element.scrollTop, height: element.clientHeight });
    const onScroll = (): void => {
      measure();
      const end = element.scrollHeight - element.scrollTop - element.clientHeight < ROW;
      if (end !== stay.current) setAtEnd(end);
      if (element.scrollTop < 200) readOlder();
    };
    measure();
    element.addEventListener("scroll", onScroll, { passive: true });
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => {
      element.removeEventListener("scroll", onScroll);
      observer.disconnect();
    };
  }, [readOlder, setAtEnd]);

  useLayoutEffect(() => {
    const element = box.current!;
    const had = before.current;
    before.current = { first, count: lines.length };
    const index = marked === null ? -1 : lines.findIndex((one) => one.id === marked);
    if (index >= 0 && shownMark.current !== marked) {
      shownMark.current = marked;
      element.scrollTop = Math.max(0, index * ROW - element.clientHeight / 2);
    } else if (stay.current) {
      element.scrollTop = element.scrollHeight;
    } else if (had.first !== undefined && first !== undefined && first < had.first) {
      // Older lines came in above: what was looked at stays where it is.
      element.scrollTop += lines.findIndex((one) => one.id === had.first) * ROW;
    }
  }, [lines, first, marked, atEnd]);

  const { first: from, end } = visibleWindow(view.scroll, view.height, ROW, lines.length, 20);
  const copy = (id: number): void => {
    onMark(id);
    // Whoever gets it sees the line among all others.
    const address = `${window.location.origin}${window.location.pathname}${link(base, { line: id })}`;
    navigator.clipboard?.writeText(address).then(() => say(`The link to line ${id} was copied.`), () => say(`Line ${id} is in the address.`));
  };
  return (
    <div className="log" ref={box} tabIndex={0} role="region" aria-label="Log">
      <div className="log-space" style={{ height: lines.length * ROW }}>
        <div className="log-window" style={{ top: from * ROW }}>
          {lines.slice(from, end).map((line) => (
            <div key={line.id} className={`log-line ${(line.level ?? "").toLowerCase()}${line.id === marked ? " marked" : ""}`} data-line={line.id}>
              <button type="button" className="log-id" aria-label={`Link to line ${line.id}`} onClick={() => copy(line.id)}>{line.id}</button>
              <span className="log-time" title={formatTime(line.time)}>{formatClock(line.time)}</span>
              <span className="log-rank">{line.rank}</span>
              <span className="log-level">{line.level ?? ""}</span>
              <span className="log-text">{plainText(line.text)}</span>
            </div>
          ))}
        </div>
      </div>
    </div>
  );
}
