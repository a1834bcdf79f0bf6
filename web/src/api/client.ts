// Requests to the master, typed by docs/openapi.yaml. The session is a cookie that scripts cannot read; what changes something
// carries the header X-Cairn-Request, which other sites cannot send. No token ever stands in an address.
import { parseExactly, writeExactly } from "./exact";
import type {
  Checkpoint, Cluster, Diff, ErrorBody, Experiment, FileList, Json, JsonObject, Lineage, Login, LogPage, MetricPage, Page, Policy,
  PolicyPreview, Removal, Role, Run, Storage, Tensor, Token, Trial, User, Verification,
} from "./types";

export class ApiError extends Error {
  constructor(
    /** 0: no answer at all. */
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: JsonObject = {},
  ) {
    super(message);
  }
}

export type Query = { [name: string]: string | number | boolean | undefined };

export function address(path: string, query: Query = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** How far the master's clock is before ours, in seconds; from the Date of its answers. */
let clockOffset = 0;
export function masterNow(): number {
  return Date.now() / 1000 + clockOffset;
}

let onUnauthenticated: () => void = () => {};
/** Called whenever an answer says that the session is over. */
export function setUnauthenticatedHandler(handler: () => void): void {
  onUnauthenticated = handler;
}

async function errorOf(response: Response): Promise<ApiError> {
  let body: Partial<ErrorBody> = {};
  try {
    body = (await response.json()) as Partial<ErrorBody>;
  } catch {
    // Not from the master but from something in between.
  }
  return new ApiError(
    response.status,
    body.code ?? "http_error",
    body.message ?? `The master answered ${response.status} ${response.statusText}.`,
    body.details ?? {},
  );
}

/** Sends a request and throws ApiError unless it was answered with 2xx. */
export async function send(
  method: string,
  url: string,
  body?: unknown,
  signal?: AbortSignal,
  extraHeaders: Record<string, string> = {},
): Promise<Response> {
  const headers: Record<string, string> = { ...extraHeaders };
  if (method !== "GET") headers["X-Cairn-Request"] = "page";
  const init: RequestInit = { method, headers, credentials: "same-origin", redirect: "error" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = writeExactly(body as Json);
  }
  if (signal) init.signal = signal;
  let response: Response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The master does not answer.");
  }
  const date = Date.parse(response.headers.get("Date") ?? "");
  if (Number.isFinite(date) && Math.abs(date / 1000 - masterNow()) > 2) clockOffset = (date - Date.now()) / 1000;
  if (response.ok) return response;
  const error = await errorOf(response);
  if (error.status === 401 && !url.endsWith("/auth/login")) onUnauthenticated();
  throw error;
}

async function get<T>(path: string, query?: Query, signal?: AbortSignal): Promise<T> {
  return parseExactly(await (await send("GET", address(path, query), undefined, signal)).text()) as T;
}

async function change<T>(method: string, path: string, body?: unknown): Promise<T> {
  return parseExactly(await (await send(method, path, body)).text()) as T;
}

const seg = encodeURIComponent;
export type Action = "pause" | "activate" | "cancel" | "kill";
export interface ContinueRequest {
  new: boolean;
  from?: string;
  config?: JsonObject;
  request_id: string;
}

export type CheckpointPage = Page & { checkpoints: Checkpoint[] };
export type TrialPage = Page & { trials: Trial[] };
export type ExperimentPage = Page & { experiments: Experiment[] };
export type TensorPage = { tensors: Tensor[]; total: number; bytes: number };

