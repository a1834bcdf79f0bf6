#!/usr/bin/env node
// How quick the web page is, in a real browser against a master of made-up data:
//
//   bench/web.mjs [--rounds 5] [--json FILE]        after scripts/web
//
// Bytes: all files compressed, as a browser fetches them. First rows: from the beginning of the navigation to the first painted rows of a
// list of 1,000 experiments, logged in, nothing cached. Pan: a curve of 100,000 points pulled along for 120 frames; what counts is the time
// from one frame to the next, beside the same without a chart in the page (the machine's own share), and the processor time of the page's
// thread for each frame, which other work on the machine does not change.
import { readdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { loadavg } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import { gzipSync } from "node:zlib";
import { DIST as dist, launch, openWindow } from "../web/tests/chromium.mjs";
import { FakeMaster } from "../web/tests/fake_master.mjs";

const { values: options } = parseArgs({ options: { rounds: { type: "string", default: "5" }, json: { type: "string", default: "" } } });
const MOST_BYTES = 350 * 1024;
const MOST_FRAME_MS = 50;
const FRAMES = 120;

const files = (directory) => readdirSync(directory).flatMap((name) => {
  const path = join(directory, name);
  return statSync(path).isDirectory() ? files(path) : [path];
});
const median = (list) => [...list].sort((a, b) => a - b)[Math.floor(list.length / 2)];
const bytes = files(dist).reduce((sum, path) => sum + gzipSync(readFileSync(path), { level: 9 }).length, 0);

async function open(browser, master, hash, prepare) {
  const context = await openWindow(browser, master.url, { user: "admin" });
  const page = await context.newPage();
  if (prepare) await page.addInitScript(prepare);
  await page.goto(`${master.url}/${hash}`);
  return { context, page };
}

/** In the page: when the frame with the first rows was there. */
function watchRows() {
  window.rowsAt = new Promise((resolve) => {
    new MutationObserver((_changes, observer) => {
      if (!document.querySelector("tr[data-key]")) return;
      observer.disconnect();
      requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())));
    }).observe(document, { childList: true, subtree: true });
  });
}

/** In the page: the times between frames, while `onFrame` is called before each. */
async function frames(page, count, onFrame) {
  return page.evaluate(async ([number, pull]) => {
    const over = document.querySelector(".u-over");
    const box = over?.getBoundingClientRect();
    const send = (kind, x) => over.dispatchEvent(new PointerEvent(kind, { bubbles: true, cancelable: true, shiftKey: true, button: 0, pointerId: 1, clientX: box.left + x, clientY: box.top + 60 }));
    if (pull) {
      over.setPointerCapture = () => {};
      send("pointerdown", box.width / 2);
    }
    const times = [];
    let last = await new Promise(requestAnimationFrame);
    for (let n = 0; n < number; n++) {
      if (pull) send("pointermove", box.width / 2 + Math.sin(n / 12) * box.width * 0.4);
      const now = await new Promise(requestAnimationFrame);
      times.push(now - last);
      last = now;
    }
    if (pull) send("pointerup", 0);
    return times;
  }, [count, onFrame]);
}

const browser = await launch();
const many = await new FakeMaster({ dist, experiments: 1000 }).listen();
const long = await new FakeMaster({ dist, points: 100_000 }).listen();
const rounds = [];
for (let round = 0; round < Number(options.rounds); round++) {
  const list = await open(browser, many, "#/experiments", watchRows);
  const rows = await list.page.evaluate(() => window.rowsAt);
  const painted = await list.page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null);
  const idle = await frames(list.page, FRAMES, false);
  await list.context.close();

  const chart = await open(browser, long, "#/experiments/1/metrics");
  await chart.page.getByLabel("Detail").selectOption("100000");
  await chart.page.getByRole("group", { name: /at step 100000\./ }).first().waitFor({ timeout: 60_000 });
  const plot = chart.page.locator(".plot").first();
  await plot.focus();
  for (let n = 0; n < 3; n++) await chart.page.keyboard.press("+"); // about a third of it in view
  const cpu = await chart.context.newCDPSession(chart.page);
  await cpu.send("Performance.enable", { timeDomain: "threadTicks" });
  const busy = async () => (await cpu.send("Performance.getMetrics")).metrics.find((one) => one.name === "TaskDuration").value;
  const before = await busy();
  const pan = await frames(chart.page, FRAMES, true);
  const work = ((await busy()) - before) * 1000 / FRAMES;
  await chart.context.close();
  const row = { first_paint_ms: painted, first_rows_ms: rows, pan_cpu_ms: work, pan_frame_median_ms: median(pan), pan_frame_max_ms: Math.max(...pan), idle_frame_max_ms: Math.max(...idle), load: loadavg()[0] };
  rounds.push(row);
  console.log(Object.entries(row).map(([name, value]) => `${name} ${value === null ? "-" : value.toFixed(1)}`).join("   "));
}
const result = {
  bundle_gzip_bytes: bytes,
  first_paint_ms: median(rounds.map((row) => row.first_paint_ms)),
  first_rows_ms: median(rounds.map((row) => row.first_rows_ms)),
  pan_cpu_ms: median(rounds.map((row) => row.pan_cpu_ms)),
  pan_frame_median_ms: median(rounds.map((row) => row.pan_frame_median_ms)),
  pan_frame_max_ms: median(rounds.map((row) => row.pan_frame_max_ms)),
  idle_frame_max_ms: median(rounds.map((row) => row.idle_frame_max_ms)),
  browser: browser.version(),
  rounds,
};
await browser.close();
await many.stop();
await long.stop();
console.log(`bundle: ${bytes} bytes compressed (at most ${MOST_BYTES})`);
console.log(`1,000 experiments: first paint ${result.first_paint_ms.toFixed(0)} ms, first rows ${result.first_rows_ms.toFixed(0)} ms`);
console.log(`100,000 points: the longest of ${FRAMES} frames while panning ${result.pan_frame_max_ms.toFixed(1)} ms (at most ${MOST_FRAME_MS}; without a chart ${result.idle_frame_max_ms.toFixed(1)} ms), ${result.pan_cpu_ms.toFixed(1)} ms of the processor for each`);
if (options.json) writeFileSync(options.json, JSON.stringify(result, null, 2));
process.exitCode = bytes > MOST_BYTES || result.pan_frame_max_ms > MOST_FRAME_MS ? 1 : 0;
