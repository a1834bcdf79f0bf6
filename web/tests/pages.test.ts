// Every page against a master of made-up data.
import { describe, expect, it } from "vitest";
import { go, violations, typeLogin } from "./browser";
import { PLACES } from "./places";
import { Stage } from "./stage";

const stage = new Stage();
const look = stage.look.bind(stage);

describe("every page", () => {
  it.each([false, true])("shows what it should and breaks no rule of axe (dark: %s)", async (dark) => {
    const it = await look("admin", "", dark);
    for (const [name, hash, text] of PLACES) {
      await go(it.page, hash);
      await it.page.getByText(text).first().waitFor().catch(() => { throw new Error(`${name}: no "${text}"`); });
      expect(await violations(it.page), name).toEqual([]);
    }
  }, 240_000);

  it("of a user who is not logged in is the login, which breaks no rule of axe", async () => {
    const { page } = await look(null);
    await page.getByRole("button", { name: "Log in" }).waitFor();
    expect(await violations(page)).toEqual([]);
    // Who has neither a password nor a link is told how to get one.
    expect(await page.locator(".command code").allTextContents()).toEqual([`cairn login-link -m ${stage.master.url}`, `cairn user change-password USER -m ${stage.master.url}`]);
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
    await page.goto(`${stage.master.url}/#code=once`);
    await page.reload();
    await page.getByText("This link was used already").waitFor();
    expect(page.url()).not.toContain("once");
  });
});

