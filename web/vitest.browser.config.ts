import { defineConfig } from "vitest/config";

// The built page in a real browser (Debian's chromium, or CHROMIUM) against a master of made-up data.
export default defineConfig({
  test: { include: ["tests/**/*.test.ts"], environment: "node", fileParallelism: false, testTimeout: 60_000, hookTimeout: 60_000 },
});
