import { describe, expect, it } from "vitest";
import { writeExactly } from "../api/exact";
import { withMaster } from "./command";
import { mergeLines, plainText } from "./logs";
import { placeLineage } from "./lineage";
import { parseOverrides } from "./overrides";
import { fromForm, toForm } from "./policy";
import { addressOfPath, link, loginCode, parseRoute } from "./route";
import { sortBy } from "./sorting";
import { allowedActions, allowedForTrials, mayDo, whatIsLost } from "./states";
import { MOST_ROWS, pagesOf, visibleWindow } from "./window";

describe("commands to copy", () => {
  it("name the master unless it is where the command line looks for one", () => {
    expect(withMaster("cairn trial logs 7 -f", "http://gpu:9000")).toBe("cairn trial logs 7 -f -m http://gpu:9000");
    expect(withMaster("cairn trial logs 7 -f", "http://127.0.0.1:8080")).toBe("cairn trial logs 7 -f");
    expect(withMaster("cairn trial logs 7 -f", "http://localhost:8080")).toBe("cairn trial logs 7 -f");
  });
  it("that ask no master name none", () => expect(withMaster("cairn checkpoint show /runs/a 40", "http://gpu:9000")).toBe("cairn checkpoint show /runs/a 40"));
});

describe("routes", () => {
  it("go to a text and back", () => {
    const hash = link(["trials", "a/b", "logs"], { line: 12, text: "x & y" });
    const route = parseRoute(hash);
    expect(route.path).toEqual(["trials", "a/b", "logs"]);
    expect(route.query.get("line")).toBe("12");
    expect(route.query.get("text")).toBe("x & y");
  });
  it("that are broken do not throw", () => expect(parseRoute("#/a/%zz").path).toEqual(["a", "%zz"]));
  it("are taken from a path that stands before the #", () => {
    expect(addressOfPath({ pathname: "/experiments/7", search: "?line=2", hash: "" })).toBe("/#/experiments/7?line=2");
    expect(addressOfPath({ pathname: "/", search: "", hash: "" })).toBeNull();
    expect(addressOfPath({ pathname: "/experiments/7", search: "", hash: "#/trials/1" })).toBeNull();
  });
  it("are told from a one-time code", () => {
    expect(loginCode("#code=abc-_1")).toBe("abc-_1");
    expect(loginCode("#/experiments?code=abc")).toBeNull();
    expect(loginCode("")).toBeNull();
  });
});

describe("overrides", () => {
  it("are nested by dots, values are JSON or text", () => {
    expect(parseOverrides("hyperparameters.lr = 0.1\n# why\n\nname = second try\nenvironment.list=[1,2]")).toEqual({
      ok: true, value: { hyperparameters: { lr: 0.1 }, name: "second try", environment: { list: [1, 2] } },
    });
  });
  it("reads values as a config file does", () => {
    const parsed = parseOverrides('a = True\nb = .5\nc = "True"\nd = \ne = [1, 2]\nf = +3\ng = 1.2.3\nh = ~\ni = 0x1F\nj = 0xFFFFFFFFFFFFFFFF\nk = 0xyz');
    expect(parsed).toEqual({ ok: true, value: { a: true, b: 0.5, c: "True", d: "", e: [1, 2], f: 3, g: "1.2.3", h: null, i: 31, j: 18446744073709551615n, k: "0xyz" } });
  });
  it("keep all digits of integers", () => {
    const parsed = parseOverrides("hyperparameters.seed = 9007199254740993\nname = 9007199254740993 times");
    expect(parsed.ok && writeExactly(parsed.value)).toBe('{"hyperparameters":{"seed":9007199254740993},"name":"9007199254740993 times"}');
  });
  it("say which line is wrong", () => {
    expect(parseOverrides("a = 1\nnonsense")).toMatchObject({ ok: false, message: expect.stringContaining("Line 2") as string });
    expect(parseOverrides("a = 1\na.b = 2")).toMatchObject({ ok: false, message: expect.stringContaining("Line 2") as string });
    expect(parseOverrides("a..b = 2")).toMatchObject({ ok: false });
  });
  it("named __proto__ stay a key and reach no prototype", () => {
    const parsed = parseOverrides("__proto__.polluted = 1");
    expect(parsed.ok && JSON.stringify(parsed.value)).toBe('{"__proto__":{"polluted":1}}');
    expect(({} as { polluted?: number }).polluted).toBeUndefined();
  });
});

describe("windows of long lists", () => {
  it("never hold more than the most rows", () => {
    for (const height of [100, 1000, 100_000]) {
      const window = visibleWindow(5000, height, 34, 10_000);
      expect(window.end - window.first).toBeLessThanOrEqual(MOST_ROWS);
    }
  });
  it("stay inside of the list", () => {
    expect(visibleWindow(1e9, 500, 34, 20)).toEqual({ first: 10, end: 20 });
    expect(visibleWindow(0, 500, 34, 0)).toEqual({ first: 0, end: 0 });
  });
  it("touch these pages", () => {
    expect(pagesOf({ first: 95, end: 205 }, 100)).toEqual([0, 1, 2]);
    expect(pagesOf({ first: 0, end: 100 }, 100)).toEqual([0]);
    expect(pagesOf({ first: 0, end: 0 }, 100)).toEqual([]);
  });
});