describe("experiments", () => {
  it("that come into view while another order is being read are read too", async () => {
    await stage.use({ experiments: 1_000 });
    const { page } = await look();
    await page.getByText("1,000 in all").waitFor();
    const box = page.getByRole("region", { name: "Experiments" });
    // Both ends of the old order have been read.
    for (const [share, id] of [[1, "1"], [0, "1000"], [1, "1"]] as const) {
      await box.evaluate((element, to) => { element.scrollTop = element.scrollHeight * to; }, share);
      await page.locator(`tr[data-key="${id}"]`).waitFor();
    }
    let answer!: () => void;
    const later = new Promise<void>((resolve) => { answer = resolve; });
    await page.route(/sort=name.*offset=900/, async (route) => { await later; await route.continue(); });
    await page.getByRole("button", { name: "Name" }).click();
    // At the beginning of the new order, of which nothing is there: the answer is about its end.
    await page.locator('tbody tr[aria-rowindex="2"]').waitFor();
    answer();
    await page.locator("th[aria-sort=ascending]").waitFor();
    await page.locator('tbody tr[data-key="3"][aria-rowindex="2"]').waitFor();
  });

  it("of which there are ten thousand have at most 100 rows in the page, wherever one scrolls", async () => {
    await stage.use({ experiments: 10_000 });
    const { page } = await look();
    await page.getByText("10,000 in all").waitFor();
    const box = page.getByRole("region", { name: "Experiments" });
    for (const share of [0, 0.3, 0.9, 1]) {
      await box.evaluate((element, to) => { element.scrollTop = element.scrollHeight * to; }, share);
      const id = String(Math.round(10_000 - share * 9_999));
      if (share === 0 || share === 1) await page.locator(`tr[data-key="${id}"]`).waitFor();
      expect(await page.locator("tr").count()).toBeLessThanOrEqual(100);
    }
    // Another order begins at its beginning, with rows.
    await page.getByRole("button", { name: "Name" }).click();
    await page.locator("th[aria-sort=ascending]").waitFor();
    await page.locator("tbody tr[data-key]").first().waitFor();
    expect(await box.evaluate((element) => element.scrollTop)).toBe(0);
    // So do the rows in view when the list is another one, wherever one stands.
    await box.evaluate((element) => { element.scrollTop = element.scrollHeight / 2; });
    await page.locator("tr[aria-rowindex='5000'][data-key]").waitFor();
    await page.getByLabel("Also archived").check();
    await expect.poll(() => stage.master.requests.at(-1)!.url).toContain("archived=true");
    await page.locator("tr[aria-rowindex='5000'][data-key]").waitFor();
    await expect.poll(() => page.locator("tbody tr.waiting").count()).toBe(0);
    await page.getByLabel("Search by id").fill("lr search");
    await page.getByText("1 found").waitFor();
    expect(page.url()).toContain("search=lr+search");
    // The place in the frame is all of them: what was searched for is forgotten with its address.
    await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Experiments" }).click();
    await page.getByText("10,000 in all").waitFor();
    expect(await page.getByLabel("Search by id").inputValue()).toBe("");
    await page.goBack();
    await page.getByText("1 found").waitFor();
    expect(await page.getByLabel("Search by id").inputValue()).toBe("lr search");
  });

  it("have all columns, and are sorted by each", async () => {
    const { page } = await look();
    await page.getByText("12 in all").waitFor();
    const columns = [["Id", "id"], ["Name", "name"], ["State", "state"], ["Progress", "progress"], ["Trials", "trials"], ["Best metric", "best"], ["Checkpoints", "checkpoint_bytes"], ["Owner", "owner"], ["Started", "started"], ["Duration", "duration"]] as const;
    expect((await page.getByRole("columnheader").allTextContents()).map((text) => text.replace(/[▲▼]/, "")).slice(1)).toEqual(columns.map(([title]) => title));
    for (const [title, key] of columns) {
      const head = page.getByRole("columnheader", { name: title, exact: true });
      const before = await head.getAttribute("aria-sort");
      await head.getByRole("button").click();
      await expect.poll(() => head.getAttribute("aria-sort")).not.toBe(before);
      await expect.poll(() => stage.master.requests.at(-1)!.url).toContain(`sort=${key}`);
    }
  });

  it("count how long they ran, not how long they waited and rested", async () => {
    const { page } = await look();
    const cell = (id: string, column: number) => page.locator(`tr[data-key="${id}"] td`).nth(column);
    // Started an hour ago, 20 minutes until it failed, 2,000 seconds since; the made-up master's clock began with this file.
    await expect.poll(() => cell("1", 10).textContent()).toMatch(/^5[3-9] min/);
    expect(await cell("9", 9).textContent()).toBe("–");
    expect(await cell("9", 10).textContent()).toBe("–");
    expect(await page.getByRole("columnheader", { name: "Duration" }).getAttribute("title")).toContain("without pauses and without waiting for slots");
    await go(page, "#/experiments/1");
    await page.locator("dl.facts div").filter({ hasText: /^Duration5[3-9] min/ }).waitFor();
  });

  it("say which metric their best one is of, and are filtered by owner", async () => {
    const { page } = await look("user");
    await page.locator('tr[data-key="2"]').getByText("loss").waitFor();
    await page.getByLabel("Only mine").check();
    await page.getByText("3 found").waitFor();
    expect(page.url()).toContain("owner=user");
    expect(await page.locator('tr[data-key="1"]').count()).toBe(0);
  });

  it("that match are selected all at once", async () => {
    const { page } = await look();
    await page.getByLabel("State").selectOption("COMPLETED");
    await page.getByText("5 found").waitFor();
    await page.getByLabel("Select all that match").click();
    await page.getByRole("button", { name: "Archive 5" }).waitFor();
    await page.getByLabel("Select all that match").click();
    await page.getByRole("button", { name: "Archive 5" }).waitFor({ state: "detached" });
  });

  it("that were selected are not taken for those that match now", async () => {
    const { page } = await look();
    await page.getByLabel("State").selectOption("COMPLETED");
    await page.getByText("5 found").waitFor();
    await page.getByLabel("Select all that match").click();
    await page.getByText("5 selected").waitFor();
    await page.getByLabel("State").selectOption("PAUSED");
    await page.locator("tbody").getByText("PAUSED").first().waitFor();
    await page.locator("tbody").getByText("COMPLETED").first().waitFor({ state: "detached" });
    expect(await page.getByLabel("Select all that match").isChecked()).toBe(false);
  });

  it("change while one looks", async () => {
    const { page } = await look();
    const row = page.locator('tr[data-key="1"]');
    await row.getByText("RUNNING").waitFor();
    stage.master.setState("1", "COMPLETED", { progress: 1 });
    await row.getByText("COMPLETED").waitFor();
    await row.getByText("100 %").waitFor();
  });

  it("are paused and deleted together", async () => {
    const { page } = await look();
    await page.getByLabel("Select experiment 1", { exact: true }).check();
    await page.getByLabel("Select experiment 3", { exact: true }).check();
    await page.getByRole("button", { name: "Pause 1" }).click();
    // Who says no keeps what was selected.
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
    await page.getByText("2 selected").waitFor();
    await page.getByRole("button", { name: "Pause 1" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Pause" }).click();
    await page.locator('tr[data-key="1"]').getByText("PAUSING").waitFor();
    await page.getByLabel("Select experiment 3", { exact: true }).check();
    await page.getByRole("button", { name: "Delete 1" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Delete" }).click();
    await page.locator('tr[data-key="3"]').waitFor({ state: "detached" });
    expect(stage.master.experiments.has("3")).toBe(false);
  });
});

describe("a trial", () => {
  it("is paused with a countdown and the step it will resume from, and goes on", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Pause" }).click();
    const note = page.getByText(/at most \d+ s more; without another checkpoint it will resume from step 60/);
    await note.waitFor();
    const left = async (): Promise<number> => Number(/at most (\d+) s/.exec((await note.textContent())!)![1]);
    const first = await left();
    expect(first).toBeLessThanOrEqual(30);
    await expect.poll(left).toBeLessThan(first);
    stage.master.setState("1", "PAUSED", { preemption_deadline: null });
    await page.getByText("Activate goes on from step 60").waitFor();
    await page.getByRole("button", { name: "Activate" }).click();
    await page.getByRole("status", { name: "State" }).getByText("RUNNING").waitFor();
  });

  it("that was paused by a double click stays paused", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Pause" }).dblclick({ delay: 60 });
    await page.getByText("it will resume from step 60").waitFor();
    expect(stage.master.requests.filter((one) => one.method === "POST").map((one) => one.url)).toEqual(["/api/v1/auth/login", "/api/v1/trials/1/pause"]);
  });

  it("that never said how far it is shows no progress, rather than none made", async () => {
    stage.master.trials.get("1")!.progress = 0;
    stage.master.experiments.get("1")!.progress = 0;
    const { page } = await look("admin", "#/experiments");
    const row = page.locator('tr[data-key="1"]');
    await row.getByRole("img", { name: "Progress of 1: not reported" }).waitFor();
    expect(await row.getByRole("progressbar").count()).toBe(0);
    await go(page, "#/experiments/1");
    await page.getByRole("img", { name: "Progress: not reported" }).waitFor();
    stage.master.report("1", 70, { x: 70 });
    await page.getByRole("progressbar", { name: "Progress" }).waitFor();
    await page.getByText("70 %").waitFor();
  });

  it("is killed only after a question that says what is lost", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Kill" }).waitFor();
    stage.master.report("1", 67, { x: 67 });
    await page.getByText("step 67").waitFor();
    await page.getByRole("button", { name: "Kill" }).click();
    await page.getByText("Steps 61 to 67 are in no checkpoint").waitFor();
    expect(await violations(page)).toEqual([]);
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    expect(stage.master.trials.get("1")!.state).toBe("RUNNING");
    await page.getByRole("button", { name: "Kill" }).click();
    await page.getByRole("dialog").getByRole("button", { name: "Kill" }).click();
    await page.getByRole("status", { name: "State" }).getByText("CANCELED").waitFor();
  });

  it("that failed before it saved anything leads to its log and can start again", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Continue…" }).waitFor();
    stage.master.setState("1", "ERROR", { latest_checkpoint: null, message: "rank 0 ended with code 2", restarts: 6 });
    await page.getByRole("link", { name: "see its log" }).waitFor();
    expect(await page.getByRole("button", { name: "Continue…" }).count()).toBe(0);
    await page.getByText("5 of 5").waitFor();
    expect(await page.getByRole("link", { name: "see its log" }).getAttribute("href")).toBe("#/experiments/1/logs");
    expect(await violations(page)).toEqual([]);
    await page.getByRole("button", { name: "Start again" }).click();
    await page.getByRole("status", { name: "State" }).getByText("RUNNING").waitFor();
    expect(stage.master.requests.find((one) => one.url.endsWith("/continue"))!.body).toMatchObject({ new: false });
  });

  it("that somebody started by hand says how it goes on, and offers nothing that the master cannot do", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByRole("button", { name: "Continue…" }).waitFor();
    stage.master.setState("1", "PAUSED", { detached: true, resumes_from_step: 60 });
    await page.getByText("It was started by hand: start its command again, and it goes on from step 60").waitFor();
    expect(await page.getByRole("button", { name: /^(Activate|Continue)/ }).count()).toBe(0);
    await page.getByRole("button", { name: "Stop" }).waitFor();
    await page.getByRole("link", { name: "Checkpoints" }).click();
    await page.getByRole("button", { name: "Pin step 30", exact: true }).waitFor();
    expect(await page.getByRole("button", { name: /^Continue from/ }).count()).toBe(0);
    // Nothing it writes comes to the master, which promises none of it.
    stage.master.logs.set("1", []);
    await page.getByRole("link", { name: "Logs" }).click();
    await page.getByText("It has sent no lines.").waitFor();
    expect(await page.getByText("Lines appear here").count()).toBe(0);
  });

  it("that waits for slots says so of its run, and since when", async () => {
    const { page } = await look("admin", "#/experiments/1");
    await page.getByText("run 2 from step 30: running").waitFor();
    Object.assign(stage.master.runs.get("1")!.at(-1)!, { started: null });
    stage.master.setState("1", "QUEUED", { running_since: null, duration: 1200 });
    await page.getByText(/run 2 from step 30: waits for slots · asked for 20/).waitFor();
    await page.locator("dl.facts div").filter({ hasText: /^Duration20 min 0 s/ }).waitFor();
    // By time there is nothing of it to be seen yet.
    await go(page, "#/experiments/1/metrics");
    await page.getByLabel("X axis").selectOption("time");
    await page.getByText(/run 2 from step 30: waits for slots/).waitFor();
  });

  it("among many names itself in its commands, not the experiment that would choose another", async () => {
    const { page } = await look("admin", "#/trials/200");
    await page.getByText("cairn trial continue 200 --new").waitFor();
    expect(await page.locator(".command code").allTextContents()).toEqual(["logs 200", "checkpoints 200", "continue 200 --new"].map((verb) => `cairn trial ${verb} -m ${stage.master.url}`));
    await go(page, "#/experiments/1");
    await page.getByText("cairn experiment continue 1 --new").waitFor();
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
    expect(await violations(page)).toEqual([]);
    await dialog.getByRole("button", { name: "Start a new trial" }).click();
    await page.getByText("began with the weights of").waitFor();
    const sent = stage.master.requests.find((one) => one.url.endsWith("/continue"))!;
    expect(sent.body).toMatchObject({ new: true, from: option, config: { hyperparameters: { lr: 0.5 } } });
    expect(String(sent.body["request_id"])).toMatch(/^[0-9a-f]{32}$/);
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
    await page.getByText("its trial goes on from it").waitFor();
    await page.getByRole("button", { name: "Cancel" }).click();
    await page.getByRole("button", { name: "Compare the two" }).click();
    await page.getByText("layers/19/weight").waitFor();
    // The older one first, whichever was selected first.
    await page.getByRole("heading", { name: "Step 40 compared with step 60" }).waitFor();
    await page.getByText("rows: 1,713 changed, 120 added, 7 removed").waitFor();
    await page.goBack();
    await page.getByRole("button", { name: "Delete step 10", exact: true }).click();
    // It runs, and nobody else may remove from its repository.
    await page.getByText("The trial runs: it removes it itself, with its next checkpoint or when it ends.").waitFor();
    await page.getByRole("button", { name: "Delete 1", exact: true }).click();
    await page.getByText("1 will be removed by the running trial, with its next checkpoint.").waitFor();
    await page.getByRole("link", { name: "10", exact: true }).waitFor();
    stage.master.removeUnwanted();
    await page.getByRole("link", { name: "10", exact: true }).waitFor({ state: "detached" });
  });

  it("of a trial that has ended are deleted at once", async () => {
    const { page } = await look("admin", "#/experiments/1/checkpoints");
    await page.getByRole("button", { name: "Delete step 10", exact: true }).waitFor();
    stage.master.setState("1", "COMPLETED", {});
    await page.getByRole("button", { name: "Delete step 10", exact: true }).click();
    await page.getByText("It is removed with").waitFor();
    expect(await page.getByText("The trial runs").count()).toBe(0);
    await page.getByRole("button", { name: "Delete 1", exact: true }).click();
    await page.getByText(/^1 removed, .* freed/).waitFor();
    await page.getByRole("link", { name: "10", exact: true }).waitFor({ state: "detached" });
  });

  it("say what they are, what they share and how old they are", async () => {
    const { page } = await look("admin", "#/experiments/1/checkpoints");
    const row = page.getByRole("row", { name: /^Select step 20 / });
    await row.waitFor();
    expect((await page.getByRole("region", { name: "Checkpoints", exact: true }).getByRole("columnheader").allTextContents()).map((text) => text.replace(/[▲▼]/, "")).slice(1))
      .toEqual(["Step", "State", "Metric (x)", "Bytes", "New bytes", "Kind", "Pinned", "Age", "Actions"]);
    const cells = (await row.getByRole("cell").allTextContents()).map((text) => text.trim());
    expect(cells.slice(1, 8)).toEqual(["20", "COMPLETED", "20", "38.2 MiB", "1.91 MiB", "increment of 00000001", "pinnedunpin"]);
    expect(cells[8]).toMatch(/^\d+ min ago$/);
    await row.getByRole("link", { name: "00000001" }).click();
    await page.getByRole("heading", { name: "Checkpoint of step 10" }).waitFor();
    await page.getByRole("link", { name: "Lineage" }).click();
    await page.getByRole("link", { name: "Step 10 of trial 77" }).waitFor();
    await page.getByRole("link", { name: "Step 60 of trial 1" }).click();
    await page.getByRole("heading", { name: "Checkpoint of step 60" }).waitFor();
  });

  it("are verified with progress", async () => {
    const id = [...stage.master.checkpoints.keys()][2]!;
    const { page } = await look("admin", `#/checkpoints/${id}`);
    await page.getByRole("button", { name: "Verify all bytes" }).click();
    await page.getByRole("progressbar", { name: "Verified" }).waitFor();
    stage.master.finishVerification(id, "DAMAGED");
    await page.getByText("checksum differs").waitFor();
  });

  it("are kept by rules whose effect is shown before they are set", async () => {
    const { page } = await look("admin", "#/experiments/1/checkpoints");
    await page.getByLabel("The last n").fill("2");
    expect(await page.getByRole("button", { name: "Set these rules" }).isDisabled()).toBe(true);
    await page.getByRole("button", { name: "Preview" }).click();
    // Of six the last two stay, the pinned increment of step 20, and what it builds on.
    await page.getByText(/2 would go and free .*; 4 stay/).waitFor();
    await page.getByRole("button", { name: "Set these rules" }).click();
    await page.getByText("The rules are set.").waitFor();
    expect(stage.master.requests.find((one) => one.method === "PUT")!.body).toEqual({ keep_last: 2 });
  });

  it("are not kept by rules whose effect was shown for others, however late that comes", async () => {
    const { page } = await look("admin", "#/experiments/1/checkpoints");
    let answer = (): void => {};
    const later = new Promise<void>((resolve) => { answer = resolve; });
    await page.route("**/policy/preview", async (route) => { await later; await route.continue(); });
    await page.getByLabel("The last n").fill("1");
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByLabel("The last n").fill("2");
    const [response] = await Promise.all([page.waitForResponse("**/policy/preview"), answer()]);
    await response.finished();
    await page.evaluate(() => new Promise((resolve) => { setTimeout(resolve); }));
    await page.getByText("Look at the preview first.").waitFor();
    expect(await page.getByText(/would go/).count()).toBe(0);
    expect(await page.getByRole("button", { name: "Set these rules" }).isDisabled()).toBe(true);
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/2 would go and free .*; 4 stay/).waitFor();
  });
});

