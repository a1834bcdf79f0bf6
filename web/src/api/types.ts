// What the master answers (docs/openapi.yaml, components/schemas). Members that the contract does not require are optional here.

export type State =
  | "QUEUED" | "STARTING" | "RUNNING" | "PAUSING" | "PAUSED" | "STOPPING"
  | "COMPLETED" | "CANCELED" | "ERROR";
export type CheckpointState = "ACTIVE" | "COMPLETED" | "DELETED" | "ERROR";
export type Role = "viewer" | "user" | "admin";
export type Level = "TRACE" | "DEBUG" | "INFO" | "WARNING" | "ERROR" | "CRITICAL";

/** A number; "NaN", "Infinity" and "-Infinity" stand for what JSON cannot hold. */
export type NumberOrText = number | string | null;
export type Json = null | boolean | number | bigint | string | Json[] | { [key: string]: Json };
export type JsonObject = { [key: string]: Json };

export interface ErrorBody {
  code: string;
  message: string;
  details: JsonObject;
}

export interface User {
  username: string;
  role: Role;
  active: boolean;
  has_password?: boolean;
  created: number;
}

export interface Login {
  user: User;
  expires: number;
}

export interface Token {
  id: string;
  name: string;
  user: string;
  created: number;
  expires?: number | null;
  last_used?: number | null;
  /** Only in the answer that made it. */
  token?: string;
}

export interface Best {
  trial: string;
  metric: string;
  value: NumberOrText;
  steps_completed?: number;
}

export interface CheckpointRef {
  id: string;
  steps_completed: number;
}

export interface Policy {
  keep_last?: number | null;
  keep_best?: number | null;
  experiment_best?: number | null;
  keep_every?: number | null;
  score?: string;
  order?: "min" | "max";
  max_age_seconds?: number | null;
  max_bytes?: number | null;
  experiment_bytes?: number | null;
}

export interface Experiment {
  id: string;
  name: string;
  description?: string;
  state: State;
  message?: string;
  owner: string;
  labels: string[];
  notes?: string;
  archived: boolean;
  progress: number;
  created: number;
  started?: number | null;
  ended?: number | null;
  /** Seconds of runs that are over; the rest of the duration goes on since then. */
  ran?: number;
  running_since?: number | null;
  duration?: number | null;
  trials: number;
  trial_states: { [state: string]: number };
  trial?: string | null;
  best?: Best | null;
  checkpoints: number;
  checkpoint_bytes: number;
  searcher?: { name: string; metric?: string; smaller_is_better?: boolean; max_trials?: number };
  slots_per_trial?: number;
  priority?: number;
  parent?: { experiment: string; trial: string; checkpoint: string; steps_completed?: number } | null;
  storage?: string;
  code?: { code: string; bytes: number } | null;
  policy?: Policy;
  config?: JsonObject;
}

export interface Trial {
  id: string;
  experiment: string;
  state: State;
  message?: string;
  status?: string;
  hparams: JsonObject;
  progress: number;
  steps_completed?: number;
  run_id: number;
  restarts: number;
  max_restarts: number;
  resume_mode?: string;
  resumes_from_step?: number | null;
  preemption_deadline?: number | null;
  created: number;
  started?: number | null;
  ended?: number | null;
  /** Seconds of runs that are over; the rest of the duration goes on since then. */
  ran?: number;
  running_since?: number | null;
  duration?: number | null;
  latest_checkpoint?: CheckpointRef | null;
  best?: Best | null;
  latest_metrics?: { [group: string]: JsonObject };
  checkpoints: number;
  checkpoint_bytes: number;
  world_size?: number;
  slots?: number;
  priority?: number;
  detached?: boolean;
  external_id?: string;
  repository?: string;
  parent?: { trial: string; checkpoint: string; steps_completed?: number } | null;
  sparkline?: NumberOrText[][];
}

export interface Run {
  run_id: number;
  resume_mode?: string;
  from?: CheckpointRef | null;
  submitted: number;
  /** Left out or null: it waits for slots, or ended without any. */
  started?: number | null;
  ready?: number | null;
  ended?: number | null;
  live: boolean;
  exit_code?: number | null;
  exit_signal?: number | null;
  outcome?: string;
  message?: string;
  host?: string;
}

