// What the page shows when there is nothing to show, or nothing to be had: what happened, and what to do next.
import type { Page, Request } from "playwright-core";
import { describe, expect, it } from "vitest";
import { go, violations } from "./browser";
import { PLACES } from "./places";
import { Stage } from "./stage";

const stage = new Stage();

/** The text of each command in view, after its button put it on the clipboard. */
async function copyAll(page: Page): Promise<string[]> {
  const commands = page.locator(".command");
  const texts: string[] = [];
  for (const command of await commands.all()) {
    const text = await command.locator("code").textContent();
    await command.getByRole("button", { name: "Copy" }).click();
    await command.getByRole("status").getByText("Copied").waitFor();
    await expect.poll(() => page.evaluate(() => navigator.clipboard.readText())).toBe(text);
    texts.push(text!);
  }
  return texts;
}

describe("a command", () => {
  it("is copied also where the browser gives the page no clipboard", async () => {
    const { page, context } = await stage.look("admin", "#/compare");
    await context.grantPermissions(["clipboard-read"]);
    await page.evaluate(() => { Object.defineProperty(navigator.clipboard, "writeText", { value: () => Promise.reject(new Error("not here")) }); });
    await page.getByRole("button", { name: "Copy" }).click();
    await page.getByRole("status").getByText("Copied").waitFor();
    expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(`cairn trial ls -m ${stage.master.url}`);
  });
});

describe("nothing there", () => {
  it("on a master that was just started comes with what to do, as a command to copy", async () => {
    await stage.use({ experiments: 0 });
    const { page, context } = await stage.look();
    await context.grantPermissions(["clipboard-read", "clipboard-write"]);
    const master = `-m ${stage.master.url}`;
    const expected: [string, string[], string[]][] = [
      ["#/experiments", ["No experiments yet."], [`cairn experiment create examples/core_api/2_checkpoints.yaml examples/core_api -f ${master}`]],
      ["#/compare", ["Nothing to compare yet."], [`cairn trial ls ${master}`]],
      ["#/storage", ["No checkpoints yet."], [`cairn experiment create CONFIG DIR -f ${master}`]],
      ["#/cluster", ["Nothing runs.", "No parameter-server job reports to this master.", "No serving process reports to this master."], [
        `cairn experiment create CONFIG DIR -f ${master}`,
        `cairn ps run --master ${stage.master.url} --dir DIR --servers 2 --trainers 2 -- python3 train.py`,
        `cairn serve --master ${stage.master.url} --model DIR --follow REPOSITORY`,
      ]],
      ["#/account", ["No tokens."], [`cairn token create NAME ${master}`]],
    ];
    for (const [hash, titles, commands] of expected) {
      await go(page, hash);
      for (const title of titles) await page.getByText(title).waitFor();
      expect(await copyAll(page), hash).toEqual(commands);
      expect(await violations(page), hash).toEqual([]);
    }
  });

  it("of a trial that waits comes with the command that tells what it is doing", async () => {
    const { page } = await stage.look();
    const logs = `cairn trial logs 900 -f -m ${stage.master.url}`;
    for (const [tab, title, command] of [["overview", "Nothing reported yet.", logs], ["metrics", "No metrics yet.", logs], ["checkpoints", "No checkpoints yet.", logs], ["logs", "Nothing was written yet.", logs]] as const) {
      await go(page, `#/experiments/9/${tab}`);
      const empty = page.locator(".empty", { hasText: title });
      await empty.waitFor();
      expect(await empty.locator("code").last().textContent(), tab).toBe(command);
    }
    await page.getByRole("link", { name: "Overview" }).click();
    await page.getByText("It waits for free slots.").waitFor();
  });

  it("that passes a filter leads back to all there is", async () => {
    const { page } = await stage.look("admin", "#/experiments?search=nonsense");
    await page.getByText("No experiment matches.").waitFor();
    await page.getByRole("button", { name: "Show all" }).click();
    await page.getByText("12 in all").waitFor();
    await go(page, "#/experiments/1/logs");
    await page.getByText("60 steps, x = 60").waitFor();
    await page.getByLabel("Lines that contain").fill("nonsense");
    await page.getByRole("button", { name: "Show all lines" }).click();
    await page.getByText("60 steps, x = 60").waitFor();
    await go(page, `#/checkpoints/${[...stage.master.checkpoints.keys()][2]!}/tensors`);
    await page.getByText("320 tensors").waitFor();
    await page.getByLabel("Tensors whose name contains").fill("nonsense");
    await page.getByText("No tensor has such a name.").waitFor();
    await page.getByRole("button", { name: "Show all" }).click();
    await page.getByText("layers/0/weight").waitFor();
  });
});