describe("an experiment with many trials", () => {
  it("has their hyperparameters, curves and the best one, sorts them, and compares those that are selected", async () => {
    const { page } = await look("admin", "#/experiments/2");
    const best = stage.master.experiments.get("2")!.best!.trial;
    await page.getByRole("link", { name: `trial ${best}` }).waitFor();
    await page.locator(`tr[data-key="${best}"]`).getByText("best", { exact: true }).waitFor();
    for (const name of ["lr", "optimizer", "width"]) await page.getByRole("columnheader", { name, exact: true }).waitFor();
    await page.locator('tr[data-key="200"]').getByRole("img", { name: /^loss of trial 200: [\d.]+ to [\d.]+$/ }).waitFor();
    await page.getByRole("button", { name: "Best loss" }).click();
    await expect.poll(() => page.locator("tbody tr[data-key]").first().getAttribute("data-key")).toBe(best);
    await page.getByLabel("Select trial 200", { exact: true }).check();
    await page.getByLabel("Select trial 201", { exact: true }).check();
    await page.getByRole("button", { name: "Compare 2 trials" }).click();
    await page.getByRole("heading", { name: "Compare 2 trials" }).waitFor();
    await page.goBack();
    await page.getByRole("link", { name: "Learning curves" }).click();
    await page.getByRole("figure", { name: "loss" }).getByText(`trial ${best} training`).waitFor();
    await page.getByRole("link", { name: "Scatter" }).click();
    await page.getByLabel("Hyperparameter", { exact: true }).selectOption("lr");
    expect(await page.locator(".scatter .axis-name").allTextContents()).toEqual(["lr", "loss"]);
    await page.getByRole("link", { name: new RegExp(`^Trial ${best}: lr .*, loss `) }).click();
    await page.getByRole("heading", { name: `Trial ${best}` }).waitFor();
  });
});

