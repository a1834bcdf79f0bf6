import { describe, expect, it } from "vitest";
import type { MetricReport } from "../api/types";
import { addReports, countGaps, countNotPositive, fromPower, inPower, metricNames, nearestValue, pointsWithin, powerOf, seriesKey, smooth, spliced, stepsWithin, thin, toSeries, valueAt } from "./series";

const report = (step: number, values: MetricReport["values"], run = 1, group = "training"): MetricReport => ({
  group, steps_completed: step, run_id: run, time: 1000 + step, values,
});

describe("reports", () => {
  it("become columns by group and name, nested ones with a slash", () => {
    const map = toSeries([report(10, { loss: 2, eval: { top1: 0.5 } }), report(20, { loss: 1 }), report(20, { loss: 3 }, 1, "validation")]);
    expect(map.get(seriesKey("training", "loss"))!.values).toEqual([2, 1]);
    expect(map.get(seriesKey("training", "eval/top1"))!.steps).toEqual([10]);
    expect(map.get(seriesKey("validation", "loss"))!.values).toEqual([3]);
    expect(metricNames([map])).toEqual(["eval/top1", "loss"]);
  });

  it("are put in the order of steps and never shown twice", () => {
    const map = toSeries([report(20, { x: 20 }), report(10, { x: 10 })]);
    expect(addReports(map, [report(20, { x: 20 })])).toBe(true);
    expect(map.get(seriesKey("training", "x"))!.values).toEqual([10, 20]);
  });

  it("that go back say that all has to be read again", () => {
    const map = toSeries([report(10, { x: 1 }), report(20, { x: 2 })]);
    expect(addReports(map, [report(20, { x: 9 }, 2)])).toBe(false);
    expect(addReports(map, [report(10, { x: 9 }, 1)])).toBe(false);
  });

  it("leave out what was archived, keep what is not finite as gaps", () => {
    const map = toSeries([report(10, { x: "NaN" }), { ...report(20, { x: 1 }), archived: true }, report(30, { x: "Infinity", text: "hi" })]);
    const series = map.get(seriesKey("training", "x"))!;
    expect(series.steps).toEqual([10, 30]);
    expect(countGaps(series.values)).toBe(2);
    expect(countNotPositive([1, 0, -0, -5e-324, NaN, Infinity, -Infinity, 5e-324])).toBe(3);
    expect(map.has(seriesKey("training", "text"))).toBe(false);
  });
});

describe("smoothing", () => {
  it("of weight 0 changes nothing", () => expect(smooth([1, 5, 2], 0)).toEqual([1, 5, 2]));
  it("leaves a constant as it is, from the first value on", () => {
    for (const value of smooth([3, 3, 3, 3], 0.9)) expect(value).toBeCloseTo(3);
  });
  it("keeps gaps and goes on behind them", () => {
    const out = smooth([1, NaN, 1], 0.5);
    expect(out[1]).toBeNaN();
    expect(out[2]).toBeCloseTo(1);
  });
});

describe("thinning", () => {
  const xs = Array.from({ length: 100_000 }, (_, i) => i);
  const ys = xs.map((x) => Math.sin(x / 500));
  ys[54_321] = 50;
  ys[12_345] = -40;

  it("keeps the spikes and the ends", () => {
    const { x, y } = thin(xs, ys, 0, 99_999, 800);
    expect(x.length).toBeLessThan(800 * 5);
    expect(y).toContain(50);
    expect(y).toContain(-40);
    expect(x[0]).toBe(0);
    expect(x[x.length - 1]).toBe(99_999);
    expect([...x].sort((a, b) => a - b)).toEqual(x);
  });

  it("gives a part exactly, with one point beyond on each side, when it fits", () => {
    expect(thin(xs, ys, 100, 200, 800).x).toEqual(Array.from({ length: 103 }, (_, i) => 99 + i));
  });

  it("shows the same points of an overlap wherever the view stands", () => {
    const a = thin(xs, ys, 10_000, 60_000, 500);
    const b = thin(xs, ys, 10_700, 60_700, 500);
    const inside = (points: typeof a): number[] => points.x.filter((x) => x > 12_000 && x < 58_000);
    expect(inside(a)).toEqual(inside(b));
  });

  it("shows what is not finite as a gap also when thinned", () => {
    const holed = [...ys];
    holed[70_000] = NaN;
    expect(thin(xs, holed, 0, 99_999, 500).y).toContain(null);
  });

  it("of nothing is nothing", () => expect(thin([], [], 0, 1, 100)).toEqual({ x: [], y: [] }));
});

