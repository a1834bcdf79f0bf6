import { describe, expect, it } from "vitest";
import type { Lineage } from "../api/types";
import { condense, placeLineage } from "./lineage";

const node = (id: number, trial = "1") => ({ id: `${trial}-${id}`, trial, experiment: trial, steps_completed: id, state: "COMPLETED" as const });
/** Checkpoints 1 to n of a trial, one after the other. */
function chain(n: number, trial = "1"): Lineage {
  const nodes = Array.from({ length: n }, (_, i) => node(i + 1, trial));
  return { nodes, edges: nodes.slice(1).map((one, i) => ({ from: nodes[i]!.id, to: one.id, kind: "next" as const })) };
}

describe("a lineage", () => {
  it("of a few is drawn whole", () => {
    const few = condense(chain(10), "1-5");
    expect(few.nodes).toHaveLength(10);
    expect(few.edges.every((edge) => edge.left === 0)).toBe(true);
  });

  it("of many is its ends, the one that is looked at and its neighbours, and how many lie between", () => {
    const { nodes, edges } = condense(chain(300), "1-100");
    expect(nodes.map((one) => one.steps_completed)).toEqual([1, 99, 100, 101, 300]);
    expect(edges.map((edge) => [edge.from, edge.to, edge.left])).toEqual([["1-1", "1-99", 97], ["1-99", "1-100", 0], ["1-100", "1-101", 0], ["1-101", "1-300", 198]]);
    expect(placeLineage({ nodes, edges }).width).toBeLessThan(1000);
  });

  it("keeps where another trial, run or increment began", () => {
    const mother = chain(100);
    const child = chain(50, "2");
    mother.edges[59] = { ...mother.edges[59]!, kind: "resume" };
    const { nodes, edges } = condense({
      nodes: [...mother.nodes, ...child.nodes],
      edges: [...mother.edges, ...child.edges, { from: "1-30", to: "2-1", kind: "continue" }, { from: "1-10", to: "1-12", kind: "base" }],
    }, "2-50");
    expect(nodes.map((one) => one.id)).toEqual(["1-1", "1-10", "1-12", "1-30", "1-60", "1-61", "1-100", "2-1", "2-49", "2-50"]);
    // Nothing is lost: each way leads from a drawn one to a drawn one, and all are counted.
    const known = new Set(nodes.map((one) => one.id));
    expect(edges.every((edge) => known.has(edge.from) && known.has(edge.to))).toBe(true);
    expect(nodes.length + edges.reduce((sum, edge) => sum + edge.left, 0)).toBe(150);
  });

  it("without the one that is looked at is drawn all the same", () => {
    expect(condense(chain(40), "gone").nodes.map((one) => one.steps_completed)).toEqual([1, 40]);
  });
});
