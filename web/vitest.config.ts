import { defineConfig } from "vitest/config";

// The logic, without a browser. tests/ holds what needs one.
export default defineConfig({ test: { include: ["src/**/*.test.ts"], environment: "node", testTimeout: 60_000 } });
