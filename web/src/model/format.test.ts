import { describe, expect, it } from "vitest";
import { allNumbers, experimentTitle, formatAge, formatBytes, formatCount, formatDuration, formatFact, formatJson, formatMarks, formatMinute, formatNumber, formatPercent, formatShape, formatTicks, numberedName, ranFor, toNumber } from "./format";

describe("numbers for people", () => {
  it.each([[0, "0 B"], [1023, "1023 B"], [1024, "1.00 KiB"], [10 * 2 ** 20, "10.0 MiB"], [2 ** 30 - 1, "1.00 GiB"], [null, "–"]] as const)(
    "%s bytes are %s", (bytes, text) => expect(formatBytes(bytes)).toBe(text));
  it.each([[0, "0 s"], [59.4, "59 s"], [60, "1 min 0 s"], [3700, "1 h 1 min"], [3 * 86400, "3 d 0 h"], [undefined, "–"]] as const)(
    "%s seconds are %s", (seconds, text) => expect(formatDuration(seconds)).toBe(text));
  it.each([[100, "100"], [0.123456, "0.1235"], [1e-7, "1.000e-7"], [123456789, "123456789"], [1234567.5, "1.235e+6"], ["NaN", "NaN"], [null, "–"]] as const)(
    "the metric %s is %s", (value, text) => expect(formatNumber(value)).toBe(text));
  it("groups thousands", () => expect(formatCount(1234567)).toBe("1,234,567"));
  it("counts how long something ran up to now while it does, and not the pauses", () => {
    expect(ranFor({ ran: 100, running_since: 5000, duration: 130 }, 5050)).toBe(150);
    expect(ranFor({ ran: 100, running_since: null, duration: 100 }, 9000)).toBe(100);
    expect(ranFor({ ran: 0, running_since: null, duration: null }, 9000)).toBe(null);
    expect(ranFor({ ran: 100, running_since: 5000 }, 4990)).toBe(100); // a clock that goes wrong
  });
  it("does not call almost done done", () => {
    expect(formatPercent(0.9999)).toBe("99 %");
    expect(formatPercent(1)).toBe("100 %");
  });
  it("reads what JSON cannot hold", () => {
    expect(toNumber("-Infinity")).toBe(-Infinity);
    expect(toNumber("NaN")).toBeNaN();
    expect(toNumber("7")).toBeNaN();
  });
  it("calls an experiment without a name by its number, once", () => {
    expect(experimentTitle({ id: "7", name: "mnist" })).toBe("mnist (7)");
    expect(experimentTitle({ id: "7", name: "experiment 7" })).toBe("experiment 7");
    expect(numberedName({ id: "7", name: "mnist" })).toBe("7 mnist");
    expect(numberedName({ id: "7", name: "experiment 7" })).toBe("experiment 7");
  });
  it("tells what services say with its unit", () => {
    expect(formatFact("lag_seconds", 4.25)).toEqual(["Lag", "4.25 s"]);
    expect(formatFact("lag_seconds", 4000)).toEqual(["Lag", "1 h 6 min"]);
    expect(formatFact("log_bytes", 2048)).toEqual(["Log", "2.00 KiB"]);
    expect(formatFact("rows", 48211004)).toEqual(["Rows", "48,211,004"]);
    expect(formatFact("repository_reachable", true)).toEqual(["Repository reachable", "yes"]);
    expect(formatFact("first_token", "a <b>")).toEqual(["First token", "a <b>"]);
  });
  it("says how long ago", () => {
    expect(formatAge(100, 101)).toBe("just now");
    expect(formatAge(0, 7300)).toBe("2 h ago");
  });
  it("marks a time axis with what tells neighbours apart", () => {
    const at = new Date(2026, 10, 16, 23, 59, 0).getTime() / 1000;
    expect(formatTicks([at, at + 60, null])).toEqual(["23:59\n2026-11-16", "00:00\n2026-11-17", ""]);
    expect(formatTicks([at, at + 10])).toEqual(["23:59:00\n2026-11-16", "23:59:10"]);
    expect(formatTicks([at, at + 86400])).toEqual(["2026-11-16", "2026-11-17"]);
    expect(formatMinute(at)).toBe("2026-11-16 23:59");
  });
  it.each([
    [[1795005102, 1795005102.5, 1795005103], ["1,795,005,102", "1,795,005,102.5", "1,795,005,103"]],
    [[0, 0.25, 0.5, null], ["0", "0.25", "0.5", ""]],
    [[0.00999, 0.01, 0.01001], ["0.00999", "0.01", "0.01001"]],
    [[0, 2.5, 5], ["0", "2.5", "5"]],
    [[-20_000, 0, 20_000], ["-20,000", "0", "20,000"]],
    [[0, 2e6, 4e6], ["0", "2e+6", "4e+6"]],
    [[1e-5, 1.5e-5, 2e-5], ["1e-5", "1.5e-5", "2e-5"]],
    [[0.001, 0.01, 0.1, 1, 10, 100], ["0.001", "0.01", "0.1", "1", "10", "100"]],
    [[7], ["7"]],
  ])("marks an axis %j with what tells neighbours apart", (marks, texts) => expect(formatMarks(marks)).toEqual(texts));
  it("sets a column flush right when all of it are numbers", () => {
    expect(allNumbers([1, 0.5, undefined])).toBe(true);
    expect(allNumbers([1, "adam"])).toBe(false);
  });
  it("writes shapes and values", () => {
    expect(formatShape([])).toBe("scalar");
    expect(formatShape([2, 3])).toBe("2 × 3");
    expect(formatJson({ a: [1] })).toBe('{"a":[1]}');
  });
});