describe("the cluster", () => {
  it("shows slots, who waits with which priority, and what services say, as it changes", async () => {
    const { page } = await look("admin", "#/cluster");
    const used = [...stage.master.trials.values()].filter((one) => one.state === "RUNNING").length;
    await page.getByRole("img", { name: `${used} of 8 slots are in use` }).waitFor();
    const waiting = page.getByRole("region", { name: "Queue" }).getByRole("row", { name: /^900 / });
    expect(await waiting.getByRole("cell").nth(4).textContent()).toBe("42");
    // The servers of a job are one job: its rows are those of all of them.
    const servers = page.getByRole("article", { name: "ctr", exact: true });
    expect((await servers.locator(".figures > div").allTextContents())).toEqual(["Step120,000", "Rows48,211,004", "Cuts96", "Increments91", "Checkpoints95", "Saved step119,800"]);
    expect(await servers.getByRole("row").count()).toBe(5);
    await servers.getByRole("row", { name: /^ps_1 SERVING 120,000 12,061,207 96 91 1,204 node-2/ }).waitFor();
    const serving = page.getByRole("article", { name: "ctr-serve-0" });
    for (const text of ["Version0001d3f8-0000-4000-8000-00000001d3f8", "Lag4.2 s"]) await serving.getByText(text).first().waitFor();
    Object.assign(stage.master.services[0]!["facts"] as object, { rows: 2_052_751, lost_changes: 12 });
    stage.master.emit("service", "", "", { name: "ps_0-ctr" });
    await servers.getByText("Rows38,211,004").waitFor();
    await servers.getByText("12 changes were lost.").waitFor();
    stage.master.setState("1", "COMPLETED");
    await page.getByRole("img", { name: `${used - 1} of 8 slots are in use` }).waitFor();
  });
});