export interface Checkpoint {
  id: string;
  registration?: string;
  trial: string;
  experiment: string;
  state: CheckpointState;
  reason?: string;
  steps_completed: number;
  ranks?: number;
  kind?: "full" | "increment";
  base?: string | null;
  metrics: JsonObject;
  score?: NumberOrText;
  metadata: JsonObject;
  bytes: number;
  new_bytes?: number | null;
  pinned: boolean;
  latest?: boolean;
  run_id: number;
  time: number;
  generation?: number;
  sequence?: number;
  path?: string;
  repository?: string;
}

export interface Tensor {
  name: string;
  dtype: string;
  shape: number[];
  bytes: number;
  file?: string;
}

export interface FileEntry {
  path: string;
  bytes: number;
}

export interface FileList {
  files: FileEntry[];
  total: number;
  bytes: number;
}

export interface Verification {
  state: "NONE" | "RUNNING" | "GOOD" | "DAMAGED" | "FAILED";
  bytes_done: number;
  bytes_total: number;
  problems: string[];
  time?: number | null;
}

export interface TensorDifference {
  name: string;
  kind: "changed" | "added" | "removed" | "dtype" | "shape";
  max_difference?: NumberOrText;
  /** In all; of a changed tensor. */
  elements?: number;
  changed_elements?: number;
  /** Of a table. */
  rows_added?: number;
  rows_removed?: number;
  rows_changed?: number;
}

export interface Diff {
  equal: number;
  changed: number;
  added: number;
  removed: number;
  tensors: TensorDifference[];
}

export interface LineageNode {
  id: string;
  trial: string;
  experiment: string;
  steps_completed: number;
  state: CheckpointState;
}

export interface LineageEdge {
  from: string;
  to: string;
  kind: "next" | "resume" | "continue" | "base";
}

export interface Lineage {
  nodes: LineageNode[];
  edges: LineageEdge[];
}

export interface LogLine {
  id: number;
  time: number;
  run_id: number;
  rank: number;
  stream?: "stdout" | "stderr";
  level?: Level;
  text: string;
}

export interface LogPage {
  lines: LogLine[];
  more: boolean;
  /** `after` of the page that follows, and `before` of the one before. */
  next: number;
  previous: number;
}

export interface MetricReport {
  group: string;
  steps_completed: number;
  run_id: number;
  time: number;
  values: JsonObject;
  archived?: boolean;
}

export interface MetricPage {
  metrics: MetricReport[];
  names?: { group: string; name: string }[];
}

export interface ClusterEntry {
  trial: string;
  experiment: string;
  name: string;
  owner?: string;
  state: State;
  slots: number;
  priority: number;
  since: number;
  launcher?: string;
  reason?: string;
}

export interface Service {
  name: string;
  kind: "paramserver" | "serving";
  host?: string;
  repository?: string;
  facts: JsonObject;
  time: number;
}

export interface Cluster {
  slots: number;
  used_slots: number;
  running: ClusterEntry[];
  queue: ClusterEntry[];
  services: Service[];
}

export interface StorageUse {
  experiment: string;
  name: string;
  storage?: string;
  checkpoints: number;
  bytes: number;
  pinned_bytes: number;
}

export interface Storage {
  bytes: number;
  checkpoints: number;
  free_bytes?: number | null;
  experiments: StorageUse[];
}

export interface PolicyPreview {
  removals: { trial: string; id: string; steps_completed: number; bytes: number; reason: string }[];
  bytes: number;
  kept: number;
}

export interface Removal {
  removed: string[];
  /** Of trials that run: each removes its own, with its next checkpoint. */
  left_to_run: string[];
  kept: { id: string; reason: string }[];
  bytes: number;
}

export interface Page {
  total: number;
  limit: number;
  offset: number;
}

export type EventKind =
  | "experiment" | "trial" | "run" | "metrics" | "progress" | "checkpoint" | "policy" | "verification" | "service";

export interface MasterEvent {
  seq: number;
  time: number;
  kind: EventKind;
  experiment: string;
  trial: string;
  run_id?: number;
  body?: JsonObject;
}
