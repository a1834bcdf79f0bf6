// The browser of tests, pictures and figures: Debian's chromium, or the one that CHROMIUM names, and nothing that it does by itself.
import { existsSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { chromium } from "playwright-core";

/** The built page. */
export const DIST = fileURLToPath(new URL("../dist", import.meta.url));

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
  if (!existsSync(executablePath)) throw new Error(`${executablePath} is missing: scripts/setup web, or name a browser with CHROMIUM`);
  if (!existsSync(DIST)) throw new Error("web/dist is missing: scripts/web builds it");
  return chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
  });
}

/** A window of a user whose password is "password", or of nobody. */
export async function openWindow(browser, url, { user = null, ...options } = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 850 }, ...options });
  if (user !== null) {
    const answer = await context.request.post(`${url}/api/v1/auth/login`, { data: { username: user, password: "password", cookie: true } });
    if (!answer.ok()) throw new Error(`login: ${answer.status()} ${await answer.text()}`);
  }
  return context;
}
