// The page with a real master and real trials: what an evening with it is like.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Browser, Page } from "playwright-core";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import type { Experiment, Trial } from "../src/api/types";
import { go, violations, visit, type Visit } from "./browser";
import { launch } from "./chromium.mjs";
import { EXAMPLES, HELD, RealMaster } from "./real_master";

/** Saves arrays at steps 5 and 10, of which a part changes; how quickly its loss falls is a hyperparameter. */
const ARRAYS = `
import cairn
import numpy as np

lr = cairn.get_cluster_info().trial.hparams["lr"]
state = {"layers": {"0": {"weight": np.zeros((8, 8)), "bias": np.zeros(64)}}, "frozen": np.ones(5000)}
with cairn.core.init() as ctx:
    for step in range(1, 11):
        state["layers"]["0"]["bias"][:16] += 0.25
        ctx.train.report_training_metrics(step, {"loss": 1 / (1 + lr * step)})
        if step % 5 == 0:
            ctx.train.report_validation_metrics(step, {"loss": 1 / (1 + lr * step)})
            ctx.checkpoint.save(state, {"steps_completed": step}).wait()
`;
const MARKUP = `<img src=x onerror="window.hacked=1">`;
let browser: Browser;
let master: RealMaster;
const open: Visit[] = [];

beforeAll(async () => {
  browser = await launch();
  master = await new RealMaster().start();
  await master.cliWith("password\n", "user", "create", "vera", "--role", "viewer", "--password-stdin");
});
afterAll(async () => {
  for (const one of open) await one.context.close();
  await browser.close();
  await master.stop();
});

/** An experiment of the tutorial. Each of its runs waits after 35 steps for a file, or for its end. */
async function create(until: string, ...more: string[]): Promise<Experiment> {
  const entrypoint = `env HOLD_AFTER=35 HOLD_UNTIL=${until} python3 ${HELD} 2_checkpoints.py 0.02`;
  const made = await master.cli("e", "create", join(EXAMPLES, "2_checkpoints.yaml"), EXAMPLES, "--json", "--config", `entrypoint=${entrypoint}`, ...more);
  return JSON.parse(made) as Experiment;
}

async function onlyTrial(experiment: string): Promise<string> {
  return expect.poll(async () => (await master.get<{ trials: Trial[] }>(`/api/v1/experiments/${experiment}/trials`)).trials[0]?.id, { timeout: 20_000 }).toBeTruthy()
    .then(async () => (await master.get<{ trials: Trial[] }>(`/api/v1/experiments/${experiment}/trials`)).trials[0]!.id);
}

const state = (page: Page, name: string) => page.getByRole("status", { name: "State" }).getByText(name, { exact: true }).waitFor({ timeout: 60_000 });
const steps = (count: number): [number, number][] => Array.from({ length: count }, (_, n) => [10 * (n + 1), 10 * (n + 1)]);

