import { describe, expect, it } from "vitest";
import { placePoints } from "./scatter";

const size = { width: 800, height: 400, log: false };
describe("a scatter plot", () => {
  it("puts greater numbers to the right and above", () => {
    const { points } = placePoints([{ id: "1", x: 0.1, y: 1 }, { id: "2", x: 0.2, y: 2 }], size);
    expect(points[1]!.px).toBeGreaterThan(points[0]!.px);
    expect(points[1]!.py).toBeLessThan(points[0]!.py);
  });
  it("takes integers beyond 53 bits for numbers, and names them with all digits", () => {
    const rows = [{ id: "1", x: 5, y: 1 }, { id: "2", x: 18446744073709551615n, y: 2 }, { id: "3", x: 9223372036854775809n, y: 3 }];
    for (const log of [false, true]) {
      const [least, most, middle] = placePoints(rows, { ...size, log }).points;
      expect(least!.px).toBeLessThan(middle!.px);
      expect(middle!.px).toBeLessThan(most!.px);
      expect(middle!.xLabel).toBe("9223372036854775809");
    }
  });
  it("gives each text a column", () => {
    const { points, xTicks } = placePoints([{ id: "1", x: "sgd", y: 1 }, { id: "2", x: "adam", y: 2 }, { id: "3", x: "sgd", y: 3 }], size);
    expect(points[0]!.px).toBe(points[2]!.px);
    expect(xTicks.map((tick) => tick.label)).toEqual(["adam", "sgd"]);
  });
  it.each([320, 800])("of %i points has no labels that run into each other", (width) => {
    const letter = 7;
    const apart = (rows: { id: string; x: string | number; y: number }[]): void => {
      const { xTicks } = placePoints(rows, { ...size, width });
      expect(xTicks.length).toBeGreaterThan(1);
      xTicks.slice(1).forEach((tick, i) => {
        const before = xTicks[i]!;
        expect(tick.at - before.at, `${before.label} ${tick.label}`).toBeGreaterThanOrEqual(((tick.label.length + before.label.length) / 2) * letter);
      });
    };
    for (const count of [2, 5, 30]) apart(Array.from({ length: count }, (_, n) => ({ id: String(n), x: `a schedule called ${n}`, y: n })));
    apart(Array.from({ length: 9 }, (_, n) => ({ id: String(n), x: 0.00001 * (n + 1), y: n })));
  });
  it("has round numbers on its axes", () => {
    const rows = [{ id: "1", x: 0.00014, y: 0.0937 }, { id: "2", x: 0.0895, y: 0.8625 }];
    const plain = placePoints(rows, size);
    expect(plain.yTicks.map((tick) => tick.label)).toEqual(["0.2", "0.4", "0.6", "0.8"]);
    expect(plain.xTicks.map((tick) => tick.label)).toEqual(["0.02", "0.04", "0.06", "0.08"]);
    expect(placePoints(rows, { ...size, log: true }).xTicks.map((tick) => tick.label)).toEqual(["0.001", "0.01"]);
    const near = [{ id: "1", x: 1.5, y: 1 }, { id: "2", x: 9, y: 1 }];
    expect(placePoints(near, { ...size, log: true }).xTicks.map((tick) => tick.label)).toEqual(["2", "5"]);
    expect(placePoints(near, size).yTicks.map((tick) => tick.label)).toEqual(["1"]);
    const layers = [{ id: "1", x: 2, y: 1 }, { id: "2", x: 4, y: 1 }];
    expect(placePoints(layers, size).xTicks.map((tick) => tick.label)).toEqual(["2", "3", "4"]);
  });
  it("counts what has no place", () => {
    expect(placePoints([{ id: "1", x: 1, y: NaN }, { id: "2", x: null, y: 1 }, { id: "3", x: 0, y: 1 }], { ...size, log: true })).toMatchObject({ points: [], left: 3 });
  });
  it("shows one point in the middle", () => {
    const [point] = placePoints([{ id: "1", x: 1, y: 1 }], size).points;
    expect(Number.isFinite(point!.px) && Number.isFinite(point!.py)).toBe(true);
  });
});