describe("sorting", () => {
  it("puts what is missing last in both orders", () => {
    const rows = [{ v: "NaN" }, { v: 2 }, { v: null }, { v: 1 }, { v: "Infinity" }];
    expect(sortBy(rows, (row) => row.v, "asc").map((row) => row.v)).toEqual([1, 2, "Infinity", "NaN", null]);
    expect(sortBy(rows, (row) => row.v, "desc").map((row) => row.v)).toEqual(["Infinity", 2, 1, "NaN", null]);
  });
  it("counts digits in names", () => {
    expect(sortBy(["b10", "b9", "a"], (row) => row, "asc")).toEqual(["a", "b9", "b10"]);
  });
});

describe("logs", () => {
  const line = (id: number) => ({ id, time: 0, run_id: 1, rank: 0, text: String(id) });
  const ids = (lines: { id: number }[]) => lines.map((one) => one.id);
  it("are put together in order, each line once", () => {
    expect(ids(mergeLines([line(3), line(4)], [line(1), line(2)], "oldest"))).toEqual([1, 2, 3, 4]);
    expect(ids(mergeLines([line(1), line(3)], [line(3), line(4)], "newest"))).toEqual([1, 3, 4]);
    expect(ids(mergeLines([line(1), line(4)], [line(2), line(3)], "newest"))).toEqual([1, 2, 3, 4]);
  });
  it("are cut at the end that is not looked at", () => {
    expect(ids(mergeLines([line(1), line(2)], [line(3)], "newest", 2))).toEqual([2, 3]);
    expect(ids(mergeLines([line(2), line(3)], [line(1)], "oldest", 2))).toEqual([1, 2]);
  });
  it("lose the codes of terminals, not the text", () => {
    expect(plainText("\u001b[1;31mred\u001b[0m <b>x</b>")).toBe("red <b>x</b>");
  });
  it("of a progress bar are its last state", () => {
    expect(plainText("\rstep 1\rstep 2\r\u001b[Kstep 3")).toBe("step 3");
    expect(plainText("of Windows\r")).toBe("of Windows");
  });
});

describe("what may be done", () => {
  it("depends on the role", () => {
    expect(mayDo("viewer", "user")).toBe(false);
    expect(mayDo("admin", "user")).toBe(true);
    expect(mayDo(undefined, "viewer")).toBe(false);
  });
  it("depends on the state", () => {
    expect(allowedActions("RUNNING")).toEqual(["pause", "cancel", "kill"]);
    expect(allowedActions("PAUSED")).toEqual(["activate", "cancel", "kill"]);
    expect(allowedActions("PAUSED", true)).toEqual(["cancel", "kill"]);
    expect(allowedActions("COMPLETED")).toEqual([]);
    expect(allowedForTrials({ PAUSED: 1, RUNNING: 2, COMPLETED: 0 })).toEqual(["pause", "activate", "cancel", "kill"]);
  });
  it("says what is lost", () => {
    expect(whatIsLost("kill", 40, 47)).toContain("Steps 41 to 47");
    expect(whatIsLost("kill", null, 7)).toContain("all 7 steps");
    expect(whatIsLost("pause", null, 7)).toBeNull();
  });
});

describe("policies", () => {
  const empty = toForm({});
  it("go to a form and back", () => {
    const policy = { keep_last: 3, keep_best: 1, score: "loss", order: "min" as const, max_age_seconds: 86400, max_bytes: 2 ** 31, experiment_bytes: 2 ** 33 };
    expect(fromForm(toForm(policy))).toEqual({ ok: true, policy });
    expect(fromForm(empty)).toEqual({ ok: true, policy: {} });
  });
  it("name the field that is wrong", () => {
    expect(fromForm({ ...empty, keep_last: "-1" })).toMatchObject({ ok: false, field: "keep_last" });
    // The master takes none of them: who wants nothing kept by a rule leaves it out.
    for (const field of ["keep_last", "keep_best", "experiment_best", "keep_every"] as const) {
      expect(fromForm({ ...empty, [field]: "0" })).toMatchObject({ ok: false, field });
    }
    expect(fromForm({ ...empty, experiment_gib: "-1" })).toMatchObject({ ok: false, field: "experiment_gib" });
    expect(fromForm({ ...empty, max_gib: "much" })).toMatchObject({ ok: false, field: "max_gib" });
  });
});

describe("lineage", () => {
  const node = (id: string, trial: string, step: number) => ({ id, trial, experiment: "1", steps_completed: step, state: "COMPLETED" as const });
  it("goes from left to right, a lane for each trial", () => {
    const placed = placeLineage({
      nodes: [node("b", "1", 20), node("a", "1", 10), node("c", "2", 10)],
      edges: [{ from: "a", to: "b", kind: "next" }, { from: "b", to: "c", kind: "continue" }, { from: "b", to: "gone", kind: "next" }],
    });
    const at = new Map(placed.nodes.map((one) => [one.id, one]));
    expect(at.get("a")!.x).toBeLessThan(at.get("b")!.x);
    expect(at.get("b")!.x).toBeLessThan(at.get("c")!.x);
    expect(at.get("a")!.y).toBe(at.get("b")!.y);
    expect(at.get("c")!.y).toBeGreaterThan(at.get("b")!.y);
    expect(placed.edges).toHaveLength(2);
  });
  it("with a circle still ends", () => {
    const placed = placeLineage({ nodes: [node("a", "1", 1), node("b", "1", 2)], edges: [{ from: "a", to: "b", kind: "next" }, { from: "b", to: "a", kind: "next" }] });
    expect(placed.nodes).toHaveLength(2);
  });
});
