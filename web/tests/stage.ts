// What tests of single pages have in common: one browser for a file, for each test a master of made-up data, and the rule that nothing
// which must not happen did.
import type { Browser } from "playwright-core";
import { afterAll, afterEach, beforeAll, beforeEach, expect } from "vitest";
import { visit, type Visit } from "./browser";
import { DIST, launch } from "./chromium.mjs";
import { FakeMaster, type FakeMasterOptions } from "./fake_master.mjs";

export class Stage {
  private browser!: Browser;
  private open: Visit[] = [];
  master!: FakeMaster;

  constructor() {
    beforeAll(async () => {
      this.browser = await launch();
    });
    afterAll(async () => this.browser.close());
    beforeEach(async () => {
      this.master = await new FakeMaster({ dist: DIST }).listen();
    });
    afterEach(async () => {
      const problems = this.open.flatMap((one) => one.problems);
      for (const one of this.open) await one.context.close();
      this.open = [];
      await this.master.stop();
      expect(problems).toEqual([]);
    });
  }

  /** Another master instead, before anybody looked at the one that is there. */
  async use(options: FakeMasterOptions): Promise<void> {
    await this.master.stop();
    this.master = await new FakeMaster({ dist: DIST, ...options }).listen();
  }

  /** The page as this user sees it; null: as nobody who is known. */
  async look(user: string | null = "admin", hash = "", dark = false): Promise<Visit> {
    const made = await visit(this.browser, this.master.url, { dark, hash, user });
    this.open.push(made);
    return made;
  }
}
