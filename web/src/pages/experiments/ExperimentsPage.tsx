import { useCallback, useContext, useEffect, useMemo, useRef, useState, type ReactNode } from "react";
import { api, type Action } from "../../api/client";
import type { Experiment, State } from "../../api/types";
import { describe, Dialog } from "../../components/Dialog";
import { attempt, say } from "../../components/Toasts";
import { Choice, Command, Empty, Failure, Progress, StateBadge } from "../../components/basics";
import { navigate, useNow, useRoute, useSettled, useTitle } from "../../components/hooks";
import { useMay, UserContext } from "../../components/session";
import { usePages } from "../../components/usePages";
import { VirtualTable, type Column } from "../../components/VirtualTable";
import { DURATION_HINT, formatBytes, formatCount, formatDuration, formatMinute, formatNumber, formatTime, numberedName, ranFor, STARTED_HINT } from "../../model/format";
import { link } from "../../model/route";
import type { Order } from "../../model/sorting";
import { ACTION_LABELS, allowedForTrials, hasEnded, STATES } from "../../model/states";
import { MOST_COMPARED } from "../metrics/ComparePage";

function columns(now: number): Column<Experiment>[] {
  return [
    { key: "id", title: "Id", sortable: true, first: "desc", render: (row) => <a href={link(["experiments", row.id])}>{row.id}</a> },
    {
      key: "name", title: "Name", sortable: true, wide: true,
      render: (row) => (
        <>
          <a href={link(["experiments", row.id])} title={row.name}>{row.name}</a>
          {row.labels.map((label) => <span key={label} className="label">{label}</span>)}
          {row.archived && <span className="label">archived</span>}
        </>
      ),
    },
    { key: "state", title: "State", sortable: true, render: (row) => <StateBadge state={row.state} /> },
    { key: "progress", title: "Progress", sortable: true, render: (row) => <Progress value={row.progress} counted={row.trials > 1} label={`Progress of ${row.id}`} /> },
    { key: "trials", title: "Trials", sortable: true, numeric: true, render: (row) => formatCount(row.trials) },
    {
      key: "best", title: "Best metric", sortable: true, numeric: true,
      render: (row) => (row.best ? <span className="best-metric"><span className="faint" title={row.best.metric}>{row.best.metric}</span> {formatNumber(row.best.value)}</span> : "–"),
    },
    { key: "checkpoint_bytes", title: "Checkpoints", sortable: true, numeric: true, render: (row) => formatBytes(row.checkpoint_bytes) },
    { key: "owner", title: "Owner", sortable: true, render: (row) => row.owner },
    { key: "started", title: "Started", hint: STARTED_HINT, sortable: true, render: (row) => <span title={formatTime(row.started)}>{formatMinute(row.started)}</span> },
    {
      key: "duration", title: "Duration", hint: `${DURATION_HINT}; trials side by side count once`, sortable: true, numeric: true,
      render: (row) => formatDuration(ranFor(row, now)),
    },
  ];
}

/** As many as one question to the master answers. */
const MOST_SELECTED = 1000;

type Bulk = Action | "archive" | "unarchive" | "delete";

