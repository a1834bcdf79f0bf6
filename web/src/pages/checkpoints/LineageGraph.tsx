import type { ReactNode } from "react";
import type { Lineage, LineageEdge } from "../../api/types";
import { placeLineage } from "../../model/lineage";
import { link } from "../../model/route";

const WORDS: Record<LineageEdge["kind"], string> = {
  next: "same run",
  resume: "a later run of the trial",
  continue: "a new trial with its weights",
  base: "an increment that builds on it",
};

/** Where a checkpoint came from and what came from it: time goes to the right, each trial has a lane. */
export function LineageGraph({ lineage, current }: { lineage: Lineage; current: string }): ReactNode {
  const placed = placeLineage(lineage);
  return (
    <>
      <div className="lineage" tabIndex={0} role="region" aria-label="Lineage graph">
        <svg width={placed.width + 90} height={placed.height} role="group" aria-label="Lineage">
          {placed.lanes.map((lane) => (
            <text key={lane.trial} x={4} y={lane.y - 18} className="lane">trial {lane.trial}</text>
          ))}
          {placed.edges.map((edge) => (
            <path
              key={`${edge.from} ${edge.to} ${edge.kind}`}
              className={`edge ${edge.kind}`}
              d={`M ${edge.x1} ${edge.y1} C ${edge.x1 + 50} ${edge.y1}, ${edge.x2 - 50} ${edge.y2}, ${edge.x2} ${edge.y2}`}
            >
              <title>{WORDS[edge.kind]}</title>
            </path>
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
        {(Object.keys(WORDS) as LineageEdge["kind"][]).map((kind) => (
          <span key={kind}><svg width={30} height={10} aria-hidden="true"><path className={`edge ${kind}`} d="M 0 5 L 30 5" /></svg> {WORDS[kind]}</span>
        ))}
      </p>
    </>
  );
}
