// What may be done to a trial or experiment in a state, and by whom. The page shows no button that would be refused.
import type { Action } from "../api/client";
import type { Role, State } from "../api/types";

export const STATES: State[] = [
  "QUEUED", "STARTING", "RUNNING", "PAUSING", "PAUSED", "STOPPING", "COMPLETED", "CANCELED", "ERROR",
];

const RANKS: Record<Role, number> = { viewer: 0, user: 1, admin: 2 };
export function mayDo(role: Role | undefined, needed: Role): boolean {
  return role !== undefined && RANKS[role] >= RANKS[needed];
}

export function hasEnded(state: State): boolean {
  return state === "COMPLETED" || state === "CANCELED" || state === "ERROR";
}

export function isLive(state: State): boolean {
  return state === "STARTING" || state === "RUNNING" || state === "PAUSING" || state === "STOPPING";
}

/** `detached`: somebody else starts its processes, so that there is nothing to activate. */
export function allowedActions(state: State, detached = false): Action[] {
  switch (state) {
    case "QUEUED":
    case "STARTING":
    case "RUNNING":
      return ["pause", "cancel", "kill"];
    case "PAUSING":
      return ["activate", "cancel", "kill"];
    case "PAUSED":
      return detached ? ["cancel", "kill"] : ["activate", "cancel", "kill"];
    case "STOPPING":
      return ["kill"];
    default:
      return [];
  }
}

/** An experiment of several trials allows what one of them allows. */
export function allowedForTrials(states: { [state: string]: number }, detached = false): Action[] {
  const all = new Set<Action>();
  for (const [state, count] of Object.entries(states)) {
    if (count > 0) for (const action of allowedActions(state as State, detached)) all.add(action);
  }
  return (["pause", "activate", "cancel", "kill"] as Action[]).filter((action) => all.has(action));
}

export const ACTION_LABELS: Record<Action, string> = {
  pause: "Pause",
  activate: "Activate",
  cancel: "Stop",
  kill: "Kill",
};

/** What is lost, for the dialog that asks; null where nothing is. */
export function whatIsLost(action: Action, latestStep: number | null, step: number | null): string | null {
  if (action === "pause" || action === "activate") return null;
  const steps =
    step !== null && latestStep !== null && step > latestStep
      ? `Steps ${latestStep + 1} to ${step} are in no checkpoint`
      : step !== null && latestStep === null && step > 0
        ? `There is no checkpoint yet: all ${step} steps`
        : null;
  if (action === "cancel") {
    return "It may save once more, then it ends. It cannot be activated afterwards; Continue goes on from a checkpoint.";
  }
  return `Its processes are killed now, without saving. ${steps ? `${steps} and will be lost.` : "What it did since its last checkpoint is lost."}`;
}

export type Tone = "calm" | "busy" | "good" | "bad" | "waiting";
export function toneOf(state: string): Tone {
  switch (state) {
    case "RUNNING":
    case "STARTING":
    case "RESTORING":
    case "OPENING":
      return "busy";
    case "PAUSING":
    case "STOPPING":
    case "QUEUED":
    case "ACTIVE":
      return "waiting";
    case "COMPLETED":
    case "SERVING":
    case "GOOD":
      return "good";
    case "ERROR":
    case "DAMAGED":
    case "FAILED":
      return "bad";
    default:
      return "calm";
  }
}
