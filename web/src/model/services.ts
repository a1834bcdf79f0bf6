// Services that report to the master, as people think of them: the servers of one parameter-server job are one job.
import type { Json, JsonObject, Service } from "../api/types";

export interface Job {
  /** Of the job, without the number of a server. */
  name: string;
  repository: string | null;
  /** Of all servers together: rows are added up, of what all have in common the greatest counts. */
  facts: JsonObject;
  servers: { index: number; service: Service }[];
  /** It has no servers that are numbered. */
  alone: boolean;
}

/** What all servers of a job count alike. Who lags behind is seen in the row of each. */
const COMMON = ["step", "cuts", "increments", "checkpoints", "saved_step"];

/** `cairn pserver` calls itself ps_0-NAME, ps_1-NAME, …; whatever is called otherwise is a job of its own. */
export function jobsOf(services: Service[]): Job[] {
  const jobs = new Map<string, Job>();
  for (const service of services) {
    const [, index, name] = /^ps_(\d+)-(.+)$/.exec(service.name) ?? [null, null, service.name];
    const key = index === null ? `alone ${service.name}` : `${name} ${service.repository ?? ""}`;
    const job = jobs.get(key) ?? { name: name!, repository: service.repository ?? null, facts: {}, servers: [], alone: index === null };
    job.servers.push({ index: Number(index ?? 0), service });
    jobs.set(key, job);
  }
  for (const job of jobs.values()) {
    job.servers.sort((a, b) => a.index - b.index);
    job.facts = job.servers.length === 1 ? job.servers[0]!.service.facts : together(job.servers.map((one) => one.service.facts));
  }
  return [...jobs.values()].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
}

function together(all: JsonObject[]): JsonObject {
  const numbers = (name: string): number[] => all.map((facts) => facts[name]).filter((value): value is number => typeof value === "number");
  const out: JsonObject = {};
  for (const name of COMMON) if (numbers(name).length > 0) out[name] = Math.max(...numbers(name));
  if (numbers("rows").length > 0) out["rows"] = numbers("rows").reduce((sum, one) => sum + one, 0);
  return out;
}

/** The named facts, those that are there. */
export function factsIn(facts: JsonObject, names: string[]): [string, Json][] {
  return names.filter((name) => facts[name] !== undefined).map((name) => [name, facts[name]!]);
}
