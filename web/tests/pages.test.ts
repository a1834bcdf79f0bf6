import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from "vitest";
import { DIST, launch, seriousViolations, typeLogin, visit, type Visit } from "./browser";
import { FakeMaster } from "./fake_master.mjs";

let browser: Browser;
let master: FakeMaster;
let open: Visit[] = [];

beforeAll(async () => {
  browser = await launch();
});
afterAll(async () => browser.close());
beforeEach(async () => {
  master = await new FakeMaster({ dist: DIST }).listen();
});
afterEach(async () => {
  const problems = open.flatMap((one) => one.problems);
  for (const one of open) await one.context.close();
  open = [];
  await master.stop();
  expect(problems).toEqual([]);
});

async function look(user: string | null = "admin", hash = "", dark = false): Promise<Visit> {
  const made = await visit(browser, master.url, { dark, hash, ...(user ? { user } : {}) });
  open.push(made);
  return made;
}
async function go({ page }: Visit, hash: string): Promise<void> {
  await page.evaluate((to) => { window.location.hash = to; }, hash);
}

const PLACES: [string, string, string][] = [
  ["experiments", "#/experiments", "core-api-stage-2"],
  ["overview", "#/experiments/1", "Last reports"],
  ["metrics", "#/experiments/1/metrics", "Smoothing"],
  ["checkpoints", "#/experiments/1/checkpoints", "Which checkpoints stay"],
  ["logs", "#/experiments/1/logs", "60 steps, x = 60"],
  ["config", "#/experiments/1/config", "As it was written"],
  ["code", "#/experiments/1/code", "import cairn"],
  ["trials of a search", "#/experiments/2", "Best:"],
  ["learning curves", "#/experiments/2/curves", "best of 24 trials"],
  ["scatter", "#/experiments/2/scatter", "loss by"],
  ["compare", "#/compare?trials=200,201,202", "Compare 3 trials"],
  ["checkpoint", "#/checkpoints/00000003-0000-4000-8000-000000000003", "What it holds"],
  ["tensors", "#/checkpoints/00000003-0000-4000-8000-000000000003/tensors", "layers/0/weight"],
  ["files", "#/checkpoints/00000003-0000-4000-8000-000000000003/files", "manifest.json"],
  ["metadata", "#/checkpoints/00000003-0000-4000-8000-000000000003/metadata", "made by the tutorial"],
  ["lineage", "#/checkpoints/00000003-0000-4000-8000-000000000003/lineage", "trial 77"],
  ["diff", "#/checkpoints/00000003-0000-4000-8000-000000000003/compare/00000004-0000-4000-8000-000000000004", "Only in the first"],
  ["storage", "#/storage", "Free on the disk"],
  ["cluster", "#/cluster", "Parameter servers"],
  ["account", "#/account", "laptop"],
  ["users", "#/users", "May log in"],
  ["no such page", "#/nowhere", "There is no such page."],
  ["no such experiment", "#/experiments/4711", "There is no such thing."],
];

describe("every page", () => {
  it.each([false, true])("shows what it should and has no serious violation (dark: %s)", async (dark) => {
    const it = await look("admin", "", dark);
    for (const [name, hash, text] of PLACES) {
      await go(it, hash);
      await it.page.getByText(text).first().waitFor().catch(() => { throw new Error(`${name}: no "${text}"`); });
      // Only the colours differ.
      expect(await seriousViolations(it.page, dark ? ["color-contrast"] : []), name).toEqual([]);
    }
  }, 60_000);

  it("of a user who is not logged in is the login, which has no serious violation", async () => {
    const { page } = await look(null);
    await page.getByRole("button", { name: "Log in" }).waitFor();
    expect(await seriousViolations(page)).toEqual([]);
    await page.getByLabel("User", { exact: true }).fill("admin");
    await page.getByLabel("Password", { exact: true }).fill("wrong");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByText("Wrong name or password.").waitFor();
    await typeLogin(page, "admin");
    await page.getByRole("button", { name: "Log out" }).click();
    await page.getByRole("button", { name: "Log in" }).waitFor();
  });

  it("opened by the one-time link is logged in, and the code is gone from the address", async () => {
    const { page } = await look(null, "#code=once");
    await page.getByRole("heading", { name: "Experiments" }).waitFor();
    expect(page.url()).not.toContain("once");
    await page.context().clearCookies();
    await page.goto(`${master.url}/#code=once`);
    await page.reload();
    await page.getByText("This link was used already").waitFor();
    expect(page.url()).not.toContain("once");
  });
});

