// Types of chromium.mjs. (It is plain JavaScript so that scripts run it without a build.)
import type { Browser, BrowserContext, BrowserContextOptions } from "playwright-core";

export const DIST: string;
export function launch(): Promise<Browser>;
export function openWindow(browser: Browser, url: string, options?: BrowserContextOptions & { user?: string | null }): Promise<BrowserContext>;
