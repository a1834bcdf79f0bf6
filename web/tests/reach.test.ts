// The page in a narrow window, and with the keyboard alone.
import type { Page } from "playwright-core";
import { describe, expect, it } from "vitest";
import { go } from "./browser";
import { PLACES } from "./places";
import { Stage } from "./stage";

/** What the thing with the focus is called. */
function focus(page: Page): Promise<string> {
  return page.evaluate(() => {
    const element = document.activeElement as HTMLElement;
    const labels = (element as HTMLInputElement).labels;
    return (element.getAttribute("aria-label") ?? labels?.[0]?.textContent ?? element.textContent ?? "").trim();
  });
}

const stage = new Stage();
const look = async (user: string | null, hash = ""): Promise<Page> => (await stage.look(user, hash)).page;

/** Presses Tab until something of that name has the focus, as who has no mouse does; how often it was pressed. */
async function tabTo(page: Page, name: string | RegExp, most = 60): Promise<number> {
  for (let n = 1; n <= most; n++) {
    await page.keyboard.press("Tab");
    const focused = await focus(page);
    const shown = await page.evaluate(() => {
      const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement!);
      return outlineStyle !== "none" && outlineWidth !== "0px";
    });
    expect(shown, `the focus on "${focused}" is to be seen`).toBe(true);
    if (typeof name === "string" ? focused === name : name.test(focused)) return n;
  }
  throw new Error(`Tab does not come to ${String(name)}`);
}

/** What has the focus and what it stands in, as one word; "" when nothing has. */
function kindOfFocus(page: Page): Promise<string> {
  return page.evaluate(() => {
    const element = document.activeElement;
    if (!element || element === document.body) return "";
    const name = (one: Element | null): string => `${one?.tagName.toLowerCase()}.${one?.getAttribute("class") ?? ""}`;
    return `${name(element)} in ${name(element.parentElement)}`;
  });
}

/** How much of a line of two points around what has the focus is in the picture of the page: what a box cuts off is not. */
async function shareOfOutline(page: Page): Promise<number> {
  const box = await page.evaluate(() => {
    const { x, y, width, height } = document.activeElement!.getBoundingClientRect();
    return { x, y, width, height };
  });
  const clip = { x: Math.max(0, box.x - 6), y: Math.max(0, box.y - 6), width: box.width + 12, height: box.height + 12 };
  const seen = await page.screenshot({ clip });
  await page.evaluate(() => {
    const sheet = new CSSStyleSheet();
    sheet.replaceSync("*:focus-visible { outline: none !important } .mark:focus-visible { background: var(--panel) !important } a:focus-visible circle { stroke: none !important }");
    document.adoptedStyleSheets = [sheet];
  });
  const without = await page.screenshot({ clip });
  const changed = await page.evaluate(async (pictures) => {
    document.adoptedStyleSheets = [];
    const [a, b] = await Promise.all(pictures.map(async (picture) => {
      const bitmap = await createImageBitmap(new Blob([Uint8Array.from(atob(picture), (one) => one.charCodeAt(0))], { type: "image/png" }));
      const drawing = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d")!;
      drawing.drawImage(bitmap, 0, 0);
      return drawing.getImageData(0, 0, bitmap.width, bitmap.height).data;
    }));
    let count = 0;
    for (let at = 0; at < a!.length; at += 4) if (Math.abs(a![at]! - b![at]!) + Math.abs(a![at + 1]! - b![at + 1]!) + Math.abs(a![at + 2]! - b![at + 2]!) > 60) count++;
    return count;
  }, [seen.toString("base64"), without.toString("base64")]);
  return changed / (4 * (box.width + box.height));
}