export function ExperimentsPage(): ReactNode {
  useTitle("Experiments");
  const { query } = useRoute();
  const may = useMay("user");
  const now = useNow(5000);
  const me = useContext(UserContext)?.username;
  // The address says what is shown, so that it can be sent to somebody, and Back leads to what was shown before.
  const asked = query.get("search") ?? "";
  const [search, setSearch] = useState(asked);
  const settled = useSettled(search, 200);
  const state = query.get("state") ?? "";
  const owner = query.get("owner") ?? "";
  const archived = query.get("archived") === "true";
  const sort = { key: query.get("sort") ?? "id", order: (query.get("order") ?? "desc") as Order };
  const [selected, setSelected] = useState<ReadonlyMap<string, Experiment>>(new Map());
  const [asking, setAsking] = useState<Bulk | null>(null);

  const go = (change: { [name: string]: string | undefined }): void => {
    const next = { search: asked, state, owner, archived: archived ? "true" : undefined, sort: sort.key, order: sort.order, ...change };
    navigate(link(["experiments"], next), true);
  };
  const written = useRef(asked);
  useEffect(() => {
    if (settled === asked) return;
    written.current = settled;
    go({ search: settled });
  }, [settled]);
  useEffect(() => {
    // Not by typing here: a link, or Back.
    if (asked !== written.current) setSearch(asked);
    written.current = asked;
  }, [asked]);
  const filters = { search: asked.trim(), state, owner, archived: archived || undefined, sort: sort.key, order: sort.order };
  const pages = usePages<Experiment>(
    JSON.stringify(filters),
    async (offset, limit, signal) => {
      const page = await api.experiments({ ...filters, offset, limit }, signal);
      return { rows: page.experiments, total: page.total };
    },
    (event) => ["experiment", "trial", "progress", "checkpoint", "metrics"].includes(event.kind),
  );

  const cols = useMemo(() => columns(now), [now]);
  const choices = useRef(0);
  const select = useCallback((row: Experiment, on: boolean) => {
    choices.current++;
    setSelected((before) => {
      const next = new Map(before);
      if (on) next.set(row.id, row);
      else next.delete(row.id);
      return next;
    });
  }, []);

  // What was selected is judged as it is now, not as it was when it was selected.
  const current = new Map(pages.loaded().map((row) => [row.id, row]));
  const chosen = [...selected.values()].map((row) => current.get(row.id) ?? row);
  const able = (bulk: Bulk): Experiment[] =>
    chosen.filter((row) =>
      bulk === "delete" ? hasEnded(row.state)
        : bulk === "archive" ? hasEnded(row.state) && !row.archived
          : bulk === "unarchive" ? row.archived
            : allowedForTrials(row.trial_states).includes(bulk));

  // An experiment is compared by its trial, a search by its best one.
  const comparable = chosen.map((row) => row.trial ?? row.best?.trial).filter((trial) => trial !== undefined && trial !== null);

  const selectAll = async (on: boolean): Promise<void> => {
    const choice = ++choices.current;
    if (!on) return setSelected(new Map());
    await attempt(null, async () => {
      const page = await api.experiments({ ...filters, offset: 0, limit: MOST_SELECTED });
      // Whoever has chosen something else since keeps that.
      if (choice !== choices.current) return;
      setSelected(new Map(page.experiments.map((row) => [row.id, row])));
      if (page.total > page.experiments.length) say(`The first ${formatCount(page.experiments.length)} of ${formatCount(page.total)} are selected.`);
    });
  };

  const filtered = asked !== "" || state !== "" || owner !== "";
  if (pages.error && pages.total === undefined) return <Failure page error={pages.error} retry={pages.reload} />;

  const bulks: [Bulk, string][] = [
    ["pause", "Pause"], ["activate", "Activate"], ["cancel", "Stop"], ["kill", "Kill"],
    ["archive", "Archive"], ["unarchive", "Take out of the archive"], ["delete", "Delete"],
  ];
  return (
    <>
      <div className="page-head">
        <h1>Experiments</h1>
        <span className="faint" aria-live="polite">{pages.total === undefined ? "" : `${formatCount(pages.total)} ${filtered ? "found" : "in all"}`}</span>
      </div>
      <div className="toolbar" role="search">
        <input
          type="search"
          aria-label="Search by id, name, description or label"
          placeholder="Search id, name, label"
          value={search}
          onChange={(event) => setSearch(event.target.value)}
        />
        <Choice<string>
          label="State"
          value={state}
          options={[["", "all"], ...STATES.map((one): [string, string] => [one, one.toLowerCase()])]}
          onChange={(value) => go({ state: value as State })}
        />
        <label className="check">
          <input type="checkbox" checked={owner !== ""} onChange={(event) => go({ owner: event.target.checked ? me : undefined })} />
          Only mine
        </label>
        <label className="check">
          <input type="checkbox" checked={archived} onChange={(event) => go({ archived: event.target.checked ? "true" : undefined })} />
          Also archived
        </label>
      </div>
      {may && selected.size > 0 && (
        <div className="selection" role="group" aria-label="What to do with the selected experiments">
          <strong>{selected.size} selected</strong>
          {comparable.length >= 2 && comparable.length <= MOST_COMPARED && (
            <button type="button" onClick={() => navigate(link(["compare"], { trials: comparable.join(",") }))}>{`Compare ${comparable.length}`}</button>
          )}
          {bulks.filter(([bulk]) => able(bulk).length > 0).map(([bulk, title]) => (
            <button key={bulk} type="button" onClick={() => setAsking(bulk)}>{`${title} ${able(bulk).length}`}</button>
          ))}
          <button type="button" onClick={() => setSelected(new Map())}>Select none</button>
        </div>
      )}
      <VirtualTable<Experiment>
        label="Experiments"
        columns={cols}
        count={pages.total ?? 0}
        row={pages.row}
        rowKey={(row) => row.id}
        sort={sort}
        onSort={(key, order) => go({ sort: key, order })}
        {...(may ? {
          selected: new Set(selected.keys()),
          onSelect: (key: string, on: boolean) => {
            const row = current.get(key) ?? selected.get(key);
            if (row) select(row, on);
          },
          selectLabel: (row: Experiment) => `Select experiment ${row.id}`,
          onSelectAll: (on: boolean) => void selectAll(on),
        } : {})}
        onWindow={pages.want}
        empty={pages.total === undefined ? null : filtered ? (
          <Empty title="No experiment matches.">
            <button type="button" onClick={() => navigate(link(["experiments"]), true)}>Show all</button>
          </Empty>
        ) : (
          <Empty title="No experiments yet." command="cairn experiment create examples/core_api/2_checkpoints.yaml examples/core_api -f">
            Create the first one; it appears here as soon as the master has it.
          </Empty>
        )}
      />
      {asking && (
        <BulkDialog
          bulk={asking}
          title={bulks.find(([bulk]) => bulk === asking)![1]}
          rows={able(asking)}
          onDone={() => setSelected(new Map())}
          onClose={() => setAsking(null)}
        />
      )}
    </>
  );
}