export const api = {
  login: (username: string, password: string) =>
    change<Login>("POST", "/api/v1/auth/login", { username, password, cookie: true }),
  loginWithCode: (code: string) => change<Login>("POST", "/api/v1/auth/login", { code, cookie: true }),
  logout: () => change<object>("POST", "/api/v1/auth/logout"),
  whoami: () => get<User>("/api/v1/auth/whoami"),
  master: () => get<{ version: string; api: number; instance: string }>("/api/v1/master"),

  users: () => get<{ users: User[] }>("/api/v1/users"),
  createUser: (user: { username: string; role: Role; password?: string }) => change<User>("POST", "/api/v1/users", user),
  patchUser: (
    name: string,
    patch: { role?: Role; password?: string; current_password?: string; active?: boolean },
  ) => change<User>("PATCH", `/api/v1/users/${seg(name)}`, patch),
  tokens: () => get<{ tokens: Token[] }>("/api/v1/tokens"),
  createToken: (token: { name: string; expires_seconds?: number }) => change<Token>("POST", "/api/v1/tokens", token),
  deleteToken: (id: string) => change<object>("DELETE", `/api/v1/tokens/${seg(id)}`),

  experiments: (query: Query, signal?: AbortSignal) => get<ExperimentPage>("/api/v1/experiments", query, signal),
  experiment: (id: string, signal?: AbortSignal) => get<Experiment>(`/api/v1/experiments/${seg(id)}`, {}, signal),
  patchExperiment: (
    id: string,
    patch: { name?: string; description?: string; labels?: string[]; notes?: string; archived?: boolean },
  ) => change<Experiment>("PATCH", `/api/v1/experiments/${seg(id)}`, patch),
  deleteExperiment: (id: string, force: boolean) =>
    change<object>("DELETE", address(`/api/v1/experiments/${seg(id)}`, { force: force || undefined })),
  actOnExperiment: (id: string, action: Action) => change<Experiment>("POST", `/api/v1/experiments/${seg(id)}/${action}`),
  experimentTrials: (id: string, query: Query, signal?: AbortSignal) =>
    get<TrialPage>(`/api/v1/experiments/${seg(id)}/trials`, query, signal),
  experimentCheckpoints: (id: string, query: Query, signal?: AbortSignal) =>
    get<CheckpointPage>(`/api/v1/experiments/${seg(id)}/checkpoints`, query, signal),
  config: async (id: string, signal?: AbortSignal) =>
    (await send("GET", `/api/v1/experiments/${seg(id)}/config`, undefined, signal)).text(),
  codeFiles: (id: string, signal?: AbortSignal) => get<FileList>(`/api/v1/experiments/${seg(id)}/code/files`, {}, signal),
  codeFile: async (id: string, path: string, signal?: AbortSignal) =>
    (await send("GET", address(`/api/v1/experiments/${seg(id)}/code/file`, { path }), undefined, signal)).text(),
  codeAddress: (id: string) => `/api/v1/experiments/${seg(id)}/code`,
  policy: (id: string, signal?: AbortSignal) => get<Policy>(`/api/v1/experiments/${seg(id)}/policy`, {}, signal),
  setPolicy: (id: string, policy: Policy) => change<Policy>("PUT", `/api/v1/experiments/${seg(id)}/policy`, policy),
  previewPolicy: (id: string, policy: Policy) =>
    change<PolicyPreview>("POST", `/api/v1/experiments/${seg(id)}/policy/preview`, policy),

  trial: (id: string, signal?: AbortSignal) => get<Trial>(`/api/v1/trials/${seg(id)}`, {}, signal),
  actOnTrial: (id: string, action: Action) => change<Trial>("POST", `/api/v1/trials/${seg(id)}/${action}`),
  continueTrial: (id: string, request: ContinueRequest) =>
    change<Experiment>("POST", `/api/v1/trials/${seg(id)}/continue`, request),
  runs: (id: string, signal?: AbortSignal) => get<{ runs: Run[] }>(`/api/v1/trials/${seg(id)}/runs`, {}, signal),
  trialCheckpoints: (id: string, query: Query, signal?: AbortSignal) =>
    get<CheckpointPage>(`/api/v1/trials/${seg(id)}/checkpoints`, query, signal),
  metrics: (id: string, query: Query, signal?: AbortSignal) =>
    get<MetricPage>(`/api/v1/trials/${seg(id)}/metrics`, query, signal),
  logs: (id: string, query: Query, signal?: AbortSignal) => get<LogPage>(`/api/v1/trials/${seg(id)}/logs`, query, signal),
  logStream: (id: string, query: Query) => address(`/api/v1/trials/${seg(id)}/logs`, { ...query, follow: true }),

  checkpoint: (id: string, signal?: AbortSignal) => get<Checkpoint>(`/api/v1/checkpoints/${seg(id)}`, {}, signal),
  patchCheckpoint: (id: string, patch: { pinned?: boolean; metadata?: JsonObject }) =>
    change<Checkpoint>("PATCH", `/api/v1/checkpoints/${seg(id)}`, patch),
  removeCheckpoints: (ids: string[], dryRun: boolean) =>
    change<Removal>("POST", "/api/v1/checkpoints/rm", { ids, dry_run: dryRun }),
  checkpointFiles: (id: string, signal?: AbortSignal) => get<FileList>(`/api/v1/checkpoints/${seg(id)}/files`, {}, signal),
  tensors: (id: string, query: Query, signal?: AbortSignal) =>
    get<TensorPage>(`/api/v1/checkpoints/${seg(id)}/tensors`, query, signal),
  verification: (id: string, signal?: AbortSignal) => get<Verification>(`/api/v1/checkpoints/${seg(id)}/verify`, {}, signal),
  verify: (id: string) => change<Verification>("POST", `/api/v1/checkpoints/${seg(id)}/verify`),
  diff: (id: string, other: string, signal?: AbortSignal) =>
    get<Diff>(`/api/v1/checkpoints/${seg(id)}/diff`, { with: other }, signal),
  lineage: (id: string, signal?: AbortSignal) => get<Lineage>(`/api/v1/checkpoints/${seg(id)}/lineage`, {}, signal),
  downloadAddress: (id: string, format: "tar" | "tar.gz" | "zip") =>
    address(`/api/v1/checkpoints/${seg(id)}/download`, { format }),

  cluster: (signal?: AbortSignal) => get<Cluster>("/api/v1/cluster", {}, signal),
  storage: (signal?: AbortSignal) => get<Storage>("/api/v1/storage", {}, signal),
};

/** A name for one intention of the user, so that sending it twice does it once. */
export function requestId(): string {
  // Not crypto.randomUUID(): a page that came over plain HTTP from another machine has none.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
