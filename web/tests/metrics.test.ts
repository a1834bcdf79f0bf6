// Curves: as they grow, zoomed, compared, with the checkpoints and runs on them.
import { describe, expect, it } from "vitest";
import { go } from "./browser";
import { Stage } from "./stage";

const stage = new Stage();
const look = stage.look.bind(stage);

describe("metrics", () => {
  it("grow while one looks, and a checkpoint is a mark that leads to its page", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "x" });
    await chart.getByRole("group", { name: /to 60 at step 60/ }).waitFor();
    await page.getByText("killed by signal 9").first().waitFor();
    for (const group of ["training", "validation"]) await page.getByRole("figure", { name: "loss" }).getByText(group, { exact: true }).waitFor();
    await expect.poll(() => chart.getByRole("link").count()).toBe(6);
    expect(await page.getByRole("region", { name: "Marks" }).locator("span").allTextContents()).toEqual(["checkpoint", "pinned checkpoint"]);
    stage.master.report("1", 70, { x: 70 });
    await chart.getByRole("group", { name: /to 70 at step 70/ }).waitFor();
    const made = stage.master.addCheckpoint("1", 70);
    stage.master.emit("checkpoint", "1", "1", { id: made.id, state: "COMPLETED", steps_completed: 70 });
    const mark = chart.getByRole("link", { name: /Checkpoint of step 70, full/ });
    await mark.click();
    await page.getByRole("heading", { name: "Checkpoint of step 70" }).waitFor();
  });

  it("show every checkpoint, also beyond a thousand, and say when there is no room for all marks", async () => {
    for (let step = 61; step <= 1200; step++) stage.master.addCheckpoint("1", step);
    const { page } = await look("admin", "#/experiments/1/metrics");
    stage.master.report("1", 1200, { x: 1200 });
    const chart = page.getByRole("figure", { name: "x" });
    await chart.getByRole("group", { name: /at step 1200/ }).waitFor();
    await chart.getByText(/One of \d+ checkpoints has a mark here; zoom in to see all\./).waitFor();
    const box = (await chart.locator(".u-over").boundingBox())!;
    await page.mouse.move(box.x + box.width * 0.97, box.y + box.height * 0.9);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width - 1, box.y + box.height * 0.9, { steps: 4 });
    await page.mouse.up();
    const last = chart.getByRole("link", { name: /Checkpoint of step 1200,/ });
    await last.waitFor();
    await last.hover();
    await expect.poll(() => chart.locator(".readout").textContent()).toMatch(/^Checkpoint of step 1200, full, .* MiB, x 1200,/);
  });

  it("are some at a time when they are many, and all can be found", async () => {
    stage.master.report("1", 70, Object.fromEntries(Array.from({ length: 150 }, (_, i) => [`many/${i + 1000}`, i])));
    const { page } = await look("admin", "#/experiments/1/metrics");
    await page.getByText("60 of 152 metrics are shown").waitFor();
    const figures = page.locator(".charts").getByRole("figure");
    expect(await figures.count()).toBe(60);
    await page.getByRole("button", { name: "Show 60 more" }).click();
    await page.getByRole("button", { name: "Show 32 more" }).waitFor();
    expect(await figures.count()).toBe(120);
    await page.getByLabel("Metrics whose name contains").fill("many/1149");
    await page.getByRole("figure", { name: "many/1149" }).waitFor();
    expect(await figures.count()).toBe(1);
    expect(await page.getByText("metrics are shown").count()).toBe(0);
  });

  it("say on a log scale how many values have no place there", async () => {
    [-1, 0, 0.5].forEach((value, i) => stage.master.report("1", 70 + i, { odd: value }));
    const { page } = await look("admin", "#/experiments/1/metrics");
    await page.getByRole("figure", { name: "odd" }).getByRole("group", { name: /to 0.5 at step 72/ }).waitFor();
    const missing = page.getByText("2 values are not above zero: a log scale has no place for them.");
    expect(await missing.count()).toBe(0);
    await page.getByLabel("Log scale").check();
    await missing.waitFor();
    await page.getByLabel("Log scale").uncheck();
    await missing.waitFor({ state: "detached" });
  });

  it("are zoomed by dragging and by keys, smoothed, on a log scale, by time", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "x" });
    const over = chart.locator(".u-over");
    const marks = chart.getByRole("link");
    await expect.poll(() => marks.count()).toBe(6);
    // The list of the runs is the last to come; with it the page is as high, and the chart as wide, as it will be.
    await page.getByRole("region", { name: "Runs" }).waitFor();
    const box = (await over.boundingBox())!;
    await page.mouse.move(box.x + box.width * 0.55, box.y + box.height * 0.9);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.95, box.y + box.height * 0.9, { steps: 4 });
    await page.mouse.up();
    await expect.poll(() => marks.count()).toBe(2);
    await page.mouse.move(box.x + box.width * 0.5, box.y + box.height * 0.5);
    await expect.poll(() => chart.locator(".readout").textContent()).toMatch(/step \d+ · training \d+/);
    await page.getByRole("button", { name: "Show all" }).click();
    await expect.poll(() => marks.count()).toBe(6);
    // Which run it was, and how that ended, wherever one points.
    await page.mouse.move(box.x + box.width * 0.2, box.y + box.height * 0.5);
    await expect.poll(() => chart.locator(".readout").textContent()).toMatch(/run 1 from the beginning: killed by signal 9$/);
    await chart.locator(".plot").focus();
    for (let n = 0; n < 4; n++) await page.keyboard.press("+");
    await expect.poll(() => marks.count()).toBeLessThan(6);
    await page.keyboard.press("0");
    await expect.poll(() => marks.count()).toBe(6);
    await page.getByLabel("Smoothing").selectOption("0.9");
    await chart.getByRole("group", { name: /training from 10 to [34]\d\.\d+ at step 60/ }).waitFor();
    // A smoothed value is nobody's: what was reported is told with it.
    await page.mouse.move(box.x + box.width * 0.99, box.y + box.height * 0.5);
    await expect.poll(() => chart.locator(".readout").textContent()).toMatch(/^step 60 · training 60 \(smoothed [34]\d\.\d+\)/);
    const picture = () => chart.locator("canvas").evaluate((canvas: HTMLCanvasElement) => canvas.toDataURL());
    const linear = await picture();
    await page.getByLabel("Log scale").check();
    await expect.poll(picture).not.toBe(linear);
    await page.getByLabel("X axis").selectOption("time");
    await chart.getByRole("group", { name: /at 20\d\d-/ }).waitFor();
    // By time the pause between the runs is to be seen: between steps 30 and 40.
    await page.mouse.move(box.x + box.width * 0.35, box.y + box.height * 0.5);
    await expect.poll(() => chart.locator(".readout").textContent()).toMatch(/restarting after run 1$/);
  });

  it("of trials of which one is not there are shown, and that one can be taken away", async () => {
    const { page } = await look("admin", "#/compare?trials=200,nonsense");
    await page.getByRole("figure", { name: "loss" }).waitFor();
    await page.getByText("There is no such thing.").waitFor();
    await page.getByRole("button", { name: "Remove trial nonsense" }).click();
    await page.getByRole("heading", { name: "Compare 1 trial", exact: true }).waitFor();
    expect(page.url()).not.toContain("nonsense");
  });

  it("have a mark for each checkpoint, also for one of which nothing was reported since, by steps and by time", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "x" });
    await expect.poll(() => chart.getByRole("link").count()).toBe(6);
    const made = stage.master.addCheckpoint("1", 65);
    made.time = Date.now() / 1000;
    stage.master.emit("checkpoint", "1", "1", { id: made.id, state: "COMPLETED", steps_completed: 65 });
    for (const axis of ["steps", "time"]) {
      await page.getByLabel("X axis").selectOption(axis);
      const mark = chart.getByRole("link", { name: /Checkpoint of step 65/ });
      await mark.waitFor();
      // As high as the curve ends, and inside of the chart.
      const [at, end, over] = await Promise.all([mark.boundingBox(), chart.getByRole("link", { name: /Checkpoint of step 60/ }).boundingBox(), chart.locator(".u-over").boundingBox()]);
      expect(Math.abs(at!.y - end!.y)).toBeLessThan(3);
      expect(at!.x + at!.width / 2).toBeLessThanOrEqual(over!.x + over!.width + 1);
    }
  });

  it("have as much room for the numbers of their axis as these need", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    await page.getByRole("figure", { name: "x" }).waitFor();
    stage.master.report("1", 70, { stamp: 1_795_005_102.25 });
    stage.master.report("1", 80, { stamp: 1_795_005_103.25 });
    const chart = page.getByRole("figure", { name: "stamp" });
    await chart.getByRole("group", { name: /at step 80/ }).waitFor();
    const left = (figure: typeof chart) => figure.locator(".u-over").evaluate((over) => over.getBoundingClientRect().left - over.closest(".uplot")!.getBoundingClientRect().left);
    // "1,795,005,102.5" of 12 points is about 95 wide; with few digits all have the same.
    expect(await left(chart)).toBeGreaterThan(100);
    expect(await left(page.getByRole("figure", { name: "x" }))).toBe(await left(page.getByRole("figure", { name: "loss" })));
  });

  it("of millions of steps have marks that do not run into each other, and so has the lineage of their checkpoints", async () => {
    const { page } = await look("admin", "#/experiments/1/metrics");
    await page.getByRole("figure", { name: "x" }).waitFor();
    stage.master.report("1", 8_000_000_000, { x: 70 });
    await page.getByRole("group", { name: /at step 8000000000/ }).first().waitFor();
    // What is written onto the canvas, where, and how wide it is.
    await page.evaluate(() => {
      const written: [string, number, number, number][] = [];
      Object.assign(window, { written });
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function (text: string, x: number, y: number) {
        written.push([text, x, y, this.measureText(text).width]);
        fillText.call(this, text, x, y);
      };
    });
    for (const width of [1000, 1280]) {
      await page.evaluate(() => { (window as unknown as { written: unknown[] }).written.length = 0; });
      await page.setViewportSize({ width, height: 900 });
      const steps = () => page.evaluate(() => (window as unknown as { written: [string, number, number, number][] }).written.filter(([text]) => /^\d,000,000,000$/.test(text)));
      await expect.poll(async () => (await steps()).length).toBeGreaterThan(1);
      const marks = await steps();
      for (let n = 1; n < marks.length; n++) {
        const [, x, y, wide] = marks[n]!;
        const [, before, same] = marks[n - 1]!;
        if (same === y && x > before) expect(x - before, JSON.stringify(marks)).toBeGreaterThan(wide);
      }
    }
    for (const one of stage.master.checkpoints.values()) if (one.trial === "1") one.steps_completed += 8_000_000_000_000;
    await go(page, `#/checkpoints/${[...stage.master.checkpoints.keys()][2]!}/lineage`);
    const named = page.locator("main svg text").filter({ hasText: /^step/ });
    await expect.poll(() => named.count()).toBeGreaterThan(3);
    const boxes = await named.evaluateAll((texts) => texts.map((text) => text.getBoundingClientRect()).map(({ left, right, top }) => ({ left, right, top })));
    for (let n = 1; n < boxes.length; n++) if (boxes[n]!.top === boxes[n - 1]!.top) expect(boxes[n]!.left).toBeGreaterThanOrEqual(boxes[n - 1]!.right);
  });

  it("of experiments that were selected are compared, each with its name: by its trial, or the best one of a search", async () => {
    const { page } = await look();
    for (const id of ["1", "2"]) await page.getByLabel(`Select experiment ${id}`, { exact: true }).check();
    await page.getByRole("button", { name: "Compare 2", exact: true }).click();
    await page.getByRole("heading", { name: "Compare 2 trials" }).waitFor();
    const best = stage.master.experiments.get("2")!.best!.trial;
    await page.getByRole("row", { name: /^trial 1 1 core-api-stage-2 RUNNING/ }).waitFor();
    await page.getByRole("row", { name: new RegExp(`^trial ${best} 2 lr search COMPLETED`) }).waitFor();
    await page.getByRole("figure", { name: "loss" }).locator(".legend").getByText(`trial ${best} training`).waitFor();
  });

  it("of ten trials are compared, and of no more", async () => {
    const ids = Array.from({ length: 10 }, (_, n) => String(200 + n));
    const { page } = await look("admin", `#/compare?trials=${ids.slice(0, 9).join(",")}`);
    await page.getByLabel("Trial to add").fill("209");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Compare 10 trials" }).waitFor();
    const legend = page.getByRole("figure", { name: "loss" }).locator(".legend");
    for (const id of ids) await legend.getByText(`trial ${id} training`).waitFor();
    expect(await page.getByLabel("Trial to add").isDisabled()).toBe(true);
    await page.getByRole("button", { name: "Remove trial 200" }).click();
    await legend.getByText("trial 200 training").waitFor({ state: "detached" });
    expect(await page.getByLabel("Trial to add").isDisabled()).toBe(false);
  });

  it("that were thinned are read finer where one zooms in", async () => {
    await stage.use({ points: 50_000 });
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
