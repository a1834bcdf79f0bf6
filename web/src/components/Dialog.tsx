// A question that has to be answered first. The browser's own dialog keeps the focus inside and closes with Escape.
import { useEffect, useId, useRef, useState, type FormEvent, type ReactNode } from "react";
import { ApiError } from "../api/client";

export interface DialogProps {
  title: string;
  children: ReactNode;
  /** What the main button says; without it there is only Close. */
  submit?: string;
  danger?: boolean;
  disabled?: boolean;
  /** The dialog closes when it is done; an error is shown inside. */
  onSubmit?: () => Promise<void> | void;
  onClose: () => void;
}

export function Dialog(props: DialogProps): ReactNode {
  const element = useRef<HTMLDialogElement>(null);
  const title = useId();
  const [error, setError] = useState<string | null>(null);
  const [busy, setBusy] = useState(false);

  // Whoever goes to another page (back, a link in a toast) has left the question.
  const close = useRef(props.onClose);
  close.current = props.onClose;
  useEffect(() => {
    const leave = (): void => close.current();
    window.addEventListener("hashchange", leave);
    return () => window.removeEventListener("hashchange", leave);
  }, []);

  useEffect(() => {
    const dialog = element.current!;
    const before = document.activeElement;
    dialog.showModal();
    return () => {
      dialog.close();
      const back = before instanceof HTMLElement && before.isConnected ? before : document.getElementById("main");
      back?.focus();
    };
  }, []);

  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    if (busy || props.disabled || !props.onSubmit) return;
    setBusy(true);
    setError(null);
    try {
      await props.onSubmit();
      props.onClose();
    } catch (caught) {
      setError(describe(caught));
      setBusy(false);
    }
  };

  return (
    <dialog
      ref={element}
      aria-labelledby={title}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      <form onSubmit={(event) => void submit(event)}>
        <h2 id={title}>{props.title}</h2>
        <div className="dialog-body">{props.children}</div>
        {error !== null && <p role="alert" className="problem">{error}</p>}
        <div className="dialog-buttons">
          <button type="button" onClick={props.onClose}>{props.submit ? "Cancel" : "Close"}</button>
          {props.submit && (
            <button type="submit" className={props.danger ? "danger" : "primary"} disabled={busy || props.disabled}>
              {props.submit}
            </button>
          )}
        </div>
      </form>
    </dialog>
  );
}

function problemText(problem: unknown): string {
  if (typeof problem === "string") return problem;
  const message = (problem as { message?: unknown } | null)?.message;
  return typeof message === "string" ? message : JSON.stringify(problem);
}

/** An error for people, with those problems of a config that its message does not name. */
export function describe(caught: unknown): string {
  if (caught instanceof ApiError) {
    const problems = caught.details["problems"];
    const more = Array.isArray(problems) ? problems.map(problemText).filter((text) => !caught.message.includes(text)) : [];
    return [caught.message, ...more].join("\n");
  }
  return caught instanceof Error ? caught.message : String(caught);
}
