import { describe, expect, it } from "vitest";
import type { Service } from "../api/types";
import { jobsOf } from "./services";

const server = (name: string, repository: string, facts: Service["facts"]): Service => ({ name, kind: "paramserver", repository, facts, time: 0 });

describe("servers that report", () => {
  it("of one job are one job, whose rows are added up and whose steps are not", () => {
    const jobs = jobsOf([
      server("ps_1-ctr", "/data/ctr", { step: 119, rows: 20, cuts: 7, increments: 5 }),
      server("ps_0-ctr", "/data/ctr", { step: 120, rows: 10, cuts: 7, increments: 5 }),
      server("ps_0-ctr", "/other/ctr", { step: 3, rows: 1 }),
      server("mine", "/data/mine", { rows: 4, colour: "blue" }),
    ]);
    expect(jobs.map((job) => [job.name, job.repository, job.servers.map((one) => one.index)])).toEqual([["ctr", "/data/ctr", [0, 1]], ["ctr", "/other/ctr", [0]], ["mine", "/data/mine", [0]]]);
    expect(jobs[0]!.facts).toEqual({ step: 120, rows: 30, cuts: 7, increments: 5 });
    expect(jobs[2]!.facts).toEqual({ rows: 4, colour: "blue" });
  });
  it("that are not there are no jobs", () => expect(jobsOf([])).toEqual([]));
});