describe("logs", () => {
  it("come as they are written, pass filters, and have an address for each line", async () => {
    const it = await look("admin", "#/experiments/1/logs");
    const { page } = it;
    await page.getByText("60 steps, x = 60").waitFor();
    await page.locator(".toolbar").getByText("live").waitFor();
    stage.master.log("1", "a new line");
    await page.getByText("a new line").waitFor();
    await page.getByLabel("Level").selectOption("WARNING");
    await page.getByText("60 steps, x = 60").waitFor({ state: "detached" });
    await page.getByText("rank 1 at step 30").waitFor();
    stage.master.log("1", "hidden");
    stage.master.log("1", "burning", { level: "ERROR" });
    await page.getByText("burning").waitFor();
    expect(await page.getByText("hidden").count()).toBe(0);
    await page.getByLabel("Level").selectOption("");
    await page.getByLabel("Rank").selectOption("rank 1");
    await page.getByText("rank 1 at step 60").waitFor();
    await page.getByText("60 steps, x = 60").waitFor({ state: "detached" });
    await page.getByLabel("Rank").selectOption("all");
    await page.getByLabel("Lines that contain").fill("x = 20");
    await page.locator(".log-line").getByText("20 steps").waitFor();
    await go(it.page, "#/experiments/1/logs?line=5");
    await page.getByLabel("Lines that contain").fill("");
    await page.locator(".log-line.marked").getByText("30 steps, x = 30").waitFor();
  });

  it("that are asked for while the master is away come when it is back", async () => {
    const it = await look("admin", "#/experiments/1");
    await it.page.getByText("Last reports").waitFor();
    const { port } = stage.master;
    await stage.master.stop();
    await it.page.getByText("connection lost, trying again").waitFor();
    await go(it.page, "#/experiments/1/logs");
    await it.page.getByText("The master does not answer.").waitFor();
    await stage.master.listen(port);
    await it.page.getByText("60 steps, x = 60").waitFor();
    stage.master.log("1", "written later");
    await it.page.getByText("written later").waitFor();
  });

  it("keep their filters in the address: a link to a line, a reload and Back lose none", async () => {
    const { page } = await look("admin", "#/experiments/1/logs?level=WARNING&rank=1");
    await page.getByText("rank 1 at step 60").waitFor();
    expect(await page.locator(".log-line").count()).toBe(2);
    await page.getByLabel("Lines that contain").fill("step 30");
    await expect.poll(() => page.locator(".log-line").count()).toBe(1);
    await page.getByRole("button", { name: "Link to line 6" }).click();
    await page.locator(".log-line.marked").waitFor();
    expect(page.url()).toMatch(/level=WARNING&rank=1&search=step\+30&line=6$/);
    expect(await page.locator(".log-line").count()).toBe(1);
    await page.getByRole("link", { name: "Config" }).click();
    await page.getByText("As it was written").waitFor();
    await page.goBack();
    await page.locator(".log-line.marked").waitFor();
    expect(await page.getByLabel("Lines that contain").inputValue()).toBe("step 30");
    await page.reload();
    await page.locator(".log-line.marked").waitFor();
    expect(await page.getByLabel("Level").inputValue()).toBe("WARNING");
    await page.getByLabel("Lines that contain").fill("nowhere");
    await page.getByRole("button", { name: "Show all lines" }).click();
    await expect.poll(() => page.locator(".log-line").count()).toBe(12);
  });

  it("of a trial that ended without a word promise none", async () => {
    stage.master.logs.set("1", []);
    const { page } = await look("admin", "#/experiments/1/logs");
    await page.getByText("Nothing was written yet.").waitFor();
    stage.master.setState("1", "CANCELED");
    await page.getByText("Nothing was written.", { exact: true }).waitFor();
    expect(await page.getByText("Lines appear here").count()).toBe(0);
  });

  it("are searched through to their beginning, however far that is", async () => {
    stage.master.log("1", "the needle");
    for (let n = 0; n < 1000; n++) stage.master.log("1", `line ${n}`);
    stage.master.options.stretch = 50;
    const { page } = await look("admin", "#/experiments/1/logs");
    await page.getByText("line 999").waitFor();
    await page.getByLabel("Lines that contain").fill("the needle");
    await page.locator(".log-line").getByText("the needle").waitFor();
    // What comes now is found, too, and nothing was read twice.
    stage.master.log("1", "the needle again");
    await page.getByText("the needle again").waitFor();
    const searches = stage.master.requests.filter((one) => one.url.includes("search=") && one.url.includes("before=")).map((one) => one.url);
    expect(new Set(searches).size).toBe(searches.length);
  });

  it("of many lines keep few in the page", async () => {
    for (let n = 0; n < 5000; n++) stage.master.log("1", `line ${n}`);
    const { page } = await look("admin", "#/experiments/1/logs");
    await page.getByText("line 4999").waitFor();
    const few = async (): Promise<void> => expect(await page.locator(".log-line").count()).toBeLessThanOrEqual(100);
    await few();
    // Older ones are read as one scrolls up, to the very first; each where it belongs.
    const box = page.getByRole("region", { name: "Log" });
    await expect.poll(async () => {
      await box.evaluate((element) => { element.scrollTop = 0; });
      await few();
      return page.locator('.log-line[data-line="1"]').count();
    }).toBe(1);
    await page.locator('.log-line[data-line="1"]').getByText("10 steps, x = 10").waitFor();
    const places = await page.locator(".log-line").evaluateAll((lines) => lines.map((line) => [Number((line as HTMLElement).dataset["line"]), Math.round(line.getBoundingClientRect().top)]));
    places.slice(1).forEach(([line, top], i) => expect([line! - places[i]![0]!, top! - places[i]![1]!]).toEqual([1, 20]));
    // Who reads there is not taken to the end by what is written meanwhile.
    const before = await box.evaluate((element) => element.scrollTop);
    const height = await box.evaluate((element) => element.scrollHeight);
    stage.master.log("1", "much later");
    await expect.poll(() => box.evaluate((element) => element.scrollHeight)).toBe(height + 20);
    expect(await box.evaluate((element) => element.scrollTop)).toBe(before);
    await page.getByLabel("Stay at the end").check();
    await page.getByText("much later").waitFor();
    await few();
  });

  it("of which one line was sent as a link begin there, marked and in view, whatever was written before and after it", async () => {
    for (let n = 0; n < 5000; n++) stage.master.log("1", `line ${n}`);
    const { page } = await look("admin", "#/experiments/1/logs?line=1500");
    const marked = page.locator(".log-line.marked");
    await marked.waitFor();
    expect(await marked.getAttribute("data-line")).toBe("1500");
    const inView = () => marked.evaluate((line) => {
      const { top, bottom } = line.getBoundingClientRect();
      const box = line.closest(".log")!.getBoundingClientRect();
      return top >= box.top && bottom <= box.bottom;
    });
    expect(await inView()).toBe(true);
    stage.master.log("1", "written now");
    await page.waitForTimeout(300);
    expect(await inView()).toBe(true);
  });
});

