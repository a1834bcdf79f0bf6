// Where the nodes of a lineage graph stand: a column for each generation from left to right, a lane for each trial.
import type { Lineage, LineageEdge, LineageNode } from "../api/types";

export interface PlacedNode extends LineageNode {
  x: number;
  y: number;
}
export interface PlacedEdge extends LineageEdge {
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

export const COLUMN = 132;
export const LANE = 76;

export function placeLineage(lineage: Lineage): Placed {
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
  const placed = ordered.map((node) => ({
    ...node,
    x: 24 + column.get(node.id)! * COLUMN,
    y: 34 + lane.get(node.trial)! * LANE,
  }));
  const at = new Map(placed.map((node) => [node.id, node]));
  return {
    nodes: placed,
    edges: edges.map((edge) => {
      const from = at.get(edge.from)!;
      const to = at.get(edge.to)!;
      return { ...edge, x1: from.x, y1: from.y, x2: to.x, y2: to.y };
    }),
    lanes: [...lane].map(([trial, index]) => ({ trial, y: 34 + index * LANE })),
    width: 24 + (Math.max(0, ...column.values()) + 1) * COLUMN,
    height: 34 + lane.size * LANE,
  };
}
