import { useLayoutEffect, useRef, type ReactNode } from "react";
import type { Lineage, LineageEdge } from "../../api/types";
import { formatCount } from "../../model/format";
import { condense, placeLineage, type PlacedEdge } from "../../model/lineage";
import { link } from "../../model/route";

const WORDS: Record<LineageEdge["kind"], string> = {
  next: "same run",
  resume: "a later run of the trial",
  continue: "a new trial with its weights",
  base: "an increment that builds on it",
};

/** What an increment builds on may lie several checkpoints before it: a bow over those between them. */
function edgePath({ kind, x1, y1, x2, y2 }: PlacedEdge): string {
  if (kind === "base" && y1 === y2) return `M ${x1} ${y1 - 9} Q ${(x1 + x2) / 2} ${y1 - 38} ${x2} ${y2 - 9}`;
  return `M ${x1} ${y1} C ${x1 + 50} ${y1}, ${x2 - 50} ${y2}, ${x2} ${y2}`;
}

/** Where a checkpoint came from and what came from it: time goes to the right, each trial has a lane. */
export function LineageGraph({ lineage, current }: { lineage: Lineage; current: string }): ReactNode {
  const placed = placeLineage(condense(lineage, current));
  const box = useRef<HTMLDivElement>(null);
  const at = placed.nodes.find((node) => node.id === current)?.x ?? 0;
  useLayoutEffect(() => {
    // As little as it takes: the names of the lanes stand at the left.
    if (box.current) box.current.scrollLeft = Math.max(0, at + 100 - box.current.clientWidth);
  }, [at]);
  return (
    <>
      <div className="lineage" ref={box} tabIndex={0} role="region" aria-label="Lineage graph">
        <svg width={placed.width + 90} height={placed.height} role="group" aria-label="Lineage">
          {placed.lanes.map((lane) => (
            <text key={lane.trial} x={4} y={lane.y - 32} className="lane">trial {lane.trial}</text>
          ))}
          {placed.edges.map((edge) => (
            <path
              key={`${edge.from} ${edge.to} ${edge.kind}`}
              className={`edge ${edge.kind}`}
              d={edgePath(edge)}
            >
              <title>{WORDS[edge.kind]}</title>
            </path>
          ))}
          {placed.edges.filter((edge) => edge.left > 0).map((edge) => (
            <text key={`${edge.from} ${edge.to} left`} x={(edge.x1 + edge.x2) / 2} y={edge.y1 - 8} textAnchor="middle">{formatCount(edge.left)} more</text>
          ))}
          {placed.nodes.map((node) => (
            <a key={node.id} href={link(["checkpoints", node.id])} aria-current={node.id === current ? "true" : undefined} aria-label={`Step ${node.steps_completed} of trial ${node.trial}${node.state === "DELETED" ? ", deleted" : ""}`}>
              <circle cx={node.x} cy={node.y} r={9} className={`node ${node.state.toLowerCase()}${node.id === current ? " current" : ""}`} />
              <text x={node.x} y={node.y + 26} textAnchor="middle">step {node.steps_completed}</text>
            </a>
          ))}
        </svg>
      </div>
      <p className="lineage-key">
        <span><svg width={24} height={24} aria-hidden="true"><circle cx={12} cy={12} r={9} className="node completed current" /></svg> this checkpoint</span>
        {(Object.keys(WORDS) as LineageEdge["kind"][]).map((kind) => (
          <span key={kind}><svg width={30} height={10} aria-hidden="true"><path className={`edge ${kind}`} d="M 0 5 L 30 5" /></svg> {WORDS[kind]}</span>
        ))}
      </p>
    </>
  );
}