interface BulkProps {
  bulk: Bulk;
  title: string;
  rows: Experiment[];
  onDone: () => void;
  onClose: () => void;
}

function BulkDialog({ bulk, title, rows, onDone, onClose }: BulkProps): ReactNode {
  const [force, setForce] = useState(false);
  const danger = bulk === "kill" || bulk === "delete" || bulk === "cancel";
  const bytes = rows.reduce((sum, row) => sum + row.checkpoint_bytes, 0);
  const run = async (): Promise<void> => {
    let done = 0;
    const failures: string[] = [];
    for (const row of rows) {
      try {
        if (bulk === "delete") await api.deleteExperiment(row.id, force);
        else if (bulk === "archive" || bulk === "unarchive") await api.patchExperiment(row.id, { archived: bulk === "archive" });
        else await api.actOnExperiment(row.id, bulk);
        done++;
      } catch (caught) {
        failures.push(`${row.id}: ${describe(caught)}`);
      }
    }
    if (done > 0) say(`${title}: ${done} of ${rows.length} experiments.`);
    if (failures.length > 0) say(failures.slice(0, 5).join("\n"), true);
    onDone();
  };
  return (
    <Dialog title={`${title} ${rows.length === 1 ? `experiment ${rows[0]!.id}` : `${rows.length} experiments`}?`} submit={bulk in ACTION_LABELS ? ACTION_LABELS[bulk as Action] : title} danger={danger} onSubmit={run} onClose={onClose}>
      <ul className="short-list">
        {rows.slice(0, 8).map((row) => <li key={row.id}>{numberedName(row)}</li>)}
        {rows.length > 8 && <li>and {rows.length - 8} more</li>}
      </ul>
      {bulk === "pause" && <p>Each trial saves and exits; Activate goes on where it was.</p>}
      {bulk === "activate" && <p>Each paused trial goes on from its latest checkpoint.</p>}
      {bulk === "cancel" && <p>They may save once more, then they end for good. Continue can go on from their checkpoints.</p>}
      {bulk === "kill" && <p>Their processes are killed now: what they did since their last checkpoint is lost.</p>}
      {bulk === "delete" && (
        <>
          <p>Their trials, metrics, logs and {formatBytes(bytes)} of checkpoints are removed and cannot be brought back.</p>
          <label className="check"><input type="checkbox" checked={force} onChange={(event) => setForce(event.target.checked)} /> Also pinned checkpoints</label>
          <p className="faint">To keep one, download it first: <Command text="cairn experiment download ID -o DIR/" /></p>
        </>
      )}
    </Dialog>
  );
}