describe("a narrow window", () => {
  it.each([390, 800])("of %i points has no page that must be scrolled sideways", async (width) => {
    const page = await look("admin");
    await page.setViewportSize({ width, height: 800 });
    for (const [, hash, text] of PLACES) {
      await go(page, hash);
      await page.getByText(text).first().waitFor();
      const beyond = await page.evaluate(() => [...document.querySelectorAll("body *")]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 1 && !element.closest(".table-box, .log, .lineage, pre, .skip, .hidden"))
        .map((element) => `${element.tagName}.${element.className}`));
      expect(beyond, hash).toEqual([]);
      expect(await page.evaluate(() => document.documentElement.scrollWidth - innerWidth), hash).toBeLessThanOrEqual(0);
    }
  });

  it.each([[390, 2], [800, 2], [900, 1]])("of %i points has the frame in %i rows at most, and the places of it in one", async (width, rows) => {
    const page = await look("admin");
    await page.setViewportSize({ width, height: 800 });
    await page.getByText("12 in all").waitFor();
    const tops = await page.getByRole("navigation", { name: "Pages" }).getByRole("link").evaluateAll((links) => links.map((link) => link.getBoundingClientRect().top));
    expect(new Set(tops).size).toBe(1);
    expect((await page.locator("header.frame").boundingBox())!.height).toBeLessThanOrEqual(rows * 50);
  });

  it.each([390, 800, 1280])("of %i points keeps its frame as it is while the master is away, however long the user's name is", async (width) => {
    const name = "somebody.with.a.long.name@train.example.org";
    stage.master.users.push({ username: name, role: "admin", active: true });
    const page = await look(name);
    await page.setViewportSize({ width, height: 800 });
    await page.getByText("live", { exact: true }).waitFor();
    const height = async (): Promise<number> => (await page.locator("header.frame").boundingBox())!.height;
    const before = await height();
    expect(before).toBeLessThanOrEqual(width < 900 ? 100 : 50);
    const { port } = stage.master;
    await stage.master.stop();
    await page.getByRole("status").getByText("connection lost").waitFor();
    expect(await height()).toBeLessThanOrEqual(before + 1);
    await stage.master.listen(port);
    await page.getByText("live", { exact: true }).waitFor();
  });

  it.each([390, 1600])("of %i points has no text in a drawing that is too small or too large to read", async (width) => {
    const page = await look("admin");
    await page.setViewportSize({ width, height: 1000 });
    for (const one of stage.master.checkpoints.values()) if (one.trial === "1") one.steps_completed += 1_200_000;
    for (const hash of ["#/experiments/2/scatter", `#/checkpoints/${[...stage.master.checkpoints.keys()][2]!}/lineage`]) {
      await go(page, hash);
      await page.locator("main svg text").first().waitFor();
      const heights = await page.locator("main svg text").evaluateAll((texts) => texts.map((text) => Math.round(text.getBoundingClientRect().height)));
      expect(Math.min(...heights), hash).toBeGreaterThanOrEqual(13);
      expect(Math.max(...heights), hash).toBeLessThanOrEqual(18);
      // None is cut off at the left, where nothing can be scrolled to.
      const lefts = await page.locator("main svg text").evaluateAll((texts) => texts.map((text) => text.getBoundingClientRect().left - text.closest("svg")!.getBoundingClientRect().left));
      expect(Math.min(...lefts), hash).toBeGreaterThanOrEqual(0);
    }
  });
});

describe("a window of 1280 points", () => {
  it("has room for all columns of the experiments, however long their names are", async () => {
    await stage.use({ experiments: 240 });
    for (const id of ["240", "239"]) Object.assign(stage.master.experiments.get(id)!, { name: `${"a name as long as a sentence ".repeat(6)}${id}`, labels: ["one", "two", "three"] });
    const page = await look("admin");
    await page.setViewportSize({ width: 1280, height: 800 });
    await page.getByText("bert finetune 238").waitFor();
    expect(await page.getByRole("region", { name: "Experiments" }).evaluate((box) => box.scrollWidth - box.clientWidth)).toBeLessThanOrEqual(0);
  });
});