describe("what comes from outside", () => {
  it("is shown as text wherever it stands", async () => {
    const { page } = await look("admin", "#/experiments");
    const checkpoint = [...stage.master.checkpoints.values()].find((one) => one.trial === "300")!.id;
    // Each with something that is there when the page is.
    for (const [hash, there] of [["#/experiments", "tbody tr[data-key]"], ["#/experiments/3", "h2#facts"], ["#/experiments/3/metrics", "figure.chart"], ["#/experiments/3/checkpoints", "tbody tr[data-key]"],
      ["#/experiments/3/logs", ".log-line"], ["#/experiments/3/config", "h2#written + pre"], ["#/experiments/3/code", "pre:has-text('import cairn')"], ["#/storage", "meter"],
      [`#/checkpoints/${checkpoint}/metadata`, "section[aria-label=Metadata]"], ["#/compare?trials=300,1", "figure.chart"]] as const) {
      await go(page, hash);
      await page.locator("main").locator(there).first().waitFor();
      await page.locator("main").getByText("window.hacked").first().waitFor();
      expect(await page.locator("main img, main b, main script").count(), hash).toBe(0);
    }
    expect(await page.evaluate(() => (window as unknown as { hacked?: number }).hacked)).toBeUndefined();
  });
});

describe("the connection", () => {
  it("that breaks comes back by itself, with what happened meanwhile", async () => {
    const it = await look("admin", "#/experiments/1/metrics");
    const { page } = it;
    await page.getByRole("group", { name: /x: .*to 60 at step 60/ }).waitFor();
    await page.evaluate(() => { (window as unknown as { same: boolean }).same = true; });
    const { port } = stage.master;
    await stage.master.stop();
    await page.getByText("connection lost, trying again").waitFor();
    stage.master.report("1", 70, { x: 70 });
    await stage.master.listen(port);
    await page.getByText("live", { exact: true }).waitFor();
    await page.getByRole("group", { name: /x: .*to 70 at step 70/ }).waitFor();
    stage.master.setState("1", "PAUSED");
    await page.getByRole("status", { name: "State" }).getByText("PAUSED").waitFor();
    expect(await page.evaluate(() => (window as unknown as { same: boolean }).same)).toBe(true);
  });
});

