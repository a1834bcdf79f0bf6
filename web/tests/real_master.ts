// A real master with a data directory of its own, started from the build tree, asked by the command line and killed as one likes.
import { execFile, spawn, type ChildProcess } from "node:child_process";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";
import { fileURLToPath } from "node:url";
import { DIST } from "./chromium.mjs";

const ROOT = fileURLToPath(new URL("../..", import.meta.url));
const PROGRAM = join(process.env["CAIRN_BIN_DIR"] ?? join(ROOT, "build/dev/bin"), "cairn");
export const EXAMPLES = join(ROOT, "examples/core_api");
export const HELD = join(ROOT, "python/tests/held_run.py");

export class RealMaster {
  readonly directory = mkdtempSync(join(tmpdir(), "cairn-web-"));
  port = 0;
  /** The link that logs in once. */
  link = "";
  private process: ChildProcess | null = null;
  private said = "";

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  private environment(): NodeJS.ProcessEnv {
    const home = join(this.directory, "home");
    mkdirSync(join(home, "run"), { recursive: true });
    const { CAIRN_TOKEN: _token, ...rest } = process.env;
    return {
      ...rest,
      HOME: home,
      XDG_RUNTIME_DIR: join(home, "run"),
      XDG_CONFIG_HOME: join(home, "config"),
      PYTHONPATH: join(ROOT, "python"),
      PATH: [join(ROOT, ".venv/test/bin"), process.env["PATH"]].join(delimiter),
      CAIRN_MASTER: this.url,
    };
  }

  /** Returns when it answers. The same port each time, so that the page and living runs find it again. */
  async start(): Promise<this> {
    if (!existsSync(PROGRAM)) throw new Error(`${PROGRAM} is missing: scripts/build dev builds it`);
    this.said = "";
    this.process = spawn(PROGRAM, ["master", "--data-dir", join(this.directory, "data"), "--listen", `127.0.0.1:${this.port}`, "--slots", "2", "--web", DIST],
      { env: this.environment(), stdio: ["ignore", "pipe", "pipe"], detached: true });
    const found = new Promise<void>((resolve, reject) => {
      const read = (bytes: Buffer): void => {
        this.said += bytes.toString();
        const link = /http:\/\/127\.0\.0\.1:(\d+)\/#code=\S+/.exec(this.said);
        if (!link) return;
        this.link = link[0];
        this.port = Number(link[1]);
        resolve();
      };
      this.process!.stdout!.on("data", read);
      this.process!.stderr!.on("data", read);
      this.process!.on("exit", () => reject(new Error(`the master ended:\n${this.said}`)));
    });
    await found;
    return this;
  }

  private async end(signal: NodeJS.Signals): Promise<void> {
    const child = this.process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    await gone;
  }

  kill(): Promise<void> {
    return this.end("SIGKILL");
  }

  async stop(): Promise<void> {
    await this.end("SIGTERM");
    rmSync(this.directory, { recursive: true, force: true, maxRetries: 5 });
  }

  cli(...args: string[]): Promise<string> {
    return this.cliWith("", ...args);
  }

  cliWith(input: string, ...args: string[]): Promise<string> {
    return new Promise((resolve, reject) => {
      const child = execFile(PROGRAM, args, { env: this.environment() }, (error, stdout, stderr) => {
        if (error) reject(new Error(`cairn ${args.join(" ")}: ${stderr}${stdout}`));
        else resolve(stdout);
      });
      child.stdin!.end(input);
    });
  }

  /** Another link that logs in once. */
  async newLink(): Promise<string> {
    return /http:\S+#code=\S+/.exec(await this.cli("login-link"))![0];
  }

  get<T>(path: string): Promise<T> {
    return this.ask<T>(path, {});
  }

  put<T>(path: string, body: object): Promise<T> {
    return this.ask<T>(path, { method: "PUT", body: JSON.stringify(body) });
  }

  /** By REST, as the local admin. */
  private async ask<T>(path: string, how: RequestInit): Promise<T> {
    const token = readFileSync(join(this.directory, "data/token"), "utf8").trim();
    const answer = await fetch(`${this.url}${path}`, { ...how, headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" } });
    if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
    return (await answer.json()) as T;
  }

  /** (steps, x) of what the trial reported, in order. */
  async reports(trial: string): Promise<[number, number][]> {
    const { metrics } = await this.get<{ metrics: { group: string; steps_completed: number; values: { x: number } }[] }>(`/api/v1/trials/${trial}/metrics`);
    return metrics.filter((one) => one.group === "training").map((one) => [one.steps_completed, one.values.x]);
  }
}