describe("experiments", () => {
  it("of which there are ten thousand have at most 100 rows in the page, wherever one scrolls", async () => {
    await master.stop();
    master = await new FakeMaster({ dist: DIST, experiments: 10_000 }).listen();
    const { page } = await look();
    await page.getByText("10,000 in all").waitFor();
    const box = page.getByRole("region", { name: "Experiments" });
    for (const share of [0, 0.3, 0.9, 1]) {
      await box.evaluate((element, to) => { element.scrollTop = element.scrollHeight * to; }, share);
      const id = String(Math.round(10_000 - share * 9_999));
      if (share === 0 || share === 1) await page.locator(`tr[data-key="${id}"]`).waitFor();
      expect(await page.locator("tr").count()).toBeLessThanOrEqual(100);
    }
    await page.getByRole("button", { name: "Name" }).click();
    await page.locator("th[aria-sort=ascending]").waitFor();
    await page.getByLabel("Search by id").fill("lr search");
    await page.getByText("1 found").waitFor();
    expect(page.url()).toContain("search=lr+search");
  });

  it("change while one looks", async () => {
    const { page } = await look();
    const row = page.locator('tr[data-key="1"]');
    await row.getByText("RUNNING").waitFor();
    master.setState("1", "COMPLETED", { progress: 1 });
    await row.getByText("COMPLETED").waitFor();
    await row.getByText("100 %").waitFor();
  });

  it("are paused and deleted together", async () => {
    const { page } = await look();
    await page.getByLabel("Select experiment 1", { exact: true }).check();
    await page.getByLabel("Select experiment 3", { exact: true }).check();
    await page.getByRole("button", { name: "Pause 1" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await page.locator('tr[data-key="1"]').getByText("PAUSING").waitFor();
    await page.getByLabel("Select experiment 3", { exact: true }).check();
    await page.getByRole("button", { name: "Delete 1" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await page.locator('tr[data-key="3"]').waitFor({ state: "detached" });
    expect(master.experiments.has("3")).toBe(false);
  });
});

describe("a trial", () => {
  it("is paused with a countdown and the step it will resume from, and goes on", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByText(/at most \d+ s more; without another checkpoint it will resume from step 60/).waitFor();
    master.setState("1", "PAUSED", { preemption_deadline: null });
    await page.getByText("Activate goes on from step 60").waitFor();
    await page.getByRole("button", { name: "Activate" }).click();
    await page.getByRole("status", { name: "State" }).getByText("RUNNING").waitFor();
  });

  it("is killed only after a question that says what is lost", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Kill" }).waitFor();
    master.report("1", 67, { x: 67 });
    await page.getByText("step 67").waitFor();
    await page.getByRole("button", { name: "Kill" }).click();
    await page.getByText("Steps 61 to 67 are in no checkpoint").waitFor();
    expect(await seriousViolations(page)).toEqual([]);
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    expect(master.trials.get("1")!.state).toBe("RUNNING");
    await page.getByRole("button", { name: "Kill" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Kill" }).click();
    await page.getByRole("status", { name: "State" }).getByText("CANCELED").waitFor();
  });

  it("that failed before it saved anything leads to its log and can start again", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Continue…" }).waitFor();
    master.setState("1", "ERROR", { latest_checkpoint: null, message: "rank 0 ended with code 2", restarts: 6 });
    await page.getByRole("link", { name: "see its log" }).waitFor();
    expect(await page.getByRole("button", { name: "Continue…" }).count()).toBe(0);
    await page.getByText("5 of 5").waitFor();
    expect(await seriousViolations(page)).toEqual([]);
    await page.getByRole("button", { name: "Start again" }).click();
    await page.getByRole("status", { name: "State" }).getByText("RUNNING").waitFor();
    expect(master.requests.find((one) => one.url.endsWith("/continue"))!.body).toMatchObject({ new: false });
  });

  it("asks nothing any more when one has gone elsewhere", async () => {
    const { page } = await look("admin", "#/experiments/3");
    await page.getByRole("button", { name: "Continue…" }).click();
    await page.getByRole("dialog").waitFor();
    await page.evaluate(() => { location.hash = "#/experiments/3/logs"; });
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await page.getByRole("tab", { name: "Logs", selected: true }).or(page.locator("a[aria-current=page]", { hasText: "Logs" })).first().waitFor();
  });

  it("that goes on keeps its config, so that there is nothing to fill in", async () => {
    const { page } = await look("admin", "#/experiments/3");
    await page.getByRole("button", { name: "Continue…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("Go on with this trial from step 100").waitFor();
    expect(await dialog.getByLabel("Config overrides").count()).toBe(0);
    await dialog.getByText("New trial with these weights, from batch 0").click();
    await dialog.getByLabel("Config overrides").waitFor();
  });

  it("is continued as a new one with another checkpoint and config, by a request that can be repeated", async () => {
    const { page } = await look("admin", "#/experiments/3");
    await page.getByRole("button", { name: "Continue…" }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByText("Go on with this trial from step 100").waitFor();
    await dialog.getByText("New trial with these weights, from batch 0").click();
    const option = await dialog.getByRole("option", { name: /^step 50 / }).getAttribute("value");
    await dialog.getByLabel("Checkpoint").selectOption(option);
    await dialog.getByText("begins at step 0 with the weights of step 50").waitFor();
    await dialog.getByLabel("Config overrides").fill("nonsense");
    await dialog.getByText("Line 1").waitFor();
    await dialog.getByLabel("Config overrides").fill("hyperparameters.lr = 0.5");
    expect(await seriousViolations(page)).toEqual([]);
    await dialog.getByRole("button", { name: "Start a new trial" }).click();
    await page.getByText("began with the weights of").waitFor();
    const sent = master.requests.find((one) => one.url.endsWith("/continue"))!;
    expect(sent.body).toMatchObject({ new: true, from: option, config: { hyperparameters: { lr: 0.5 } } });
    expect(String(sent.body["request_id"])).toMatch(/^[0-9a-f]{32}$/);
  });
});

describe("metrics", () => {
  it("grow while one looks, and a checkpoint is a mark that leads to its page", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "x" });
    await chart.getByRole("group", { name: /to 60 at step 60/ }).waitFor();
    await page.getByText("killed by signal 9").first().waitFor();
    expect(await chart.getByRole("link").count()).toBe(6);
    master.report("1", 70, { x: 70 });
    await chart.getByRole("group", { name: /to 70 at step 70/ }).waitFor();
    const made = master.addCheckpoint("1", 70);
    master.emit("checkpoint", "1", "1", { id: made.id, state: "COMPLETED", steps_completed: 70 });
    const mark = chart.getByRole("link", { name: /Checkpoint of step 70, full/ });
    await mark.click();
    await page.getByRole("heading", { name: "Checkpoint of step 70" }).waitFor();
  });

  it("are zoomed by dragging and by keys, smoothed, on a log scale, by time", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "x" });
    const over = chart.locator(".u-over");
    await over.waitFor();
    const box = (await over.boundingBox())!;
    const marks = chart.getByRole("link");
    expect(await marks.count()).toBe(6);
    await page.mouse.move(box.x + box.width * 0.55, box.y + box.height * 0.9);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.95, box.y + box.height * 0.9, { steps: 4 });
    await page.mouse.up();
    await expect.poll(() => marks.count()).toBe(2);
    await page.mouse.move(box.x + box.width * 0.5, box.y + box.height * 0.5);
    await expect.poll(() => chart.locator(".readout").textContent()).toMatch(/step \d+ · training \d+/);
    await page.getByRole("button", { name: "Show all" }).click();
    await expect.poll(() => marks.count()).toBe(6);
    await chart.locator(".plot").focus();
    for (let n = 0; n < 4; n++) await page.keyboard.press("+");
    await expect.poll(() => marks.count()).toBeLessThan(6);
    await page.keyboard.press("0");
    await expect.poll(() => marks.count()).toBe(6);
    await page.getByLabel("Smoothing").selectOption("0.9");
    await page.getByLabel("Log scale").check();
    await page.getByLabel("X axis").selectOption("time");
    await chart.getByRole("group", { name: /at 20\d\d-/ }).waitFor();
  });

  it("that were thinned are read finer where one zooms in", async () => {
    await master.stop();
    master = await new FakeMaster({ dist: DIST, points: 50_000 }).listen();
    const { page } = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "loss" });
    await chart.getByRole("group", { name: /at step 50000/ }).waitFor();
    const over = chart.locator(".u-over");
    const box = (await over.boundingBox())!;
    const step = async (share: number): Promise<number> => {
      await page.mouse.move(box.x + box.width * share, box.y + box.height * 0.5);
      const text = await chart.locator(".readout").textContent();
      return Number(/step ([\d,]+)/.exec(text ?? "")?.[1]?.replaceAll(",", "") ?? NaN);
    };
    await page.mouse.move(box.x + box.width * 0.5, box.y + box.height * 0.9);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.51, box.y + box.height * 0.9, { steps: 4 });
    await page.mouse.up();
    // Coarse, each fifth step can be pointed at; fine, neighbours differ by one.
    await expect.poll(async () => {
      const seen = new Set<number>();
      for (let share = 0.45; share < 0.5; share += 0.001) seen.add(await step(share));
      const sorted = [...seen].sort((a, b) => a - b);
      return Math.min(...sorted.slice(1).map((one, i) => one - sorted[i]!));
    }, { timeout: 20_000 }).toBe(1);
  });
});

