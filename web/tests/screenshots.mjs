// Pictures of every page for docs/images, from a master of made-up data: node tests/screenshots.mjs [DIR]
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";
import { FakeMaster } from "./fake_master.mjs";

const out = process.argv[2] ?? fileURLToPath(new URL("../../docs/images", import.meta.url));
const dist = fileURLToPath(new URL("../dist", import.meta.url));
mkdirSync(out, { recursive: true });
const master = await new FakeMaster({ dist, experiments: 240 }).listen();
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"] });

const checkpoint = [...master.checkpoints.keys()][3];
const other = [...master.checkpoints.keys()][5];
/** name, address, a text to wait for, dark, what to do first */
const PAGES = [
  ["experiments", "#/experiments", "in all"],
  ["overview", "#/experiments/1", "killed by signal 9"],
  ["metrics", "#/experiments/1/metrics", "steps 0 to", false, (page) => page.locator(".mark").first().waitFor()],
  ["metrics-time", "#/experiments/1/metrics", "steps 0 to", true, (page) => page.getByLabel("X axis").selectOption("time")],
  ["checkpoints", "#/experiments/1/checkpoints", "Which checkpoints stay", false, async (page) => {
    await page.getByLabel("The last n").fill("2");
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/would go and free/).waitFor();
  }],
  ["logs", "#/experiments/1/logs?line=7", "60 steps, x = 60", true],
  ["config", "#/experiments/1/config", "As it was written"],
  ["code", "#/experiments/1/code", "import cairn"],
  ["continue", "#/experiments/3", "Runs", false, async (page) => {
    await page.getByRole("button", { name: "Continue…" }).click();
    await page.getByText("New trial with these weights, from batch 0").click();
  }],
  ["pausing", "#/experiments/1", "Runs", false, async (page) => {
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByText(/at most \d+ s more/).waitFor();
  }],
  ["trials", "#/experiments/2", "Best:"],
  ["curves", "#/experiments/2/curves", "best of 24", true, (page) => page.locator(".u-over").first().waitFor()],
  ["scatter", "#/experiments/2/scatter", "loss by", false, async (page) => { await page.getByLabel("Hyperparameter", { exact: true }).selectOption("lr"); await page.getByLabel(/Log scale/).check(); }],
  ["compare", "#/compare?trials=200,201,202,203", "Compare 4 trials", false, (page) => page.locator(".u-over").first().waitFor()],
  ["checkpoint", `#/checkpoints/${checkpoint}`, "What it holds"],
  ["tensors", `#/checkpoints/${checkpoint}/tensors`, "layers/0/weight"],
  ["lineage", `#/checkpoints/${checkpoint}/lineage`, "trial 77", true],
  ["diff", `#/checkpoints/${checkpoint}/compare/${other}`, "Only in the first"],
  ["storage", "#/storage", "Free on the disk"],
  ["cluster", "#/cluster", "lag"],
  ["account", "#/account", "laptop"],
  ["users", "#/users", "May log in"],
  ["login", "", "Log in"],
];

for (const [name, hash, text, dark, first] of PAGES) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, colorScheme: dark ? "dark" : "light", reducedMotion: "reduce" });
  if (hash !== "") await context.request.post(`${master.url}/api/v1/auth/login`, { data: { username: "admin", password: "password", cookie: true } });
  const page = await context.newPage();
  await page.goto(`${master.url}/${hash}`);
  await page.getByText(text).first().waitFor();
  await first?.(page);
  if (hash !== "") await page.getByText("live", { exact: true }).first().waitFor();
  await page.screenshot({ path: `${out}/web-${name}.png` });
  await context.close();
  console.log(`${out}/web-${name}.png`);
}
await browser.close();
await master.stop();
