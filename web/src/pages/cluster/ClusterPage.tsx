import type { ReactNode } from "react";
import { api } from "../../api/client";
import type { ClusterEntry, JsonObject, Service } from "../../api/types";
import { Empty, Facts, Failure, PathText, StateBadge, Waiting } from "../../components/basics";
import { useNow, useResource, useTitle } from "../../components/hooks";
import { formatAge, formatCount, formatDuration, formatFact, numberedName } from "../../model/format";
import { link } from "../../model/route";
import { factsIn, jobsOf, type Job } from "../../model/services";

const REPORTS = "One is here while it says how it does: start it with --master, and a token of yours in CAIRN_MASTER_TOKEN.";

export function ClusterPage(): ReactNode {
  useTitle("Cluster");
  const now = useNow(1000);
  const cluster = useResource("cluster", (signal) => api.cluster(signal), (event) => ["trial", "run", "service", "experiment"].includes(event.kind));
  if (cluster.error && !cluster.data) return <Failure page error={cluster.error} retry={cluster.reload} />;
  if (!cluster.data) return <Waiting />;
  const { slots, used_slots: used, running, queue, services } = cluster.data;
  const servers = services.filter((one) => one.kind === "paramserver");
  const serving = services.filter((one) => one.kind === "serving");
  return (
    <>
      <h1>Cluster</h1>
      <div className="panels two">
        <section className="panel" aria-labelledby="slots">
          <h2 id="slots">Slots</h2>
          <p className="slots" role="img" aria-label={`${used} of ${slots} slots are in use`}>
            {Array.from({ length: Math.min(slots, 256) }, (_, index) => <span key={index} className={index < used ? "slot used" : "slot"} />)}
          </p>
          <p>{used} of {slots} in use{slots === 0 ? ": no trial can start" : ""}</p>
        </section>
        <section className="panel" aria-labelledby="queue">
          <h2 id="queue">Queue</h2>
          {queue.length === 0 ? <p className="faint">Nothing waits.</p> : <Entries label="Trials that wait" entries={queue} now={now} word="Waits for" />}
        </section>
      </div>
      <section aria-labelledby="running">
        <h2 id="running">Running</h2>
        {running.length === 0
          ? <Empty title="Nothing runs." command="cairn experiment create CONFIG DIR -f">Trials appear here as they start.</Empty>
          : <Entries label="Trials that run" entries={running} now={now} word="Runs for" />}
      </section>
      <section aria-labelledby="servers">
        <h2 id="servers">Parameter servers</h2>
        {servers.length === 0
          ? <Empty title="No parameter-server job reports to this master." command={`cairn ps run --master ${window.location.origin} --dir DIR --servers 2 --trainers 2 -- python3 train.py`}>{REPORTS}</Empty>
          : <Jobs services={servers} now={now} />}
      </section>
      <section aria-labelledby="serving">
        <h2 id="serving">Serving</h2>
        {serving.length === 0
          ? <Empty title="No serving process reports to this master." command={`cairn serve --master ${window.location.origin} --model DIR --follow REPOSITORY`}>{REPORTS}</Empty>
          : <Services services={serving} now={now} first={["version", "step", "lag_seconds"]} />}
      </section>
    </>
  );
}

function Entries({ label, entries, now, word }: { label: string; entries: ClusterEntry[]; now: number; word: string }): ReactNode {
  return (
    <div className="table-box plain" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead><tr><th scope="col">Trial</th><th scope="col">Experiment</th><th scope="col">State</th><th scope="col" className="numeric">Slots</th><th scope="col" className="numeric">Priority</th><th scope="col">Owner</th><th scope="col" className="numeric">{word}</th></tr></thead>
        <tbody>
          {entries.map((entry) => (
            <tr key={entry.trial}>
              <td><a href={link(["trials", entry.trial])}>{entry.trial}</a></td>
              <td><a href={link(["experiments", entry.experiment])}>{numberedName({ id: entry.experiment, name: entry.name })}</a></td>
              <td><StateBadge state={entry.state} /></td>
              <td className="numeric">{entry.slots}</td>
              <td className="numeric">{entry.priority}</td>
              <td>{entry.owner ?? ""}</td>
              <td className="numeric">{formatDuration(now - entry.since)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** What is said of a job first, and of each of its servers. */
const OF_A_JOB = ["step", "rows", "cuts", "increments"];

function Jobs({ services, now }: { services: Service[]; now: number }): ReactNode {
  const jobs = jobsOf(services);
  return (
    <>
      {jobs.filter((job) => !job.alone).map((job) => <JobPanel key={`${job.name} ${job.repository}`} job={job} now={now} />)}
      <Services services={jobs.filter((job) => job.alone).map((job) => job.servers[0]!.service)} now={now} first={OF_A_JOB} />
    </>
  );
}

function JobPanel({ job, now }: { job: Job; now: number }): ReactNode {
  const count = (name: string): number => job.servers.reduce((sum, { service }) => sum + (typeof service.facts[name] === "number" ? service.facts[name] : 0), 0);
  const problems = [["failed_saves", "saves failed"], ["lost_changes", "changes were lost"]] as const;
  return (
    <article className="panel job" aria-label={job.name}>
      <h3>{job.name}</h3>
      <dl className="figures">
        {factsIn(job.facts, [...OF_A_JOB, "checkpoints", "saved_step"]).map(([name, value]) => {
          const [title, text] = formatFact(name, value);
          return <div key={name}><dt>{title}</dt><dd>{text}</dd></div>;
        })}
      </dl>
      <p><PathText path={job.repository ?? "–"} /></p>
      {problems.filter(([name]) => count(name) > 0).map(([name, words]) => <p key={name} className="problem">{formatCount(count(name))} {words}.</p>)}
      <div className="table-box plain" tabIndex={0} role="region" aria-label={`Servers of ${job.name}`}>
        <table>
          <thead><tr><th scope="col">Server</th><th scope="col">State</th><th scope="col" className="numeric">Step</th><th scope="col" className="numeric">Rows</th><th scope="col" className="numeric">Cuts</th><th scope="col" className="numeric">Increments</th><th scope="col" className="numeric">Not saved yet</th><th scope="col">Host</th><th scope="col">Last heard of</th></tr></thead>
          <tbody>
            {job.servers.map(({ index, service }) => (
              <tr key={index}>
                <td>ps_{index}</td>
                <td><StateBadge state={typeof service.facts["state"] === "string" ? service.facts["state"].toUpperCase() : "–"} /></td>
                {[...OF_A_JOB, "unsaved_changes"].map((name) => <td key={name} className="numeric">{formatFact(name, service.facts[name])[1]}</td>)}
                <td>{service.host ?? "–"}</td>
                <td>{formatAge(service.time, now)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </article>
  );
}

function Services({ services, now, first }: { services: Service[]; now: number; first: string[] }): ReactNode {
  return (
    <div className="panels">
      {services.map((service) => (
        <article key={service.name} className="panel" aria-label={service.name}>
          <h3>{service.name}</h3>
          <Facts facts={[
            ...ordered(service.facts, first).map(([name, value]): [string, ReactNode] => formatFact(name, value)),
            ["Host", service.host ?? "–"],
            ["Repository", <PathText key="r" path={service.repository ?? "–"} />],
            ["Last heard of", formatAge(service.time, now)],
          ]} />
        </article>
      ))}
    </div>
  );
}

function ordered(facts: JsonObject, first: string[]): [string, JsonObject[string]][] {
  const place = (name: string): number => (first.includes(name) ? first.indexOf(name) : first.length);
  return Object.entries(facts).sort(([a], [b]) => place(a) - place(b) || a.localeCompare(b));
}