describe("checkpoints", () => {
  it("are pinned, compared, deleted; what has to stay stays and says why", async () => {
    const { page } = await look("admin", "#/experiments/1/checkpoints");
    await page.getByRole("button", { name: "Pin step 30", exact: true }).click();
    await page.getByRole("button", { name: "Unpin step 30" }).waitFor();
    await page.getByLabel("Select step 40").check();
    await page.getByLabel("Select step 60").check();
    await page.getByRole("button", { name: "Delete 2…" }).click();
    await page.getByText("it is the latest of a trial that may go on").waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Compare the two" }).click();
    await page.getByText("layers/19/weight").waitFor();
    await page.goBack();
    await page.getByRole("button", { name: "Delete step 10", exact: true }).click();
    await page.getByRole("button", { name: "Delete 1", exact: true }).click();
    await page.getByRole("link", { name: "10", exact: true }).waitFor({ state: "detached" });
  });

  it("are verified with progress", async () => {
    const id = [...master.checkpoints.keys()][2]!;
    const { page } = await look("admin", `#/checkpoints/${id}`);
    await page.getByRole("button", { name: "Verify all bytes" }).click();
    await page.getByRole("progressbar", { name: "Verified" }).waitFor();
    master.finishVerification(id, "DAMAGED");
    await page.getByText("checksum differs").waitFor();
  });

  it("are kept by rules whose effect is shown before they are set", async () => {
    const { page } = await look("admin", "#/experiments/1/checkpoints");
    await page.getByLabel("The last n").fill("2");
    expect(await page.getByRole("button", { name: "Set these rules" }).isDisabled()).toBe(true);
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/\d would go and free/).waitFor();
    await page.getByRole("button", { name: "Set these rules" }).click();
    await page.getByText("The rules are set.").waitFor();
    expect(master.requests.find((one) => one.method === "PUT")!.body).toEqual({ keep_last: 2 });
  });
});