describe("what cannot be read", () => {
  it.each(["#/experiments/4711", "#/trials/4711", "#/checkpoints/4711", "#/checkpoints/4711/compare/4712"])("%s says so, and how to see what there is", async (hash) => {
    const { page } = await stage.look("admin", hash);
    const alert = page.getByRole("alert");
    await alert.getByText("There is no such thing.").waitFor();
    expect(await alert.locator("code").textContent()).toContain("cairn experiment ls");
  });

  it("because the master is away comes by itself when it is back", async () => {
    const { page } = await stage.look("admin", "#/experiments");
    await page.getByText("12 in all").waitFor();
    const { port } = stage.master;
    await stage.master.stop();
    await page.getByText("connection lost, trying again").waitFor();
    await go(page, "#/storage");
    const alert = page.getByRole("alert");
    await alert.getByText("The master does not answer.").waitFor();
    expect(await alert.locator("code").textContent()).toBe("cairn master --data-dir DIR");
    expect(await violations(page)).toEqual([]);
    await stage.master.listen(port);
    await page.getByText("Free on the disk").waitFor();
    await alert.waitFor({ state: "detached" });
  });

  it("because the session is over leads to the login, and from there back to where one was", async () => {
    const { page } = await stage.look("admin", "#/storage");
    await page.getByText("Free on the disk").waitFor();
    await page.context().clearCookies();
    await go(page, "#/cluster");
    await page.getByText("Your session has ended. Log in again.").waitFor();
    await page.getByLabel("User", { exact: true }).fill("admin");
    await page.getByLabel("Password", { exact: true }).fill("password");
    await page.getByRole("button", { name: "Log in" }).click();
    await page.getByRole("heading", { name: "Cluster" }).waitFor();
  });
});

describe("a page that nobody touches", () => {
  it("asks the master nothing: what happens comes as events", async () => {
    const { page } = await stage.look();
    await page.clock.install();
    const asked = (): number => stage.master.requests.filter((one) => !one.url.startsWith("/api/v1/events")).length;
    const unanswered = new Set<Request>();
    page.on("request", (one) => { if (!/\/events|follow=/.test(one.url())) unanswered.add(one); });
    for (const kind of ["requestfinished", "requestfailed"] as const) page.on(kind as "requestfinished", (one) => { unanswered.delete(one); });
    // What a page asked for that was left: nobody is told how it ended.
    page.on("framenavigated", () => { unanswered.clear(); });
    for (const [name, hash, text] of PLACES) {
      await page.goto(`${stage.master.url}/${hash}`);
      await page.reload();
      await page.getByText(text).first().waitFor();
      await page.getByText("live", { exact: true }).first().waitFor();
      // The first greeting of the stream makes it read once more, whenever that comes: until nothing is asked for in a while.
      let before = -1;
      await expect.poll(async () => {
        const same = before === asked() && unanswered.size === 0;
        before = asked();
        await page.clock.runFor(2000);
        return same;
      }, { interval: 300 }).toBe(true);
      before = asked();
      await page.clock.runFor(30_000);
      expect(asked(), name).toBe(before);
    }
  }, 300_000);
});

describe("colours", () => {
  it("are the system's until one chooses, and stay chosen", async () => {
    const { page } = await stage.look("admin", "", true);
    const theme = () => page.evaluate(() => document.documentElement.dataset["theme"]);
    await page.getByText("12 in all").waitFor();
    expect(await theme()).toBe("dark");
    await page.emulateMedia({ colorScheme: "light" });
    await expect.poll(theme).toBe("light");
    await page.getByRole("button", { name: "Dark colours" }).click();
    expect(await theme()).toBe("dark");
    await page.reload();
    await page.getByText("12 in all").waitFor();
    expect(await theme()).toBe("dark");
    await page.getByRole("button", { name: "Light colours" }).click();
    expect(await theme()).toBe("light");
  });
});