describe("with a real master", () => {
  it("a trial is created, watched, paused, reactivated, continued, compared, pinned, deleted; the master is killed under it", async () => {
    const seen = await visit(browser, master.url, { hash: new URL(master.link).hash });
    open.push(seen);
    const { page } = seen;
    page.setDefaultTimeout(30_000);
    await page.getByRole("heading", { name: "Experiments" }).waitFor();
    expect(page.url()).not.toContain("code=");
    await page.getByText("No experiments yet.").waitFor();
    await page.evaluate(() => { (window as unknown as { same: boolean }).same = true; });

    // Created by the command line, it appears.
    const gate = join(master.directory, "go-on");
    const experiment = await create(gate, "--config", `description=${MARKUP}`);
    await page.locator(`tr[data-key="${experiment.id}"]`).getByRole("link", { name: "core-api-stage-2" }).click();
    await state(page, "RUNNING");
    const trial = await onlyTrial(experiment.id);

    // The curve grows.
    await page.getByRole("link", { name: "Metrics" }).click();
    const chart = page.getByRole("figure", { name: "x" });
    await chart.getByRole("group", { name: /training from 10 to \d+ at step/ }).waitFor();
    await chart.getByRole("group", { name: /at step [3-9]0/ }).waitFor();
    await chart.getByRole("link", { name: /Checkpoint of step 20/ }).waitFor();

    // Paused in the page, the trial stops where it says. Of its reports alone nobody knows whether it has asked since.
    await expect.poll(() => existsSync(`${gate}.held`), { timeout: 30_000 }).toBe(true);
    await page.getByRole("button", { name: "Pause", exact: true }).click();
    await state(page, "PAUSED");
    const before = await master.reports(trial);
    expect(before).toEqual(steps(4));
    await page.getByText(`Activate goes on from step ${before.length * 10}`).waitFor();
    await page.getByRole("link", { name: "Logs" }).click();
    await page.getByText(`${before.length * 10} steps, x = ${before.length * 10}`).waitFor();

    // Reactivated, it goes on at the same batch; its log is live; the master dies and comes back under an open page.
    await page.getByRole("button", { name: "Activate" }).click();
    await page.getByText(`${(before.length + 1) * 10} steps, x = ${(before.length + 1) * 10}`).waitFor();
    await master.kill();
    await page.getByText("connection lost, trying again").first().waitFor();
    await master.start();
    writeFileSync(gate, "");
    await state(page, "COMPLETED");
    await page.getByText("100 steps, x = 100").waitFor();
    expect(await master.reports(trial)).toEqual(steps(10));
    await page.getByRole("link", { name: "Metrics" }).click();
    await chart.getByRole("group", { name: /from 10 to 100 at step 100/ }).waitFor();
    await page.getByText("run 1 from the beginning: paused").waitFor();
    await page.getByText(/run 2 from step \d0: completed/).waitFor();
    expect(await page.evaluate(() => (window as unknown as { same: boolean }).same)).toBe(true);

    // Continued as a new trial: the old weights, batches from 0.
    await page.getByRole("button", { name: "Continue…" }).click();
    await page.getByText("New trial with these weights, from batch 0").click();
    await page.getByLabel("Config overrides").fill("entrypoint = python3 2_checkpoints.py 0.01");
    await page.getByRole("button", { name: "Start a new trial" }).click();
    await page.getByText("began with the weights of").waitFor();
    await state(page, "COMPLETED");
    const next = decodeURIComponent(/#\/experiments\/([^/?]+)/.exec(page.url())![1]!);
    expect(next).not.toBe(experiment.id);
    const child = await onlyTrial(next);
    expect((await master.reports(child))[0]).toEqual([10, 110]);

    // Compared.
    await page.getByRole("link", { name: "Metrics" }).click();
    await page.getByRole("link", { name: "Compare with the trial it came from" }).click();
    await page.getByRole("heading", { name: "Compare 2 trials" }).waitFor();
    await page.getByRole("group", { name: new RegExp(`trial ${child}.*110 to 200.*trial ${trial}.*10 to 100`) }).waitFor();

    // Checkpoints: pinned, deleted, lineage.
    await go(page, `#/experiments/${experiment.id}/checkpoints`);
    await page.getByRole("button", { name: "Pin step 100", exact: true }).click();
    await page.getByRole("button", { name: "Unpin step 100" }).waitFor();
    const { checkpoints } = await master.get<{ checkpoints: { id: string; steps_completed: number; pinned: boolean }[] }>(`/api/v1/trials/${trial}/checkpoints`);
    expect(checkpoints.find((one) => one.steps_completed === 100)!.pinned).toBe(true);
    const oldest = Math.min(...checkpoints.map((one) => one.steps_completed));
    await page.getByRole("button", { name: `Delete step ${oldest}`, exact: true }).click();
    await page.getByRole("button", { name: "Delete 1", exact: true }).click();
    await page.getByRole("button", { name: `Delete step ${oldest}`, exact: true }).waitFor({ state: "detached" });
    await page.getByRole("link", { name: "100", exact: true }).click();
    await page.getByRole("button", { name: "Verify all bytes" }).click();
    await page.getByText("GOOD").waitFor();
    await page.getByRole("link", { name: "Lineage" }).click();
    await page.getByText(`trial ${child}`, { exact: true }).waitFor();
    expect(await violations(page)).toEqual([]);
    expect(seen.problems).toEqual([]);
  }, 240_000);

  it("arrays in checkpoints are looked into, compared and downloaded; rules are tried; a search has curves and a best trial; services report", async () => {
    const directory = join(master.directory, "arrays");
    mkdirSync(directory);
    writeFileSync(join(directory, "train.py"), ARRAYS);
    const config = (name: string, rest: string): string => {
      const path = join(directory, `${name}.yaml`);
      writeFileSync(path, `name: 'a/b #${name}? 50%'\nentrypoint: python3 train.py\n${rest}`);
      return path;
    };
    const make = async (path: string): Promise<Experiment> => JSON.parse(await master.cli("e", "create", path, directory, "--json")) as Experiment;
    const single = await make(config("single", "hyperparameters: {lr: 0.5}\nsearcher: {name: single, metric: loss}\n"));
    const search = await make(config("search", "hyperparameters: {lr: {type: double, minval: 0.1, maxval: 1.0, count: 3}}\nsearcher: {name: grid, metric: loss}\n"));
    await master.cli("e", "wait", single.id);
    await master.cli("e", "wait", search.id);

    const seen = await visit(browser, master.url, { hash: new URL(await master.newLink()).hash });
    open.push(seen);
    const { page } = seen;
    await page.getByRole("link", { name: "a/b #single? 50%" }).click();
    await page.getByRole("heading", { name: "a/b #single? 50%" }).waitFor();
    await page.getByRole("link", { name: "Config" }).click();
    await page.getByLabel("Config with all defaults").getByText('"preemption_timeout": 600').waitFor();

    await page.getByRole("link", { name: "Checkpoints" }).click();
    await page.getByLabel("Select step 5", { exact: true }).check();
    await page.getByLabel("Select step 10", { exact: true }).check();
    await page.getByRole("button", { name: "Compare the two" }).click();
    await page.getByRole("heading", { name: "Step 5 compared with step 10" }).waitFor();
    await page.getByRole("row", { name: "layers/0/bias changed 1.25 16 of 64 (25 %)" }).waitFor();
    await page.goBack();
    const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("link", { name: "Download step 10", exact: true }).click()]);
    const tar = join(directory, "got.tar");
    await download.saveAs(tar);
    expect(execFileSync("tar", ["tf", tar]).toString()).toContain("manifest.json");
    await page.getByLabel("The last n").fill("1");
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/1 would go and free .*; 1 stay/).waitFor();
    await page.getByRole("link", { name: "10", exact: true }).click();
    await page.getByRole("link", { name: "Tensors" }).click();
    await page.getByRole("row", { name: /^layers\/0\/weight F64 8 × 8 512 B / }).waitFor();

    await go(page, `#/experiments/${search.id}`);
    await page.getByText(/^Best: trial \d+ with loss 0\.09/).waitFor();
    await page.getByRole("img", { name: /^loss of trial \d+: 0\.5 to 0\.09/ }).waitFor();
    await page.getByRole("link", { name: "Learning curves" }).click();
    await page.getByText("The 3 best of 3 trials by loss.").waitFor();
    await page.getByRole("link", { name: "Scatter" }).click();
    await page.getByRole("link", { name: /^Trial \d+: lr 1, loss 0\.09/ }).waitFor();

    await go(page, "#/cluster");
    await page.getByText("No serving process reports to this master.").waitFor();
    await master.put("/api/v1/services/ctr", { kind: "paramserver", facts: { rows: 1234567, cuts: 8, increments: 7 } });
    await master.put("/api/v1/services/front", { kind: "serving", facts: { version: "6f2d6a3e-0c4b-4b61-9f60-1d2f9a5d6c11", lag_seconds: 2.5 } });
    await page.getByRole("article", { name: "ctr" }).getByText("1,234,567").waitFor();
    await page.getByRole("article", { name: "front" }).getByText("2.5 s").waitFor();
    expect(seen.problems).toEqual([]);
  }, 120_000);

  it("the page comes with a policy that allows nothing but what is its own", async () => {
    const answer = await fetch(master.url);
    const policy = answer.headers.get("content-security-policy")!.split("; ");
    expect(policy).toContain("default-src 'none'");
    expect(policy).toContain("script-src 'self'");
    expect(policy).toContain("connect-src 'self'");
    expect(policy).toContain("frame-ancestors 'none'");
    expect(policy.join()).not.toMatch(/unsafe|\*|http/);
    expect(await answer.text()).not.toMatch(/<script>|https?:/);
  });

  it("markup in names, logs and labels is text, and a viewer sees no button that fails", async () => {
    const directory = join(master.directory, "markup");
    mkdirSync(directory);
    copyFileSync(join(EXAMPLES, "0_start.py"), join(directory, "old.py"));
    writeFileSync(join(directory, "config.yaml"), `name: '${MARKUP}'\nlabels: ['${MARKUP}']\nentrypoint: python3 main.py\nsearcher: {name: single, metric: x}\nhyperparameters: {note: '${MARKUP}'}\n`);
    writeFileSync(join(directory, "main.py"), `print('${MARKUP} logged', flush=True)\n`);
    const made = JSON.parse(await master.cli("e", "create", join(directory, "config.yaml"), directory, "--json")) as Experiment;
    await master.cli("e", "wait", made.id);
    const seen = await visit(browser, master.url, { user: "vera" });
    open.push(seen);
    const { page } = seen;
    for (const [hash, text] of [["#/experiments", MARKUP], [`#/experiments/${made.id}`, "Last reports"], [`#/experiments/${made.id}/logs`, `${MARKUP} logged`], [`#/experiments/${made.id}/config`, MARKUP], [`#/experiments/${made.id}/code`, MARKUP],
      [`#/experiments/${made.id}/checkpoints`, "Which checkpoints stay"], ["#/storage", "In checkpoints"], ["#/cluster", "Slots"], ["#/account", "vera"]] as const) {
      await go(page, hash);
      await page.getByText(text).first().waitFor();
      expect(await page.locator("main img").count(), hash).toBe(0);
      if (hash !== "#/account") expect(await page.getByRole("button", { name: /^(Pause|Activate|Stop|Kill|Continue|Delete|Pin step|Unpin|Edit|Verify|Set these rules)/i }).count(), hash).toBe(0);
      expect(await violations(page), hash).toEqual([]);
    }
    expect(await page.evaluate(() => (window as unknown as { hacked?: number }).hacked)).toBeUndefined();
    // An address that somebody wrote as a path leads to the same.
    await page.goto(`${master.url}/experiments/${made.id}`);
    await page.getByText("Last reports").first().waitFor();
    expect(new URL(page.url()).hash).toBe(`#/experiments/${made.id}`);
    expect(seen.problems).toEqual([]);
  }, 120_000);
});