describe("logs", () => {
  it("come as they are written, pass filters, and have an address for each line", async () => {
    const it = await look("admin", "#/experiments/1/logs");
    const { page } = it;
    await page.getByText("60 steps, x = 60").waitFor();
    await page.locator(".toolbar").getByText("live").waitFor();
    master.log("1", "a new line");
    await page.getByText("a new line").waitFor();
    await page.getByLabel("Level").selectOption("WARNING");
    await page.getByText("60 steps, x = 60").waitFor({ state: "detached" });
    await page.getByText("rank 1 at step 30").waitFor();
    master.log("1", "hidden");
    master.log("1", "burning", { level: "ERROR" });
    await page.getByText("burning").waitFor();
    expect(await page.getByText("hidden").count()).toBe(0);
    await page.getByLabel("Level").selectOption("");
    await page.getByLabel("Lines that contain").fill("x = 20");
    await page.locator(".log-line").getByText("20 steps").waitFor();
    await go(it, "#/experiments/1/logs?line=5");
    await page.getByLabel("Lines that contain").fill("");
    await page.locator(".log-line.marked").getByText("30 steps, x = 30").waitFor();
  });

  it("of many lines keep few in the page", async () => {
    for (let n = 0; n < 5000; n++) master.log("1", `line ${n}`);
    const { page } = await look("admin", "#/experiments/1/logs");
    await page.getByText("line 4999").waitFor();
    expect(await page.locator(".log-line").count()).toBeLessThanOrEqual(100);
    await page.getByRole("region", { name: "Log" }).evaluate((element) => { element.scrollTop = 0; });
    // Older ones are read as one scrolls up.
    await expect.poll(() => master.requests.filter((one) => one.url.includes("before=")).length).toBeGreaterThan(0);
  });
});

