// Pictures of every page for docs/images, from a master of made-up data: node tests/screenshots.mjs [DIR [light|dark|mixed [NAME...]]]
// With a theme all of them are in it; otherwise some are dark. With names, these only. The master is where it usually is: port 8080 has to be free.
import { mkdirSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { DIST, launch, openWindow } from "./chromium.mjs";
import { FakeMaster } from "./fake_master.mjs";

const out = process.argv[2] ?? fileURLToPath(new URL("../../docs/images", import.meta.url));
const theme = process.argv[3] === "mixed" ? undefined : process.argv[3];
const only = process.argv.slice(4);
mkdirSync(out, { recursive: true });
const PORT = 8080;
const master = await new FakeMaster({ dist: DIST, experiments: 240 }).listen(PORT);
const browser = await launch();

// One that says in many ways that it failed before it saved anything.
master.addExperiment({ id: "241", name: "resnet50 with a typo", labels: [] });
master.addTrial("241", "24100", { state: "ERROR", progress: 0, steps: 0, hparams: { lr: 0.1 } });
Object.assign(master.trials.get("24100"), { message: "rank 0 ended with code 2", restarts: 6, run_id: 6, status: "", started: master.trials.get("1").started, ended: master.trials.get("1").started + 1200, ran: 1200, duration: 1200 });
master.refresh("241");
master.runs.set("24100", [{ ...master.runs.get("1")[0], run_id: 6, outcome: "failed", exit_signal: null, exit_code: 2, message: "rank 0 ended with code 2" }]);

master.addContinued("242", "1");

const checkpoint = [...master.checkpoints.keys()][3];
const other = [...master.checkpoints.keys()][5];
const chart = (page) => page.locator(".u-over").first().waitFor();
/** name, address, a text to wait for, and: dark; first, what to do; whole, also what is below the window; width of the window */
const PAGES = [
  ["experiments", "#/experiments", "in all"],
  ["selected", "#/experiments", "in all", { first: async (page) => {
    for (const id of ["240", "238", "237"]) await page.getByLabel(`Select experiment ${id}`, { exact: true }).check();
    await page.getByRole("button", { name: "Delete 2" }).waitFor();
  } }],
  ["overview", "#/experiments/1", "killed by signal 9"],
  ["metrics", "#/experiments/1/metrics", "steps 0 to", { first: async (page) => {
    await page.locator(".mark").first().waitFor();
    await page.getByRole("link", { name: /Checkpoint of step 40/ }).first().hover();
  } }],
  ["metrics-time", "#/experiments/1/metrics", "steps 0 to", { dark: true, first: (page) => page.getByLabel("X axis").selectOption("time") }],
  ["narrow", "#/experiments/1/metrics", "steps 0 to", { width: 400, first: chart }],
  ["checkpoints", "#/experiments/1/checkpoints", "Which checkpoints stay", { whole: true, first: async (page) => {
    await page.getByLabel("The last n").fill("2");
    await page.getByRole("button", { name: "Preview" }).click();
    await page.getByText(/would go and free/).waitFor();
  } }],
  ["logs", "#/experiments/1/logs?line=7", "60 steps, x = 60", { dark: true }],
  ["config", "#/experiments/1/config", "As it was written"],
  ["code", "#/experiments/1/code", "import cairn"],
  ["continue", "#/experiments/5", "Runs", { first: async (page) => {
    await page.getByRole("button", { name: "Continue…" }).click();
    await page.getByText("New trial with these weights, from batch 0").click();
  } }],
  ["pausing", "#/experiments/1", "Runs", { first: async (page) => {
    await page.getByRole("button", { name: "Pause" }).click();
    await page.getByText(/at most \d+ s more/).waitFor();
  } }],
  ["failed", "#/experiments/241", "see its log"],
  ["trials", "#/experiments/2", "Best:"],
  ["curves", "#/experiments/2/curves", "best of 24", { dark: true, whole: true, first: chart }],
  ["scatter", "#/experiments/2/scatter", "loss by", { first: async (page) => { await page.getByLabel("Hyperparameter", { exact: true }).selectOption("lr"); await page.getByLabel(/Log scale/).check(); } }],
  ["compare", "#/compare?trials=200,201,202,203", "Compare 4 trials", { whole: true, first: chart }],
  ["checkpoint", `#/checkpoints/${checkpoint}`, "What it holds"],
  ["verifying", `#/checkpoints/${checkpoint}`, "What it holds", { first: async (page) => {
    await page.getByRole("button", { name: "Verify all bytes" }).click();
    await page.getByRole("progressbar", { name: "Verified" }).waitFor();
  } }],
  ["files", `#/checkpoints/${checkpoint}/files`, "manifest.json"],
  ["tensors", `#/checkpoints/${checkpoint}/tensors`, "layers/0/weight"],
  ["metadata", `#/checkpoints/${checkpoint}/metadata`, "made by the tutorial"],
  ["lineage", `#/checkpoints/${checkpoint}/lineage`, "trial 242", { dark: true }],
  ["diff", `#/checkpoints/${checkpoint}/compare/${other}`, "Only in the first"],
  ["storage", "#/storage", "Free on the disk", { whole: true, first: async (page) => {
    await page.getByRole("button", { name: "Rules of experiment" }).first().click();
    await page.getByText("Which checkpoints stay").waitFor();
  } }],
  ["cluster", "#/cluster", "Lag", { whole: true }],
  ["account", "#/account", "laptop"],
  ["token", "#/account", "laptop", { first: async (page) => {
    await page.getByRole("button", { name: "New token…" }).click();
    await page.getByLabel("What it is for").fill("nightly jobs");
    await page.getByRole("button", { name: "Make it" }).click();
    await page.getByText("It is shown this once.").waitFor();
  } }],
  ["users", "#/users", "May log in"],
  ["login", "", "Log in", { user: null }],
  ["not-found", "#/experiments/4711", "There is no such thing."],
  ["lost", "#/experiments/1/metrics", "steps 0 to", { first: async (page) => {
    master.setState("1", "RUNNING", { preemption_deadline: null, resumes_from_step: null });
    await page.getByRole("button", { name: "Pause" }).waitFor();
    await master.stop();
    await page.getByText("connection lost, trying again").first().waitFor();
  } }],
];

/** Of a master that was just started. */
const EMPTY = [
  ["empty", "#/experiments", "No experiments yet."],
  ["empty-cluster", "#/cluster", "Nothing runs.", { dark: true, whole: true }],
];

async function shoot(from, [name, hash, text, how = {}]) {
  if (only.length > 0 && !only.includes(name)) return;
  const dark = theme === undefined ? how.dark : theme === "dark";
  const context = await openWindow(browser, from.url, { user: how.user === undefined ? "admin" : how.user, viewport: { width: how.width ?? 1280, height: 800 }, colorScheme: dark ? "dark" : "light", reducedMotion: "reduce" });
  const page = await context.newPage();
  await page.goto(`${from.url}/${hash}`);
  await page.getByText(text).first().waitFor();
  if (hash !== "") await page.getByText("live", { exact: true }).first().waitFor();
  await how.first?.(page);
  await page.waitForFunction(() => [...document.images].every((image) => image.complete && image.naturalWidth > 0));
  await page.screenshot({ path: `${out}/web-${name}.png`, fullPage: how.whole ?? false });
  await context.close();
  console.log(`${out}/web-${name}.png`);
}
for (const page of PAGES) await shoot(master, page); // the last one ends the master
if (only.length > 0) await master.stop().catch(() => {});
const fresh = await new FakeMaster({ dist: DIST, experiments: 0 }).listen(PORT);
for (const page of EMPTY) await shoot(fresh, page);
await fresh.stop();
await browser.close();
