import { describe, expect, it } from "vitest";
import { placePoints } from "./scatter";

const size = { width: 800, height: 400, log: false };
describe("a scatter plot", () => {
  it("puts greater numbers to the right and above", () => {
    const { points } = placePoints([{ id: "1", x: 0.1, y: 1 }, { id: "2", x: 0.2, y: 2 }], size);
    expect(points[1]!.px).toBeGreaterThan(points[0]!.px);
    expect(points[1]!.py).toBeLessThan(points[0]!.py);
  });
  it("gives each text a column", () => {
    const { points, xTicks } = placePoints([{ id: "1", x: "sgd", y: 1 }, { id: "2", x: "adam", y: 2 }, { id: "3", x: "sgd", y: 3 }], size);
    expect(points[0]!.px).toBe(points[2]!.px);
    expect(xTicks.map((tick) => tick.label)).toEqual(["adam", "sgd"]);
  });
  it("counts what has no place", () => {
    expect(placePoints([{ id: "1", x: 1, y: NaN }, { id: "2", x: null, y: 1 }, { id: "3", x: 0, y: 1 }], { ...size, log: true })).toMatchObject({ points: [], left: 3 });
  });
  it("shows one point in the middle", () => {
    const [point] = placePoints([{ id: "1", x: 1, y: 1 }], size).points;
    expect(Number.isFinite(point!.px) && Number.isFinite(point!.py)).toBe(true);
  });
});
