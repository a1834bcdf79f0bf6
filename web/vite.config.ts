import { defineConfig } from "vite";

// The page runs under `default-src 'self'`: nothing is inlined, no address of elsewhere is in the output.
export default defineConfig({
  base: "/",
  build: {
    outDir: "dist",
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
  },
  esbuild: { jsx: "automatic", legalComments: "none" },
  server: { proxy: { "/api": process.env["CAIRN_MASTER"] ?? "http://127.0.0.1:8080" } },
});
