import { describe, expect, it } from "vitest";
import type { Run } from "../api/types";
import { bandsBySteps, bandsByTime, runLabel } from "./bands";
import { toSeries } from "./series";

const runs: Run[] = [
  { run_id: 1, submitted: 99, started: 100, ended: 200, live: false, outcome: "paused", resume_mode: "fresh" },
  { run_id: 2, submitted: 299, started: 300, ended: 350, live: false, outcome: "failed", exit_signal: 9, from: { id: "a", steps_completed: 40 }, resume_mode: "resume" },
  { run_id: 3, submitted: 359, started: 360, live: true, from: { id: "b", steps_completed: 50 }, resume_mode: "resume" },
];
const at = (step: number, run: number) => ({ group: "training", steps_completed: step, run_id: run, time: 0, values: { x: 1 } });

describe("bands", () => {
  it("by steps meet where a run resumed, and name what ended it", () => {
    const bands = bandsBySteps(runs, toSeries([at(40, 1), at(50, 2), at(90, 3)]));
    expect(bands.map((band) => [band.from, band.to, band.kind])).toEqual([[0, 40, "run"], [40, 50, "failed"], [50, 90, "run"]]);
    expect(bands[1]!.label).toContain("killed by signal 9");
    expect(bands[2]!.label).toContain("from step 50: running");
  });

  it("by steps are cut where a later run went back to", () => {
    const bands = bandsBySteps([runs[0]!, { ...runs[1]!, from: { id: "a", steps_completed: 20 } }], toSeries([at(40, 1)]));
    expect(bands[0]).toMatchObject({ from: 0, to: 20 });
  });

  it("by time show the pauses between runs", () => {
    const bands = bandsByTime(runs, 400);
    expect(bands.map((band) => [band.from, band.to, band.kind])).toEqual([
      [100, 200, "run"], [200, 300, "pause"], [300, 350, "failed"], [350, 360, "pause"], [360, 400, "run"],
    ]);
    expect(bands[1]!.label).toBe("paused after run 1");
    expect(bands[3]!.label).toBe("restarting after run 2");
  });

  it("have none of a run that waits for slots, or never got any", () => {
    const [first, second, third] = runs as [Run, Run, Run];
    const bands = bandsByTime([first, { ...second, started: null }, { ...third, started: null, live: true }], 400);
    expect(bands.map((band) => [band.from, band.to])).toEqual([[100, 200]]);
    expect(runLabel({ ...third, started: null })).toBe("run 3 from step 50: waits for slots");
    expect(bandsByTime([first, { ...second, started: null }, third], 400).map((band) => [band.from, band.to, band.kind])).toEqual([[100, 200, "run"], [200, 360, "pause"], [360, 400, "run"]]);
  });

  it("of a run that continues another trial begin at 0", () => {
    const run: Run = { run_id: 1, submitted: 0, started: 1, live: true, resume_mode: "continue", from: { id: "z", steps_completed: 100 } };
    expect(bandsBySteps([run], toSeries([at(10, 1)]))[0]).toMatchObject({ from: 0, to: 10 });
  });
});