describe("what comes from outside", () => {
  it("is shown as text wherever it stands", async () => {
    const it = await look("admin", "#/experiments");
    for (const hash of ["#/experiments", "#/experiments/3", "#/experiments/3/metrics", "#/experiments/3/checkpoints", "#/experiments/3/logs", "#/experiments/3/config", "#/experiments/3/code", "#/storage",
      `#/checkpoints/${[...master.checkpoints.values()].find((one) => one.trial === "300")!.id}/metadata`, "#/compare?trials=300,1"]) {
      await go(it, hash);
      await it.page.locator("main h1, main h2, main .log-line, main pre").first().waitFor();
      if (hash.endsWith("logs")) await it.page.getByText('onerror="window.hacked=1"').first().waitFor();
      expect(await it.page.locator("main img, main b, main script").count(), hash).toBe(0);
    }
    expect(await it.page.evaluate(() => (window as unknown as { hacked?: number }).hacked)).toBeUndefined();
  });
});

describe("the connection", () => {
  it("that breaks comes back by itself, with what happened meanwhile", async () => {
    const it = await look("admin", "#/experiments/1/metrics");
    const { page } = it;
    await page.getByRole("group", { name: /x: .*to 60 at step 60/ }).waitFor();
    await page.evaluate(() => { (window as unknown as { same: boolean }).same = true; });
    const { port } = master;
    await master.stop();
    await page.getByText("connection lost, trying again").waitFor();
    master.report("1", 70, { x: 70 });
    await master.listen(port);
    await page.getByText("live", { exact: true }).waitFor();
    await page.getByRole("group", { name: /x: .*to 70 at step 70/ }).waitFor();
    master.setState("1", "PAUSED");
    await page.getByRole("status", { name: "State" }).getByText("PAUSED").waitFor();
    expect(await page.evaluate(() => (window as unknown as { same: boolean }).same)).toBe(true);
  });
});

describe("a viewer", () => {
  it("sees no button that would be refused", async () => {
    const it = await look("viewer");
    const { page } = it;
    const forbidden = /^(Pause|Activate|Stop|Kill|Continue|Delete|Pin step|Unpin|Edit|Verify|Set these rules|New user)/i;
    for (const [name, hash, text] of PLACES.filter(([name]) => name !== "users")) {
      await go(it, hash);
      await page.getByText(text).first().waitFor();
      if (name === "account") continue; // its own tokens and password are the viewer's
      expect(await page.getByRole("button", { name: forbidden }).count(), name).toBe(0);
      for (const box of await page.getByRole("checkbox", { name: /Select experiment/ }).all()) expect(await box.isVisible(), name).toBe(false);
    }
    expect(await page.getByRole("link", { name: "Users" }).count()).toBe(0);
    await go(it, "#/experiments/1/checkpoints");
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/stay/).first().waitFor();
    await go(it, "#/users");
    await page.getByText("There is no such page.").waitFor();
    await expect.poll(() => master.requests.filter((one) => one.url.startsWith("/api/v1/users")).length).toBe(0);
  });
});