describe("the value of a curve", () => {
  it("is that of a report, or between two", () => {
    expect(valueAt([0, 10], [0, 100], 10)).toBe(100);
    expect(valueAt([0, 10], [0, 100], 4)).toBeCloseTo(40);
    expect(valueAt([0, 10], [0, 100], 11)).toBeNaN();
    expect(valueAt([], [], 1)).toBeNaN();
  });
});

describe("a finer part", () => {
  const every = (by: number, from: number, to: number): MetricReport[] => {
    const out: MetricReport[] = [];
    for (let step = from; step <= to; step += by) out.push(report(step, { x: step * 2 }));
    return out;
  };
  const key = seriesKey("training", "x");

  it("takes the place of the coarse one, and what came later stays", () => {
    const coarse = toSeries(every(10, 0, 100));
    const whole = spliced(coarse, toSeries(every(1, 38, 52)));
    const series = whole.get(key)!;
    expect(series.steps).toEqual([0, 10, 20, 30, ...Array.from({ length: 15 }, (_, i) => 38 + i), 60, 70, 80, 90, 100]);
    expect(series.values).toEqual(series.steps.map((step) => step * 2));
    expect(coarse.get(key)!.steps.length).toBe(11);
    expect(spliced(coarse, new Map()).get(key)).toBe(coarse.get(key));
  });

  it("is asked for by steps, with a neighbour on each side", () => {
    const map = toSeries(every(10, 0, 100));
    expect(stepsWithin(map, "steps", 35, 52)).toEqual({ from: 30, to: 60 });
    expect(stepsWithin(map, "times", 1035, 1052)).toEqual({ from: 30, to: 60 });
    expect(stepsWithin(map, "steps", -5, 500)).toEqual({ from: 0, to: 100 });
    expect(stepsWithin(map, "steps", 101, 500)).toBeNull();
    expect(pointsWithin(map, 30, 60)).toBe(4);
  });
});

describe("a checkpoint", () => {
  it("is marked on the curve, also when it was saved before the first or after the last report", () => {
    expect([0, 10, 15, 20, 25].map((x) => nearestValue([10, 20], [1, 2], x))).toEqual([1, 1, 1.5, 2, 2]);
    expect(nearestValue([], [], 1)).toBeNaN();
  });
});

describe("axes of values that are very large or very small", () => {
  it("count in a power of ten that the greatest has", () => {
    expect(powerOf([{ y: [1, -1e308, NaN, Infinity] }])).toBe(308);
    expect(powerOf([{ y: [5e-324] }, { y: [2e-322] }])).toBe(-322);
    expect(powerOf([{ y: [5e-324] }])).toBe(-323);
    expect(powerOf([{ y: [0.001, 1e29] }])).toBe(0);
    expect(powerOf([{ y: [] }, { y: [0, NaN] }])).toBe(0);
  });

  it("have marks that say what they are", () => {
    expect(["0", "2.5", "-1", "", "1e-3"].map((mark) => inPower(mark, 300))).toEqual(["0", "2.5e300", "-1e300", "", "1e297"]);
    expect(inPower("2.5", 0)).toBe("2.5");
    expect(fromPower(Number.MAX_VALUE / 10 ** 308, 308)).toBeCloseTo(Number.MAX_VALUE, -300);
    expect(Number.isFinite(fromPower(1.7976931348623159, 308))).toBe(true);
    expect(fromPower(null, 308)).toBeUndefined();
  });
});
