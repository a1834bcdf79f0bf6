// Light or dark: what the system says, unless the user chose.
import { useSyncExternalStore } from "react";

export type Theme = "light" | "dark";
const KEY = "cairn-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");
const watchers = new Set<() => void>();

function chosen(): Theme | null {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null; // storage may be forbidden
  }
}

function theme(): Theme {
  return chosen() ?? (system.matches ? "dark" : "light");
}

export function applyTheme(): void {
  document.documentElement.dataset["theme"] = theme();
  for (const watcher of watchers) watcher();
}

export function toggleTheme(): void {
  try {
    localStorage.setItem(KEY, theme() === "dark" ? "light" : "dark");
  } catch {
    // then it stays as the system has it
  }
  applyTheme();
}

system.addEventListener("change", applyTheme);

export function useTheme(): Theme {
  return useSyncExternalStore((watcher) => {
    watchers.add(watcher);
    return () => watchers.delete(watcher);
  }, theme);
}