describe("a viewer", () => {
  it("is refused nothing, whatever is pressed", async () => {
    const { page } = await look("viewer");
    const refused: string[] = [];
    page.on("response", (one) => { if (one.status() === 403) refused.push(`${one.request().method()} ${one.url()}`); });
    let pressed = 0;
    for (const [, hash, text] of PLACES.filter(([name]) => name !== "users" && name !== "account")) {
      await go(page, hash);
      await page.getByText(text).first().waitFor();
      const buttons = page.locator("main button:visible:enabled");
      for (let n = 0; n < Math.min(25, await buttons.count()); n++) {
        await buttons.nth(n).click();
        pressed++;
        expect(await page.getByRole("dialog").count(), hash).toBe(0);
        if (!page.url().includes(hash)) await go(page, hash);
      }
    }
    expect(refused).toEqual([]);
    // About 80: a page whose last answer comes late has fewer when they are counted.
    expect(pressed).toBeGreaterThan(50);
  }, 120_000);

  it("sees no button that would be refused", async () => {
    const it = await look("viewer");
    const { page } = it;
    const forbidden = /^(Pause|Activate|Stop|Kill|Continue|Delete|Pin step|Unpin|Edit|Verify|Set these rules|New user)/i;
    for (const [name, hash, text] of PLACES.filter(([name]) => name !== "users")) {
      await go(it.page, hash);
      await page.getByText(text).first().waitFor();
      if (name === "account") continue; // its own tokens and password are the viewer's
      expect(await page.getByRole("button", { name: forbidden }).count(), name).toBe(0);
      for (const box of await page.getByRole("checkbox", { name: /Select experiment/ }).all()) expect(await box.isVisible(), name).toBe(false);
    }
    expect(await page.getByRole("link", { name: "Users" }).count()).toBe(0);
    await go(it.page, "#/experiments/1/checkpoints");
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/stay/).first().waitFor();
    await go(it.page, "#/users");
    await page.getByText("There is no such page.").waitFor();
    await expect.poll(() => stage.master.requests.filter((one) => one.url.startsWith("/api/v1/users")).length).toBe(0);
  });
});
