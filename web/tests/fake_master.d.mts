// Types of fake_master.mjs, as far as tests use them. (It is plain JavaScript so that scripts run it without a build.)
import type { Checkpoint, Experiment, JsonObject, Run, Trial } from "../src/api/types";

export const CSP: string;
export interface FakeMasterOptions {
  /** How many there are; 0: a master that was just started. */
  experiments?: number;
  /** Of the first curve. */
  points?: number;
  dist?: string;
  /** Lines that a page of a log looks at. */
  stretch?: number;
}
export class FakeMaster {
  constructor(options?: FakeMasterOptions);
  options: FakeMasterOptions;
  url: string;
  port: number;
  experiments: Map<string, Experiment>;
  trials: Map<string, Trial>;
  checkpoints: Map<string, Checkpoint>;
  runs: Map<string, Run[]>;
  users: { username: string; role: string; active: boolean }[];
  tokens: { id: string; name: string }[];
  services: JsonObject[];
  logs: Map<string, JsonObject[]>;
  requests: { method: string; url: string; body: JsonObject }[];
  streams: Set<unknown>;
  listen(port?: number): Promise<FakeMaster>;
  stop(): Promise<void>;
  emit(kind: string, experiment: string, trial: string, body?: JsonObject): void;
  setState(trial: string, state: string, more?: Partial<Trial>): void;
  report(trial: string, step: number, values: JsonObject, run?: number): void;
  log(trial: string, text: string, more?: JsonObject): void;
  addCheckpoint(trial: string, step: number, more?: Partial<Checkpoint>): Checkpoint;
  finishVerification(id: string, state?: string): void;
  /** As a run does with its next checkpoint. */
  removeUnwanted(): void;
}
