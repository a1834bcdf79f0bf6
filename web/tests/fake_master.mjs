// A master of made-up data for tests of the page: the routes of docs/openapi.yaml that the page uses, events, logs that follow, roles,
// and a way to make things happen. It holds no truth about the real one; tests/master.test.ts asks that.
import { createReadStream, existsSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { extname, join, normalize } from "node:path";

const TYPES = { ".html": "text/html; charset=utf-8", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml" };
// As src/master/web_files.cc has it, without the pictures in addresses that it also allows.
export const CSP = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const NOW = Math.floor(Date.now() / 1000);
const DELAY_MS = Number(process.env.CAIRN_WEB_DELAY_MS ?? 0);
const RANKS = { viewer: 0, user: 1, admin: 2 };
const MARKUP = `<img src=x onerror="window.hacked=1"><b>bold</b>`;

function random(seed) {
  let state = Math.imul(seed, 2654435761) >>> 0; // neighbours shall not look alike
  return () => ((state = (Math.imul(state, 1664525) + 1013904223) >>> 0) / 2 ** 32);
}

const uuid = (n) => `${n.toString(16).padStart(8, "0")}-0000-4000-8000-${n.toString(16).padStart(12, "0")}`;

/** Of a trial's two runs, the first of 20 minutes, the second since 2,000 seconds. */
function ranFor(begun, running) {
  return begun ? { ran: running ? 1200 : 3000, running_since: running ? NOW - 2000 : null, duration: running ? 3200 : 3000 } : { ran: 0, running_since: null, duration: null };
}

export class FakeMaster {
  constructor(options = {}) {
    this.options = { experiments: 12, points: 100, dist: null, ...options };
    this.seq = 100;
    this.events = [];
    this.streams = new Set();
    this.logStreams = new Set();
    this.sessions = new Map();
    this.requests = [];
    this.life = 0;
    this.make();
  }

  // ------------------------------------------------------------------------------------------------------------ the data
  make() {
    this.users = ["admin", "user", "viewer"].map((role) => ({ username: role, role, active: true, has_password: true, created: NOW - 9e6 }));
    this.tokens = this.options.experiments === 0 ? [] : [{ id: "t1", name: "laptop", user: "admin", created: NOW - 5e5, expires: null, last_used: NOW - 60 }];
    this.codes = new Set(["once"]);
    this.experiments = new Map();
    this.trials = new Map();
    this.checkpoints = new Map();
    this.metrics = new Map();
    this.logs = new Map();
    this.runs = new Map();
    this.policies = new Map();
    this.verifications = new Map();
    this.nextCheckpoint = 1;
    this.services = [];
    if (this.options.experiments === 0) return;
    this.services = [
      ...[12_052_751, 12_061_207, 12_040_118, 12_056_928].map((rows, server) => ({
        name: `ps_${server}-ctr`, kind: "paramserver", host: `node-${2 + (server >> 1)}`, repository: "/data/ctr", time: NOW - 2,
        facts: { server, servers: 4, state: "serving", mode: "sync", step: 120_000, rows, cuts: 96, increments: 91, checkpoints: 95, failed_saves: 0, saved_step: 119_800, unsaved_changes: 1_204, lost_changes: 0, generation: 2 },
      })),
      { name: "ctr-serve-0", kind: "serving", host: "node-3", repository: "/data/ctr", facts: { version: uuid(119_800), step: 119_800, lag_seconds: 4.2, model: "ctr", newest_step: 119_800, refused: 0, repository_reachable: true, rows: 48_211_004, updates: 91 }, time: NOW - 1 },
    ];
    this.addExperiment({ id: "1", name: "core-api-stage-2", labels: ["tutorial"] });
    this.addTrial("1", "1", { state: "RUNNING", progress: 0.6, steps: 60, hparams: { increment_by: 1 } });
    this.addSearch("2", 24);
    this.addExperiment({ id: "3", name: MARKUP, labels: [MARKUP], notes: MARKUP, description: MARKUP });
    this.addTrial("3", "300", { state: "COMPLETED", progress: 1, steps: 100, hparams: { [MARKUP]: MARKUP }, markup: true });
    const states = ["COMPLETED", "ERROR", "PAUSED", "QUEUED", "CANCELED", "COMPLETED"];
    for (let n = 4; n <= this.options.experiments; n++) {
      const r = random(n);
      const state = states[n % states.length];
      const started = state === "QUEUED" ? null : NOW - (this.options.experiments - n) * 3000 - 4000;
      this.addExperiment({ id: String(n), name: ["resnet50 warmup", "ctr tables", "bert finetune", "tutorial"][n % 4] + ` ${n}`, labels: n % 5 === 0 ? ["nightly"] : [], owner: n % 3 === 0 ? "user" : "admin", started });
      if (n <= 12) this.addTrial(String(n), String(n * 100), { state, progress: state === "COMPLETED" ? 1 : r() * 0.9, steps: state === "QUEUED" ? 0 : 50, hparams: { lr: 0.1 } });
      else {
        const one = this.experiments.get(String(n));
        const begun = state !== "QUEUED";
        Object.assign(one, {
          state, trials: 1 + Math.floor(r() * 40), trial_states: { [state]: 1 }, progress: state === "COMPLETED" ? 1 : begun ? r() : 0, checkpoint_bytes: begun ? Math.floor(r() * 4e10) : 0, checkpoints: begun ? 5 : 0,
          best: begun ? { trial: "1", ...[{ metric: "top1_accuracy", value: 0.5 + r() / 2 }, { metric: "auc", value: 0.6 + r() / 3 }, { metric: "loss", value: r() }, { metric: "x", value: 100 }][n % 4] } : null, duration: begun ? r() * 9e4 : null,
        });
      }
    }
    if (this.options.experiments < 77) this.addContinued("77", "1");
  }

  /** One that began with the weights of another, as `continue --new` makes it, and was put away since. */
  addContinued(id, trial) {
    const from = this.checkpoints.get(this.trials.get(trial).latest_checkpoint.id);
    const parent = { experiment: from.experiment, trial, checkpoint: from.id, steps_completed: from.steps_completed };
    this.addExperiment({ id, name: this.experiments.get(from.experiment).name, parent, archived: true });
    this.addTrial(id, id, { state: "COMPLETED", progress: 1, steps: 10, hparams: { increment_by: 1 }, parent });
  }

  addExperiment(more) {
    const one = {
      name: `experiment ${more.id}`, description: "", state: "QUEUED", owner: "admin", labels: [], notes: "", archived: false, progress: 0,
      created: NOW - 4000, started: NOW - 3600, ended: null, ran: 0, running_since: null, duration: null, trials: 0, trial_states: {}, trial: null, best: null, checkpoints: 0,
      checkpoint_bytes: 0, searcher: { name: "single", metric: "x", smaller_is_better: false }, slots_per_trial: 1, priority: 42, parent: null,
      storage: "/data/checkpoints", code: { code: "0".repeat(64), bytes: 2048 }, config: { name: more.name, entrypoint: ["python3", "2_checkpoints.py"], searcher: { name: "single", metric: "x", smaller_is_better: false }, max_restarts: 5, resources: { slots_per_trial: 1, priority: 42 }, checkpoint_policy: { keep_last: 3 } }, message: "", ...more,
    };
    this.experiments.set(one.id, one);
    this.policies.set(one.id, { keep_last: 3 });
    return one;
  }

  addTrial(experiment, id, { state, progress, steps, hparams, markup = false, loss = null, parent = null }) {
    const trial = {
      id, experiment, state, message: state === "ERROR" ? "run 1 failed with exit code 1" : "", status: markup ? MARKUP : "training", hparams, progress,
      steps_completed: steps, run_id: steps > 0 ? 2 : 0, restarts: id === "1" ? 1 : 0, max_restarts: 5, resume_mode: "resume", resumes_from_step: state === "PAUSED" ? steps : null,
      preemption_deadline: null, created: NOW - 3900, started: steps > 0 ? NOW - 3600 : null, ended: null, ...ranFor(steps > 0, state === "RUNNING"), latest_checkpoint: null, best: null, latest_metrics: {},
      checkpoints: 0, checkpoint_bytes: 0, world_size: 2, slots: 1, priority: 42, detached: false, repository: `/data/checkpoints/${experiment}/${id}`, parent,
    };
    this.trials.set(id, trial);
    this.metrics.set(id, []);
    this.logs.set(id, []);
    this.runs.set(id, steps === 0 ? [] : [
      { run_id: 1, resume_mode: "fresh", from: null, submitted: NOW - 3900, started: NOW - 3600, ended: NOW - 2400, live: false, outcome: id === "1" ? "failed" : "paused", exit_signal: id === "1" ? 9 : null, exit_code: null, host: "node-1" },
      { run_id: 2, resume_mode: "resume", from: { id: uuid(1), steps_completed: Math.floor(steps / 2) }, submitted: NOW - 2400, started: NOW - 2000, ended: state === "RUNNING" ? null : NOW - 200, live: state === "RUNNING", outcome: state === "RUNNING" ? "" : "completed", host: "node-1" },
    ]);
    const r = random(Number(id));
    for (let step = 10; step <= steps; step += 10) {
      const run = step <= steps / 2 ? 1 : 2;
      // The first run had 20 minutes, the second has gone on for 30 since.
      const time = run === 1 ? NOW - 3600 + (2 * step / steps) * 1200 : NOW - 2000 + (2 * step / steps - 1) * 1800;
      const value = loss === null ? step : loss * Math.exp(-step / 40) + r() * 0.05;
      this.metrics.get(id).push({ group: "training", steps_completed: step, run_id: run, time, values: loss === null ? { x: step, loss: 2 * Math.exp(-step / 30) + r() * 0.1 } : { loss: value } });
      if (step % 20 === 0) this.metrics.get(id).push({ group: "validation", steps_completed: step, run_id: run, time, values: { loss: (loss === null ? 2.1 * Math.exp(-step / 30) : value) + 0.1 } });
      this.addCheckpoint(id, step, { time, run_id: run, score: loss === null ? step : value, markup });
      this.logs.get(id).push({ id: this.logs.get(id).length + 1, time, run_id: run, rank: 0, stream: "stdout", level: "INFO", text: markup ? `${MARKUP} step ${step}` : `${step} steps, x = ${step}` });
      this.logs.get(id).push({ id: this.logs.get(id).length + 1, time, run_id: run, rank: 1, stream: "stderr", level: step % 30 === 0 ? "WARNING" : "DEBUG", text: `rank 1 at step ${step}` });
    }
    if (steps > 0) {
      trial.latest_metrics = { training: this.metrics.get(id).filter((one) => one.group === "training").at(-1).values };
      const values = this.metrics.get(id).map((one) => one.values.loss).filter((v) => v !== undefined);
      trial.best = loss === null ? { trial: id, metric: "x", value: steps, steps_completed: steps } : { trial: id, metric: "loss", value: Math.min(...values) };
    }
    this.refresh(experiment);
    return trial;
  }

  addSearch(id, count) {
    this.addExperiment({ id, name: "lr search", searcher: { name: "random", metric: "loss", smaller_is_better: true, max_trials: count } });
    const r = random(7);
    for (let n = 0; n < count; n++) {
      const lr = 10 ** (-4 + 3 * r());
      const state = n < count - 3 ? "COMPLETED" : "RUNNING";
      this.addTrial(id, String(200 + n), { state, progress: state === "COMPLETED" ? 1 : 0.4, steps: state === "COMPLETED" ? 100 : 40, hparams: { lr, width: 64 * (1 + (n % 4)), optimizer: ["adam", "sgd"][n % 2] }, loss: 1 + Math.abs(Math.log10(lr) + 2.5) });
    }
  }

  addCheckpoint(trial, step, more = {}) {
    const { markup, ...rest } = more;
    const id = uuid(this.nextCheckpoint++);
    const increment = step % 20 === 0 && step % 40 !== 0;
    const full = [...this.checkpoints.values()].filter((one) => one.trial === trial && one.kind === "full").at(-1);
    const one = {
      id, registration: `r${id}`, trial, experiment: this.trials.get(trial).experiment, state: "COMPLETED", reason: "", steps_completed: step, ranks: 2,
      kind: increment && full ? "increment" : "full", base: increment && full ? full.id : null, metrics: { x: step }, score: step,
      metadata: markup ? { [MARKUP]: MARKUP } : { steps_completed: step, note: "made by the tutorial" }, bytes: 40_000_000 + step * 1000,
      new_bytes: increment ? 2_000_000 : 40_000_000, pinned: step === 20, latest: false, run_id: 1, time: NOW, generation: 1, sequence: step,
      path: `checkpoint_${String(step).padStart(6, "0")}`, repository: `/data/checkpoints/${trial}`, ...rest,
    };
    this.checkpoints.set(id, one);
    this.latest(trial);
    return one;
  }

  latest(trialId) {
    const trial = this.trials.get(trialId);
    const mine = [...this.checkpoints.values()].filter((one) => one.trial === trialId && one.state === "COMPLETED");
    mine.forEach((one, i) => { one.latest = i === mine.length - 1; });
    const last = mine.at(-1);
    trial.latest_checkpoint = last ? { id: last.id, steps_completed: last.steps_completed } : null;
    trial.checkpoints = mine.length;
    trial.checkpoint_bytes = mine.reduce((sum, one) => sum + one.new_bytes, 0);
  }

  refresh(experimentId) {
    const one = this.experiments.get(experimentId);
    const trials = [...this.trials.values()].filter((trial) => trial.experiment === experimentId);
    one.trials = trials.length;
    one.trial = trials.length === 1 && one.searcher.name === "single" ? trials[0].id : null;
    one.trial_states = {};
    for (const trial of trials) one.trial_states[trial.state] = (one.trial_states[trial.state] ?? 0) + 1;
    one.state = ["RUNNING", "STARTING", "QUEUED", "PAUSING", "PAUSED", "STOPPING", "ERROR", "CANCELED", "COMPLETED"].find((state) => one.trial_states[state]);
    one.progress = trials.reduce((sum, trial) => sum + trial.progress, 0) / trials.length;
    one.checkpoints = trials.reduce((sum, trial) => sum + trial.checkpoints, 0);
    one.checkpoint_bytes = trials.reduce((sum, trial) => sum + trial.checkpoint_bytes, 0);
    const sign = one.searcher.smaller_is_better ? 1 : -1;
    one.best = trials.map((trial) => trial.best).filter(Boolean).sort((a, b) => sign * (a.value - b.value))[0] ?? null;
    const ran = trials.find((trial) => trial.running_since !== null) ?? trials[0];
    Object.assign(one, { ran: ran.ran, running_since: ran.running_since, duration: ran.duration });
  }

  // -------------------------------------------------------------------------------------------------- what tests make happen
  emit(kind, experiment, trial, body = {}, run_id = 2) {
    const event = { seq: ++this.seq, time: NOW + this.seq, kind, experiment, trial, run_id, body };
    this.events.push(event);
    for (const stream of this.streams) sendEvent(stream, event.seq, kind, event);
  }

  setState(trialId, state, more = {}) {
    const trial = this.trials.get(trialId);
    Object.assign(trial, { state, ...more });
    this.refresh(trial.experiment);
    this.emit("trial", trial.experiment, trialId, { state });
    this.emit("experiment", trial.experiment, "", { state: this.experiments.get(trial.experiment).state });
  }

  report(trialId, step, values, run = 2) {
    const trial = this.trials.get(trialId);
    this.metrics.get(trialId).push({ group: "training", steps_completed: step, run_id: run, time: NOW + step, values });
    trial.steps_completed = step;
    trial.progress = Math.min(1, step / 100);
    trial.latest_metrics = { training: values };
    this.emit("metrics", trial.experiment, trialId, { group: "training", steps_completed: step, values }, run);
    this.emit("progress", trial.experiment, trialId, { progress: trial.progress }, run);
  }

  log(trialId, text, more = {}) {
    const list = this.logs.get(trialId);
    const line = { id: list.length + 1, time: NOW + list.length, run_id: 2, rank: 0, stream: "stdout", level: "INFO", text, ...more };
    list.push(line);
    for (const stream of this.logStreams) if (stream.trial === trialId && stream.passes(line)) sendEvent(stream.response, line.id, "log", line);
  }

  // --------------------------------------------------------------------------------------------------------------- serving
  async listen(port = 0) {
    this.life++;
    this.server = createServer((request, response) => {
      this.handle(request, response).catch((error) => {
        console.error(error);
        if (!response.headersSent) response.writeHead(500);
        response.end();
      });
    });
    await new Promise((resolve, reject) => {
      this.server.once("error", reject);
      this.server.listen(port, "127.0.0.1", resolve);
    });
    this.port = this.server.address().port;
    this.url = `http://127.0.0.1:${this.port}`;
    return this;
  }

  /** As kill -9 looks from outside: all connections break. */
  async stop() {
    this.server.closeAllConnections();
    await new Promise((resolve) => this.server.close(resolve));
    this.streams.clear();
    this.logStreams.clear();
  }

  async handle(request, response) {
    const url = new URL(request.url, "http://fake");
    if (!url.pathname.startsWith("/api/")) return this.file(url.pathname, response);
    const chunks = [];
    for await (const chunk of request) chunks.push(chunk);
    const body = chunks.length > 0 ? JSON.parse(Buffer.concat(chunks).toString()) : {};
    const path = url.pathname.replace("/api/v1/", "").split("/").map(decodeURIComponent);
    this.requests.push({ method: request.method, url: request.url, body });
    // Answers that come late and in any order, to find pages and tests that count on another: CAIRN_WEB_DELAY_MS=500.
    if (DELAY_MS > 0) await new Promise((resolve) => { setTimeout(resolve, Math.random() * DELAY_MS); });
    const answer = (status, value) => {
      response.writeHead(status, { "Content-Type": "application/json", "Cache-Control": "no-store" });
      response.end(JSON.stringify(value));
    };
    const fail = (status, code, message) => answer(status, { code, message, details: {} });

    if (path.join("/") === "auth/login") {
      const user = body.code !== undefined ? (this.codes.delete(body.code) ? this.users[0] : null) : this.users.find((one) => one.username === body.username && body.password === "password");
      if (!user) return fail(401, "unauthenticated", body.code !== undefined ? "This link was used already or is too old." : "Wrong name or password.");
      const session = `s${this.sessions.size + 1}-${Math.random()}`;
      this.sessions.set(session, user.username);
      response.setHeader("Set-Cookie", `cairn_session=${session}; HttpOnly; SameSite=Strict; Path=/`);
      return answer(200, { user, expires: NOW + 86400 });
    }
    if (path[0] === "master") return answer(200, { version: "0", api: 1, instance: `life ${this.life}` });
    const session = /cairn_session=([^;]+)/.exec(request.headers.cookie ?? "")?.[1];
    const user = this.users.find((one) => one.username === this.sessions.get(session));
    if (!user) return fail(401, "unauthenticated", "Log in first.");
    if (request.method !== "GET" && !request.headers["x-cairn-request"]) return fail(403, "forbidden", "The header X-Cairn-Request is missing.");
    const viewing = request.method === "GET" || path[0] === "auth" || path[0] === "tokens" || path.at(-1) === "preview";
    const needed = path[0] === "users" && !(request.method === "PATCH" && path[1] === user.username) ? "admin" : viewing ? "viewer" : "user";
    if (RANKS[user.role] < RANKS[needed]) return fail(403, "forbidden", `This needs the role ${needed}.`);
    const result = this.route(request, response, path, url.searchParams, body, user, session);
    if (result === undefined) return;
    if (result === null) return fail(404, "not_found", "There is no such thing.");
    if (result.error) return fail(result.error, result.code ?? "failed_precondition", result.message);
    if (result.text !== undefined && result.id === undefined) {
      response.writeHead(200, { "Content-Type": "text/plain" });
      return response.end(result.text);
    }
    answer(result.http ?? 200, result.http ? result.body : result);
  }

  route(request, response, path, query, body, user, session) {
    const { method } = request;
    const [kind, id, part] = path;
    switch (kind) {
      case "auth":
        if (id === "logout") this.sessions.delete(session);
        return id === "whoami" ? user : {};
      case "users":
        if (method === "POST") { this.users.push({ active: true, has_password: !!body.password, created: NOW, username: body.username, role: body.role }); return { http: 201, body: this.users.at(-1) }; }
        if (method === "PATCH") {
          const one = this.users.find((other) => other.username === id);
          return Object.assign(one, { role: body.role ?? one.role, active: body.active ?? one.active });
        }
        return { users: this.users };
      case "tokens":
        if (method === "POST") { const made = { id: `t${this.tokens.length + 1}`, name: body.name, user: user.username, created: NOW, expires: null, last_used: null }; this.tokens.push(made); return { http: 201, body: { ...made, token: "cairn_secret_of_the_test" } }; }
        if (method === "DELETE") { this.tokens = this.tokens.filter((one) => one.id !== id); return {}; }
        return { tokens: this.tokens };
      case "events":
        return this.follow(request, response, query);
      case "cluster":
        return this.cluster();
      case "storage":
        return this.storage();
      case "experiments":
        return id === undefined ? this.listExperiments(query) : this.experiment(method, id, path.slice(2), query, body);
      case "trials":
        return this.trial(request, response, id, part, query, body);
      case "checkpoints":
        return id === "rm" ? this.remove(body) : this.checkpoint(method, id, part, query, body, response);
    }
    return null;
  }

  follow(request, response, query) {
    response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
    response.write(`event: hello\ndata: ${JSON.stringify({ seq: this.seq, instance: `life ${this.life}` })}\n\n`);
    const after = request.headers["last-event-id"] ?? query.get("after");
    if (after !== undefined && after !== null) for (const event of this.events.filter((one) => one.seq > Number(after))) sendEvent(response, event.seq, event.kind, event);
    this.streams.add(response);
    response.on("close", () => this.streams.delete(response));
    return undefined;
  }

  listExperiments(query) {
    const search = (query.get("search") ?? "").toLowerCase();
    const states = (query.get("state") ?? "").split(",").filter(Boolean);
    const owner = query.get("owner");
    let rows = [...this.experiments.values()].filter((one) => (states.length === 0 || states.includes(one.state)) && (query.get("archived") === "true" || !one.archived) && (owner === null || one.owner === owner)
      && (search === "" || `${one.id} ${one.name} ${one.labels.join(" ")}`.toLowerCase().includes(search)));
    const key = query.get("sort") ?? "id";
    const value = (one) => (key === "id" ? Number(one.id) : key === "best" ? one.best?.value : one[key]);
    const sign = query.get("order") === "asc" ? 1 : -1;
    rows.sort((a, b) => (value(a) < value(b) ? -sign : value(a) > value(b) ? sign : 0));
    return page(rows, "experiments", query, ({ config, notes, ...one }) => one);
  }

  experiment(method, id, [part, sub], query, body) {
    const one = this.experiments.get(id);
    if (!one) return null;
    if (part === undefined && method === "PATCH") { Object.assign(one, body); this.emit("experiment", id, "", { state: one.state }); return one; }
    if (part === undefined && method === "DELETE") { this.experiments.delete(id); this.emit("experiment", id, "", { deleted: true }); return {}; }
    if (part === undefined) return one;
    if (part === "trials") {
      let rows = [...this.trials.values()].filter((trial) => trial.experiment === id);
      const sign = query.get("order") === "desc" ? -1 : 1;
      const value = (trial) => ({ best: trial.best?.value, id: Number(trial.id) }[query.get("sort") ?? "id"] ?? trial[query.get("sort")]);
      rows.sort((a, b) => sign * (value(a) - value(b)));
      return page(rows, "trials", query, (trial) => (query.get("sparkline") ? { ...trial, sparkline: this.metrics.get(trial.id).filter((m) => m.values[query.get("sparkline")] !== undefined && m.group === "training").map((m) => [m.steps_completed, m.values[query.get("sparkline")]]) } : trial));
    }
    if (part === "checkpoints") return this.listCheckpoints((one) => one.experiment === id, query);
    if (part === "config") return { text: `name: ${one.name}\nentrypoint: python3 2_checkpoints.py\nsearcher:\n  name: single\n  metric: x\nmax_restarts: 5\n` };
    if (part === "code" && sub === "files") return { files: [{ path: "2_checkpoints.py", bytes: 1800 }, { path: "README.md", bytes: 90 }], total: 2, bytes: 1890 };
    if (part === "code") return { text: `# ${query.get("path")}\nimport cairn\n\nwith cairn.core.init() as ctx:\n    main(ctx)\n# <script>window.hacked = 1</script>\n` };
    if (part === "policy" && sub === "preview") {
      const completed = [...this.checkpoints.values()].filter((c) => c.experiment === id && c.state === "COMPLETED");
      const stays = new Set(completed.filter((c) => c.pinned || c.latest).map((c) => c.id));
      for (const trial of new Set(completed.map((c) => c.trial))) {
        const mine = completed.filter((c) => c.trial === trial).sort((a, b) => a.steps_completed - b.steps_completed);
        for (const c of body.keep_last ? mine.slice(-body.keep_last) : mine) stays.add(c.id);
      }
      // What an increment builds on stays with it.
      for (const c of completed) if (stays.has(c.id) && c.base) stays.add(c.base);
      const removals = completed.filter((c) => !stays.has(c.id)).map((c) => ({ trial: c.trial, id: c.id, steps_completed: c.steps_completed, bytes: c.bytes, reason: `beyond keep_last ${body.keep_last}` }));
      return { removals, bytes: removals.reduce((sum, r) => sum + r.bytes, 0), kept: completed.length - removals.length };
    }
    if (part === "policy") { if (method === "PUT") this.policies.set(id, body); return this.policies.get(id); }
    for (const trial of [...this.trials.values()].filter((t) => t.experiment === id)) this.act(trial, part);
    return one;
  }

  act(trial, action) {
    const live = ["QUEUED", "STARTING", "RUNNING"].includes(trial.state);
    const ended = ["COMPLETED", "CANCELED", "ERROR"].includes(trial.state);
    const latest = trial.latest_checkpoint?.steps_completed ?? null;
    if (action === "pause" && live) this.setState(trial.id, "PAUSING", { resumes_from_step: latest, preemption_deadline: Date.now() / 1000 + 30 });
    if (action === "activate" && ["PAUSING", "PAUSED"].includes(trial.state)) this.setState(trial.id, "RUNNING", { resumes_from_step: null, preemption_deadline: null });
    if ((action === "cancel" || action === "kill") && !ended) this.setState(trial.id, "CANCELED", { preemption_deadline: null });
  }

  listCheckpoints(which, query) {
    const states = (query.get("state") ?? "COMPLETED").split(",");
    const rows = [...this.checkpoints.values()].filter((one) => which(one) && states.includes(one.state));
    const key = query.get("sort") ?? "time";
    const sign = query.get("order") === "asc" ? 1 : -1;
    rows.sort((a, b) => sign * (a[key] - b[key]) || sign * (a.steps_completed - b.steps_completed));
    return page(rows, "checkpoints", query);
  }

  trial(request, response, id, part, query, body) {
    const trial = this.trials.get(id);
    if (!trial) return null;
    switch (part) {
      case undefined:
        return trial;
      case "runs":
        return { runs: this.runs.get(id) };
      case "checkpoints":
        return this.listCheckpoints((one) => one.trial === id, query);
      case "metrics": {
        let metrics = this.metrics.get(id);
        if (this.options.points > 1000 && id === "1") metrics = long(this.options.points, query);
        return { metrics, names: [] };
      }
      case "logs":
        return this.readLogs(request, response, id, query);
      case "continue": {
        if (!body.new) { this.setState(id, "RUNNING"); return this.experiments.get(trial.experiment); }
        const next = String(this.experiments.size + 1000);
        const from = this.checkpoints.get(body.from ?? trial.latest_checkpoint.id);
        const parent = { experiment: trial.experiment, trial: id, checkpoint: from.id, steps_completed: from.steps_completed };
        this.addExperiment({ id: next, name: `${this.experiments.get(trial.experiment).name}`, parent });
        this.addTrial(next, next, { state: "RUNNING", progress: 0, steps: 0, hparams: { ...trial.hparams, ...(body.config?.hyperparameters ?? {}) }, parent });
        this.emit("experiment", next, "", { state: "RUNNING" });
        return { http: 201, body: this.experiments.get(next) };
      }
      default:
        this.act(trial, part);
        return trial;
    }
  }

  /** As a master does it: a page looks at a stretch of the log, and may find nothing there. */
  backwards(id, passes, before, limit) {
    const all = this.logs.get(id);
    const low = Math.max(1, before - (this.options.stretch ?? 10_000));
    const found = all.slice(low - 1, before - 1).filter(passes);
    const lines = found.slice(-limit);
    const previous = found.length > limit ? lines[0].id : low;
    return { lines, more: previous > 1, next: before - 1, previous };
  }

  readLogs(request, response, id, query) {
    const levels = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"];
    const passes = (line) => (!query.get("level") || levels.indexOf(line.level) >= levels.indexOf(query.get("level"))) && (query.get("rank") === null || line.rank === Number(query.get("rank")))
      && (!query.get("search") || line.text.toLowerCase().includes(query.get("search").toLowerCase()));
    const all = this.logs.get(id).filter(passes);
    const after = request.headers["last-event-id"] ?? query.get("after");
    if (query.get("follow") === "true") {
      response.writeHead(200, { "Content-Type": "text/event-stream", "Cache-Control": "no-store" });
      response.write(": hello\n\n");
      for (const line of all.filter((one) => one.id > Number(after ?? 0))) sendEvent(response, line.id, "log", line);
      const trial = this.trials.get(id);
      if (["PAUSED", "COMPLETED", "CANCELED", "ERROR"].includes(trial.state)) {
        response.end(`event: end\ndata: ${JSON.stringify({ state: trial.state })}\n\n`);
        return undefined;
      }
      const stream = { trial: id, response, passes };
      this.logStreams.add(stream);
      response.on("close", () => this.logStreams.delete(stream));
      return undefined;
    }
    const limit = Number(query.get("limit") ?? 1000);
    if (query.get("before")) {
      return this.backwards(id, passes, Number(query.get("before")), limit);
    }
    if (query.get("tail") !== null && query.get("after") === null) return this.backwards(id, passes, this.logs.get(id).length + 1, Number(query.get("tail")));
    const newer = all.filter((line) => line.id > Number(after ?? 0));
    const lines = newer.slice(0, limit);
    const more = newer.length > limit;
    return { lines, more, next: more ? lines.at(-1).id : this.logs.get(id).length, previous: Number(after ?? 0) + 1 };
  }

  checkpoint(method, id, part, query, body, response) {
    const one = this.checkpoints.get(id);
    if (!one) return null;
    switch (part) {
      case undefined:
        if (method === "PATCH") { Object.assign(one, body); this.emit("checkpoint", one.experiment, one.trial, { id, state: one.state, steps_completed: one.steps_completed, pinned: one.pinned }); }
        return one;
      case "files":
        return { files: [{ path: "manifest.json", bytes: 900 }, { path: "files/checkpoint", bytes: 12 }, { path: "__model__/rank_0-00001.safetensors", bytes: one.bytes - 912 }], total: 3, bytes: one.bytes };
      case "tensors": {
        const rows = Array.from({ length: 320 }, (_, n) => ({ name: `layers/${n}/${n % 2 ? "bias" : "weight"}`, dtype: n % 2 ? "F32" : "BF16", shape: n % 2 ? [256] : [256, 256], bytes: n % 2 ? 1024 : 131072, file: "__model__/rank_0-00001.safetensors" })).filter((t) => t.name.includes(query.get("search") ?? ""));
        return { ...page(rows, "tensors", query), bytes: 1e6 };
      }
      case "verify": {
        if (method === "POST") {
          this.verifications.set(id, { state: "RUNNING", bytes_done: one.bytes / 4, bytes_total: one.bytes, problems: [], time: null });
          return { http: 202, body: this.verifications.get(id) };
        }
        return this.verifications.get(id) ?? { state: "NONE", bytes_done: 0, bytes_total: 0, problems: [], time: null };
      }
      case "diff":
        return { equal: 300, changed: 21, added: 0, removed: 1, tensors: [...Array.from({ length: 20 }, (_, n) => ({ name: `layers/${n}/weight`, kind: "changed", max_difference: n / 100, elements: 65536, changed_elements: 60000 })), { name: "users", kind: "changed", max_difference: 0.5, changed_elements: 1840, rows_added: 120, rows_removed: 7, rows_changed: 1713 }, { name: "head/old", kind: "removed" }] };
      case "lineage": {
        const all = [...this.checkpoints.values()];
        const mine = all.filter((c) => c.trial === one.trial);
        const edges = [];
        mine.forEach((c, i) => {
          if (i > 0) edges.push({ from: mine[i - 1].id, to: c.id, kind: c.run_id === mine[i - 1].run_id ? "next" : "resume" });
          if (c.base) edges.push({ from: c.base, to: c.id, kind: "base" });
        });
        // Trials that began with one of these, by the first that they saved.
        const begun = [...this.trials.values()].filter((trial) => mine.some((c) => c.id === trial.parent?.checkpoint)).map((trial) => ({ from: trial.parent.checkpoint, first: all.find((c) => c.trial === trial.id) })).filter(({ first }) => first);
        for (const { from, first } of begun) edges.push({ from, to: first.id, kind: "continue" });
        const node = (c) => ({ id: c.id, trial: c.trial, experiment: c.experiment, steps_completed: c.steps_completed, state: c.state });
        return { nodes: [...mine, ...begun.map(({ first }) => first)].map(node), edges };
      }
      case "download":
        response.writeHead(200, { "Content-Type": "application/x-tar", "Content-Disposition": `attachment; filename="checkpoint-${one.steps_completed}.tar"` });
        response.end("not really a tar");
        return undefined;
    }
    return null;
  }

  finishVerification(id, state = "GOOD") {
    const one = this.checkpoints.get(id);
    this.verifications.set(id, { state, bytes_done: one.bytes, bytes_total: one.bytes, problems: state === "GOOD" ? [] : ["files/checkpoint: checksum differs"], time: NOW });
    this.emit("verification", one.experiment, one.trial, { id });
  }

  gone(one) {
    Object.assign(one, { state: "DELETED", reason: "removed by admin" });
    this.latest(one.trial);
    this.emit("checkpoint", one.experiment, one.trial, { id: one.id, state: "DELETED" });
  }

  /** As a run does with its next checkpoint. */
  removeUnwanted() {
    for (const one of this.checkpoints.values()) if (one.unwanted && one.state !== "DELETED") this.gone(one);
  }

  remove({ ids, dry_run }) {
    const removed = [];
    const left_to_run = [];
    const kept = [];
    let bytes = 0;
    for (const id of ids) {
      const one = this.checkpoints.get(id);
      if (one.pinned) kept.push({ id, reason: "it is pinned" });
      else if (one.latest && !["COMPLETED", "CANCELED", "ERROR"].includes(this.trials.get(one.trial).state)) kept.push({ id, reason: "its trial goes on from it" });
      else if (["STARTING", "RUNNING", "PAUSING", "STOPPING"].includes(this.trials.get(one.trial).state)) {
        // The run's to remove, with its next checkpoint.
        left_to_run.push(id);
        bytes += one.new_bytes;
        if (!dry_run) one.unwanted = true;
      } else {
        removed.push(id);
        bytes += one.new_bytes;
        if (!dry_run) this.gone(one);
      }
    }
    return { removed, left_to_run, kept, bytes };
  }

  cluster() {
    const entry = (trial) => ({ trial: trial.id, experiment: trial.experiment, name: this.experiments.get(trial.experiment).name, owner: "admin", state: trial.state, slots: 1, priority: 42, since: NOW - 100 });
    const all = [...this.trials.values()];
    return {
      slots: 8, used_slots: all.filter((t) => t.state === "RUNNING").length, running: all.filter((t) => t.state === "RUNNING").map(entry), queue: all.filter((t) => t.state === "QUEUED").map(entry),
      services: this.services,
    };
  }

  storage() {
    const rows = [...this.experiments.values()].map((one) => ({ experiment: one.id, name: one.name, storage: one.storage, checkpoints: one.checkpoints, bytes: one.checkpoint_bytes, pinned_bytes: Math.floor(one.checkpoint_bytes / 10) })).sort((a, b) => b.bytes - a.bytes);
    return { bytes: rows.reduce((sum, row) => sum + row.bytes, 0), checkpoints: this.checkpoints.size, free_bytes: 2e12, experiments: rows };
  }

  file(pathname, response) {
    const name = normalize(pathname === "/" ? "/index.html" : pathname);
    const path = join(this.options.dist, name);
    if (!path.startsWith(this.options.dist) || !existsSync(path) || !statSync(path).isFile()) {
      response.writeHead(404);
      response.end();
      return;
    }
    response.writeHead(200, { "Content-Type": TYPES[extname(path)] ?? "application/octet-stream", "Content-Security-Policy": CSP, "X-Content-Type-Options": "nosniff" });
    createReadStream(path).pipe(response);
  }
}

function sendEvent(response, id, kind, data) {
  response.write(`id: ${id}\nevent: ${kind}\ndata: ${JSON.stringify(data)}\n\n`);
}

function page(rows, name, query, change = (row) => row) {
  const limit = Number(query.get("limit") ?? 50);
  const offset = Number(query.get("offset") ?? 0);
  return { [name]: rows.slice(offset, offset + limit).map(change), total: rows.length, limit, offset };
}

/** A curve with that many points. */
function long(count, query) {
  const r = random(3);
  const from = Number(query.get("from") ?? 0);
  const to = Number(query.get("to") ?? count);
  const wanted = Array.from({ length: count }, (_, n) => ({ group: "training", steps_completed: n + 1, run_id: 1, time: NOW - 4000 + n / 30, values: { loss: 2 * Math.exp(-n / 20000) + r() * 0.3 } }))
    .filter((one) => one.steps_completed >= from && one.steps_completed <= to);
  const by = Math.ceil(wanted.length / Number(query.get("points") ?? 1e9));
  return wanted.filter((_, n) => n % by === 0 || n === wanted.length - 1);
}
