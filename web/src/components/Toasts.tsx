// Short notes about what was done or refused. Read out by screen readers; errors stay until they are closed.
import { useSyncExternalStore, type ReactNode } from "react";
import { describe } from "./Dialog";

interface Toast {
  id: number;
  text: string;
  bad: boolean;
}

const STAY_MS = 6000;
const MOST = 5;
let toasts: Toast[] = [];
let nextId = 1;
const watchers = new Set<() => void>();

function change(next: Toast[]): void {
  toasts = next;
  for (const watcher of watchers) watcher();
}

export function say(text: string, bad = false): void {
  const id = nextId++;
  change([...toasts, { id, text, bad }].slice(-MOST));
  if (!bad) setTimeout(() => close(id), STAY_MS);
}

function close(id: number): void {
  change(toasts.filter((toast) => toast.id !== id));
}

/** Does something and tells what became of it; null: only when it failed. */
export async function attempt(done: string | null, action: () => Promise<unknown>): Promise<boolean> {
  try {
    await action();
    if (done !== null) say(done);
    return true;
  } catch (caught) {
    say(describe(caught), true);
    return false;
  }
}

export function Toasts(): ReactNode {
  const shown = useSyncExternalStore(
    (watcher) => {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
    () => toasts,
  );
  return (
    <div className="toasts" role="status" aria-live="polite">
      {shown.map((toast) => (
        <div key={toast.id} className={toast.bad ? "toast bad" : "toast"}>
          <span>{toast.text}</span>
          <button type="button" aria-label="Close this note" onClick={() => close(toast.id)}>✕</button>
        </div>
      ))}
    </div>
  );
}
