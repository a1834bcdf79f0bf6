// A browser and a page in it that notices what must not happen: errors of scripts, things that the policy forbids, addresses of
// elsewhere.
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";
import { chromium, type Browser, type BrowserContext, type Page } from "playwright-core";

export const DIST = fileURLToPath(new URL("../dist", import.meta.url));
const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export async function launch(): Promise<Browser> {
  const executablePath = process.env["CHROMIUM"] ?? "/usr/bin/chromium";
  if (!existsSync(executablePath)) throw new Error(`${executablePath} is missing: scripts/setup web, or name a browser with CHROMIUM`);
  if (!existsSync(DIST)) throw new Error("web/dist is missing: scripts/web builds it");
  return chromium.launch({
    executablePath,
    args: ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"],
  });
}

export interface Visit {
  page: Page;
  context: BrowserContext;
  /** What must stay empty. */
  problems: string[];
}

export async function visit(browser: Browser, url: string, options: { user?: string; password?: string; dark?: boolean; hash?: string } = {}): Promise<Visit> {
  const context = await browser.newContext({ viewport: { width: 1360, height: 850 }, colorScheme: options.dark ? "dark" : "light" });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  const problems: string[] = [];
  page.on("pageerror", (error) => problems.push(`script: ${error.message}`));
  page.on("console", (message) => {
    // The browser itself reports answers like 401 and lost connections; tests look at what the page makes of them.
    if (message.type() === "error" && !message.text().includes("Failed to load resource")) problems.push(`console: ${message.text()}`);
  });
  page.on("request", (request) => {
    if (!request.url().startsWith(url)) problems.push(`elsewhere: ${request.url()}`);
  });
  if (options.user) {
    const data = { username: options.user, password: options.password ?? "password", cookie: true };
    const answer = await context.request.post(`${url}/api/v1/auth/login`, { data });
    if (!answer.ok()) throw new Error(`login: ${answer.status()} ${await answer.text()}`);
  }
  await page.goto(`${url}/${options.hash ?? ""}`);
  return { page, context, problems };
}

export async function typeLogin(page: Page, user: string): Promise<void> {
  await page.getByLabel("User", { exact: true }).fill(user);
  await page.getByLabel("Password", { exact: true }).fill("password");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Experiments" }).waitFor();
}

/** Violations that axe calls serious or critical, as readable lines. `rules`: only these, where the rest is known already. */
export async function seriousViolations(page: Page, rules: string[] = []): Promise<string[]> {
  // Under the page's own policy a script tag would be refused; evaluate is not.
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axeSource);
  return page.evaluate(async (only) => {
    interface Violation { id: string; impact: string; help: string; nodes: { target: unknown; failureSummary: string }[] }
    const { axe } = window as unknown as { axe: { run: (options: object) => Promise<{ violations: Violation[] }> } };
    const { violations } = await axe.run(only.length > 0 ? { runOnly: only } : {});
    return violations
      .filter((one) => one.impact === "serious" || one.impact === "critical")
      .map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => `${JSON.stringify(node.target)} ${node.failureSummary}`).join(" | ")}`);
  }, rules);
}
