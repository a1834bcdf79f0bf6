// Types of fake_master.mjs, as far as tests use them. (It is plain JavaScript so that scripts run it without a build.)
import type { Checkpoint, Experiment, JsonObject, Trial } from "../src/api/types";

export const CSP: string;
export class FakeMaster {
  constructor(options?: { experiments?: number; points?: number; dist?: string });
  url: string;
  port: number;
  experiments: Map<string, Experiment>;
  trials: Map<string, Trial>;
  checkpoints: Map<string, Checkpoint>;
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
}
