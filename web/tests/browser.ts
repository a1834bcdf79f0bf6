// A page in the browser that notices what must not happen: errors of scripts, things that the policy forbids, addresses of elsewhere,
// secrets in addresses.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import type { Browser, BrowserContext, Page } from "playwright-core";
import { openWindow } from "./chromium.mjs";

const axeSource = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

export interface Visit {
  page: Page;
  context: BrowserContext;
  /** What must stay empty. */
  problems: string[];
}

export async function visit(browser: Browser, url: string, options: { user?: string | null; dark?: boolean; hash?: string } = {}): Promise<Visit> {
  const context = await openWindow(browser, url, { user: options.user ?? null, colorScheme: options.dark ? "dark" : "light" });
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
    if ([...new URL(request.url()).searchParams.keys()].some((name) => /token|code|password|secret/i.test(name))) problems.push(`a secret in an address: ${request.url()}`);
  });
  await page.goto(`${url}/${options.hash ?? ""}`);
  return { page, context, problems };
}

/** As a link does, without reading the page anew. */
export async function go(page: Page, hash: string): Promise<void> {
  await page.evaluate((to) => { window.location.hash = to; }, hash);
}

export async function typeLogin(page: Page, user: string): Promise<void> {
  await page.getByLabel("User", { exact: true }).fill(user);
  await page.getByLabel("Password", { exact: true }).fill("password");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Experiments" }).waitFor();
}

/** Violations that axe calls moderate or worse, as readable lines. `rules`: only these, where the rest is known already. */
export async function violations(page: Page, rules: string[] = []): Promise<string[]> {
  // Under the page's own policy a script tag would be refused; evaluate is not.
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(axeSource);
  return page.evaluate(async (only) => {
    interface Violation { id: string; impact: string; help: string; nodes: { target: unknown; failureSummary: string }[] }
    const { axe } = window as unknown as { axe: { run: (options: object) => Promise<{ violations: Violation[] }> } };
    const result = await axe.run(only.length > 0 ? { runOnly: only } : {});
    return result.violations
      .filter((one) => one.impact !== "minor")
      .map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => `${JSON.stringify(node.target)} ${node.failureSummary}`).join(" | ")}`);
  }, rules);
}
