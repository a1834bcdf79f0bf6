// Where the nodes of a lineage graph stand: a column for each generation from left to right, a lane for each trial.
import type { Lineage, LineageEdge, LineageNode } from "../api/types";

export interface PlacedNode extends LineageNode {
  x: number;
  y: number;
}
export interface PlacedEdge extends LineageEdge {
  left: number;
  x1: number;
  y1: number;
  x2: number;
  y2: number;
}
export interface Placed {
  nodes: PlacedNode[];
  edges: PlacedEdge[];
  lanes: { trial: string; y: number }[];
  width: number;
  height: number;
}

/** A way of one checkpoint after the other in which nothing else happened is drawn as its ends. */
const SHORT = 10;

/**
 * Without most of what only follows what came before it: of a trial with hundreds of checkpoints those are drawn that began or ended
 * something (a run, a trial, an increment), the one that is looked at, and its neighbours. `left` of an edge is how many lie under it.
 */
export function condense(lineage: Lineage, current: string): { nodes: LineageNode[]; edges: (LineageEdge & { left: number })[] } {
  const known = new Set(lineage.nodes.map((node) => node.id));
  const whole = { nodes: lineage.nodes, edges: lineage.edges.filter((edge) => known.has(edge.from) && known.has(edge.to)).map((edge) => ({ ...edge, left: 0 })) };
  if (lineage.nodes.length <= SHORT) return whole;
  const after = new Map<string, LineageEdge>();
  const before = new Map<string, LineageEdge>();
  const kept = new Set([current]);
  for (const edge of whole.edges) {
    if (edge.kind === "next") {
      after.set(edge.from, edge);
      before.set(edge.to, edge);
      if (edge.to === current) kept.add(edge.from);
      if (edge.from === current) kept.add(edge.to);
    } else {
      kept.add(edge.from);
      kept.add(edge.to);
    }
  }
  for (const node of lineage.nodes) if (!after.has(node.id) || !before.has(node.id)) kept.add(node.id);
  const edges: (LineageEdge & { left: number })[] = [];
  for (const edge of whole.edges) {
    if (edge.kind !== "next") edges.push(edge);
    else if (kept.has(edge.from)) {
      let { to } = edge;
      let left = 0;
      while (!kept.has(to)) {
        to = after.get(to)!.to;
        left++;
      }
      edges.push({ from: edge.from, to, kind: "next", left });
    }
  }
  return { nodes: lineage.nodes.filter((node) => kept.has(node.id)), edges };
}

export const COLUMN = 108;
export const LANE = 84;
/** Above the first lane: room for its name, and under that for the bows of increments. */
const TOP = 46;
/** How wide a letter of a label is, at most. */
const LETTER = 7.5;

export function placeLineage(lineage: { nodes: LineageNode[]; edges: (LineageEdge & { left?: number })[] }): Placed {
  const nodes = new Map(lineage.nodes.map((node) => [node.id, node]));
  const edges = lineage.edges.filter((edge) => nodes.has(edge.from) && nodes.has(edge.to));
  const column = new Map<string, number>();
  const incoming = new Map<string, string[]>();
  for (const edge of edges) incoming.set(edge.to, [...(incoming.get(edge.to) ?? []), edge.from]);
  // The longest way from a root. What the master says has no circles; should it have one, a node is not waited for twice.
  const depth = (id: string, above: Set<string>): number => {
    const known = column.get(id);
    if (known !== undefined) return known;
    above.add(id);
    let most = 0;
    for (const from of incoming.get(id) ?? []) if (!above.has(from)) most = Math.max(most, depth(from, above) + 1);
    above.delete(id);
    column.set(id, most);
    return most;
  };
  const ordered = [...nodes.values()].sort((a, b) => a.steps_completed - b.steps_completed);
  for (const node of ordered) depth(node.id, new Set());

  const lane = new Map<string, number>();
  for (const node of [...ordered].sort((a, b) => column.get(a.id)! - column.get(b.id)!)) {
    if (!lane.has(node.trial)) lane.set(node.trial, lane.size);
  }
  // What stands under the first ones has its middle there.
  const longest = Math.max(0, ...ordered.map((node) => `step ${node.steps_completed}`.length * LETTER));
  const apart = Math.max(COLUMN, longest + 12);
  const margin = Math.max(24, ...ordered.filter((node) => column.get(node.id) === 0).map((node) => (`step ${node.steps_completed}`.length * LETTER) / 2 + 4));
  const placed = ordered.map((node) => ({
    ...node,
    x: margin + column.get(node.id)! * apart,
    y: TOP + lane.get(node.trial)! * LANE,
  }));
  const at = new Map(placed.map((node) => [node.id, node]));
  return {
    nodes: placed,
    edges: edges.map((edge) => {
      const from = at.get(edge.from)!;
      const to = at.get(edge.to)!;
      return { left: 0, ...edge, x1: from.x, y1: from.y, x2: to.x, y2: to.y };
    }),
    lanes: [...lane].map(([trial, index]) => ({ trial, y: TOP + index * LANE })),
    width: margin + (Math.max(0, ...column.values()) + 1) * apart,
    height: TOP + (lane.size - 1) * LANE + 38,
  };
}