describe("with the keyboard alone", () => {
  it("one sees where one is: around each kind of control a line is drawn, of which nothing is cut off that matters", async () => {
    const page = await look("admin");
    await page.setViewportSize({ width: 1280, height: 1000 });
    const kinds = new Set<string>();
    const unseen: string[] = [];
    for (const [, hash, text] of PLACES) {
      await page.goto(`${stage.master.url}/${hash}`);
      await page.reload();
      await page.getByText(text).first().waitFor();
      for (let n = 0; n < 60; n++) {
        await page.keyboard.press("Tab");
        const kind = await kindOfFocus(page);
        if (kind === "") break;
        if (kinds.has(kind)) continue;
        kinds.add(kind);
        const share = await shareOfOutline(page);
        if (share < 0.5) unseen.push(`${hash}: ${kind}: ${Math.round(share * 100)} %`);
      }
    }
    expect(unseen).toEqual([]);
    expect(kinds.size).toBeGreaterThan(25);
  }, 240_000);

  it("one logs in, finds an experiment, pauses it, and leaves a question", async () => {
    const page = await look(null);
    await page.getByRole("button", { name: "Log in" }).waitFor();
    await tabTo(page, "User");
    await page.keyboard.type("admin");
    await tabTo(page, "Password");
    await page.keyboard.type("password");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Experiments" }).waitFor();
    // The first stop leads past the frame.
    await page.evaluate(() => (document.activeElement as HTMLElement).blur());
    expect(await tabTo(page, "To the content")).toBe(1);
    await page.keyboard.press("Enter");
    expect(await tabTo(page, /^Search/)).toBe(1);
    await page.keyboard.type("core-api");
    await page.getByText("1 found").waitFor();
    await tabTo(page, "core-api-stage-2");
    await page.keyboard.press("Enter");
    await page.getByText("Last reports").waitFor();
    // Who came by a link stands at the beginning of what it led to, not of the frame.
    expect(await tabTo(page, "Experiments")).toBe(1);
    await tabTo(page, "Pause");
    await page.keyboard.press("Enter");
    await page.getByText(/at most \d+ s more/).waitFor();
    // The button that was pressed is gone: the focus is at its place still.
    await expect.poll(() => focus(page)).toBe("What to do with this trial");
    expect(await tabTo(page, "Activate")).toBe(1);
    await tabTo(page, "Kill");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    expect(await page.evaluate(() => document.activeElement?.closest("dialog") !== null)).toBe(true);
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    expect(await focus(page)).toBe("Kill");
  });

  it("one selects, pins, compares and deletes checkpoints, and the focus stays in their table", async () => {
    const page = await look("admin", "#/experiments/1/checkpoints");
    await page.getByText("Which checkpoints stay").waitFor();
    stage.master.setState("1", "COMPLETED"); // what runs removes its own, later
    await page.getByRole("status", { name: "State" }).getByText("COMPLETED").waitFor();
    await page.getByRole("region", { name: "Checkpoints", exact: true }).focus();
    await tabTo(page, "Pin step 50");
    await page.keyboard.press("Enter");
    await page.getByRole("button", { name: "Unpin step 50" }).waitFor();
    expect(await focus(page)).toBe("Unpin step 50");
    await tabTo(page, "Select step 40");
    await page.keyboard.press("Space");
    await tabTo(page, "Delete step 40");
    await page.keyboard.press("Enter");
    await page.getByText("cannot be brought back").waitFor();
    expect(await focus(page)).toBe("Cancel");
    await tabTo(page, "Delete 1");
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: "40", exact: true }).waitFor({ state: "detached" });
    await expect.poll(() => focus(page)).toBe("Checkpoints");
    await tabTo(page, "Select step 30");
    await page.keyboard.press("Space");
    await tabTo(page, "Select step 10");
    await page.keyboard.press("Space");
    await page.getByRole("button", { name: "Compare the two" }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Step 10 compared with step 30" }).waitFor();
  });

  it("one continues as a new trial with another checkpoint and config", async () => {
    const page = await look("admin", "#/experiments/3");
    await page.getByRole("button", { name: "Continue…" }).focus();
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("option", { name: /^step 90 / }).waitFor({ state: "attached" });
    expect(await dialog.getByRole("radio", { name: /Go on with this trial/ }).evaluate((radio) => radio === document.activeElement)).toBe(true);
    await page.keyboard.press("ArrowDown");
    await tabTo(page, "Checkpoint");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowDown");
    await dialog.getByText("with the weights of step 90").waitFor();
    await tabTo(page, "Config overrides, one a line");
    await page.keyboard.type("max_restarts = 1");
    await tabTo(page, "Start a new trial");
    await page.keyboard.press("Enter");
    await page.getByText("began with the weights of").waitFor();
    expect(stage.master.requests.find((one) => one.url.endsWith("/continue"))!.body).toMatchObject({ new: true, config: { max_restarts: 1 } });
  });

  it("one acts on several experiments at once, keeps them selected after No, and is back in the table after Yes", async () => {
    const page = await look("admin");
    await page.getByText("12 in all").waitFor();
    await page.getByRole("region", { name: "Experiments" }).focus();
    for (const id of [12, 11]) {
      await tabTo(page, `Select experiment ${id}`);
      await page.keyboard.press("Space");
    }
    await page.getByRole("button", { name: "Select none" }).focus();
    await page.keyboard.press("Shift+Tab");
    expect(await focus(page)).toBe("Delete 2");
    await page.keyboard.press("Enter");
    await page.getByRole("dialog").waitFor();
    await page.keyboard.press("Escape");
    await page.getByText("2 selected").waitFor();
    expect(await focus(page)).toBe("Delete 2");
    await page.keyboard.press("Enter");
    await tabTo(page, "Delete");
    await page.keyboard.press("Enter");
    await page.getByText("10 in all").waitFor();
    await expect.poll(() => page.evaluate(() => document.activeElement?.closest("main") !== null)).toBe(true);
  });

  it("one looks at what rules would remove, and sets them", async () => {
    const page = await look("admin", "#/storage");
    await page.getByText("Free on the disk").waitFor();
    await page.getByRole("button", { name: "Rules of experiment 1", exact: true }).focus();
    await page.keyboard.press("Enter");
    // The rules come into view, and the focus with them.
    await page.getByText("Which checkpoints stay").waitFor();
    expect(await focus(page)).toBe("Experiment 1");
    const inView = () => page.getByLabel("The last n").evaluate((field) => field.getBoundingClientRect().top < innerHeight);
    await expect.poll(inView, { timeout: 30_000 }).toBe(true);
    expect(await tabTo(page, "The last n")).toBe(1);
    await page.keyboard.press("Control+A");
    await page.keyboard.type("2");
    await tabTo(page, "Preview");
    await page.keyboard.press("Enter");
    await page.getByText(/would go and free/).waitFor();
    await tabTo(page, "Set these rules");
    await page.keyboard.press("Enter");
    await page.getByText("The rules are set.").waitFor();
  });

  it("one filters a log and links to a line", async () => {
    const page = await look("admin", "#/experiments/1/logs");
    await page.getByText("60 steps, x = 60").waitFor();
    await page.getByLabel("Lines that contain").focus();
    await page.keyboard.type("steps, x");
    await page.getByText("rank 1 at step 10").waitFor({ state: "detached" });
    await tabTo(page, "Link to line 5");
    await page.keyboard.press("Enter");
    await page.locator(".log-line.marked").getByText("30 steps, x = 30").waitFor();
    expect(page.url()).toContain("line=5");
  });

  it("the marks of a chart are one stop, and arrow keys go from one to the next", async () => {
    const page = await look("admin", "#/experiments/1/metrics");
    const chart = page.getByRole("figure", { name: "loss" });
    await chart.getByRole("link", { name: /Checkpoint of step 60/ }).waitFor();
    await chart.locator(".plot").focus();
    expect(await tabTo(page, /^Checkpoint of step 10,/)).toBe(1);
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowRight");
    expect(await focus(page)).toMatch(/^Checkpoint of step 30,/);
    expect(await chart.locator(".readout").textContent()).toMatch(/^Checkpoint of step 30, full, 38.2 MiB, x 30,/);
    expect(await tabTo(page, /^x: /)).toBe(1);
    await page.keyboard.press("Shift+Tab");
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Checkpoint of step 30" }).waitFor();
  });
});
