import { defineConfig } from "vitest/config";

// The built page in a real browser (Debian's chromium, or CHROMIUM) against a master of made-up data. What is waited for by asking again
// (expect.poll) has as long as what the browser waits for: the usual second is short on a machine that does other things.
export default defineConfig({
  test: { include: ["tests/**/*.test.ts"], environment: "node", fileParallelism: false, testTimeout: 60_000, hookTimeout: 60_000, expect: { poll: { timeout: 30_000, interval: 50 } } },
});
