// Small things that every page uses.
import { Fragment, useEffect, useId, useRef, useState, type ReactNode } from "react";
import type { ApiError } from "../api/client";
import { withMaster } from "../model/command";
import { formatPercent } from "../model/format";
import { toneOf } from "../model/states";

export function StateBadge({ state }: { state: string }): ReactNode {
  return <span className={`badge ${toneOf(state)}`}>{state}</span>;
}

/** Of what never said how far it is nothing is known, which is not the same as 0 %. `counted`: the master counts it by itself. */
export function Progress({ value, label, counted = false }: { value: number; label: string; counted?: boolean }): ReactNode {
  if (!(value > 0) && !counted) return <span className="faint" role="img" aria-label={`${label}: not reported`} title="No progress was reported.">–</span>;
  return (
    <span className="progress">
      <progress max={1} value={Math.max(0, Math.min(1, value))} aria-label={label} />
      <span className="progress-text">{formatPercent(value)}</span>
    </span>
  );
}

/** Also where the page has no clipboard, as one that came over plain HTTP from another machine: then by what is selected. */
async function copyText(element: HTMLElement, text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    window.getSelection()?.selectAllChildren(element);
    return document.execCommand("copy");
  }
}

/** A long path is broken after its slashes: half a number is another number. */
export function PathText({ path }: { path: string }): ReactNode {
  return <code>{path.split("/").map((part, index) => <Fragment key={index}>{index > 0 && <>/<wbr /></>}{part}</Fragment>)}</code>;
}

const COPIED_MS = 2000;

/** A command that can be copied. A long one is broken between its words: "--" alone at the end of a line is no flag. */
export function Command({ text: plain }: { text: string }): ReactNode {
  const text = withMaster(plain, window.location.origin);
  const code = useRef<HTMLElement>(null);
  // Said here rather than in a note at the corner of the window: that lies behind a dialog.
  const [done, setDone] = useState("");
  useEffect(() => {
    if (done === "") return;
    const timer = setTimeout(() => setDone(""), COPIED_MS);
    return () => clearTimeout(timer);
  }, [done]);
  const copy = async (): Promise<void> => setDone(await copyText(code.current!, text) ? "Copied" : "Ctrl+C");
  return (
    <span className="command">
      <code tabIndex={0} ref={code}>
        {text.split(" ").map((word, index) => <Fragment key={index}>{index > 0 && " "}<span className="word">{word}</span></Fragment>)}
      </code>
      <button type="button" aria-label={done ? undefined : `Copy the command ${text}`} onClick={() => void copy()}>{done || "Copy"}</button>
      <span role="status" className="hidden">{done === "Ctrl+C" ? "It is selected: press Ctrl and C" : done}</span>
    </span>
  );
}

/** `page`: it is all there is, so that its title is that of the page. */
export function Empty({ title, children, command, page = false }: { title: string; children?: ReactNode; command?: string; page?: boolean }): ReactNode {
  const Title = page ? "h1" : "p";
  return (
    <div className="empty">
      <Title className="empty-title">{title}</Title>
      {children && <p>{children}</p>}
      {command && <Command text={command} />}
    </div>
  );
}

/** What went wrong with reading, what to do about it. `page`: all of the page could not be read, so that its title says so. */
export function Failure({ error, retry, page = false }: { error: ApiError; retry?: () => void; page?: boolean }): ReactNode {
  const Title = page ? "h1" : "p";
  const hint =
    error.status === 0
      ? { text: "The page goes on by itself when it is back. To start it:", command: "cairn master --data-dir DIR" }
      : error.status === 404
        ? { text: "It may have been deleted. What there is:", command: "cairn experiment ls" }
        : error.status === 403
          ? { text: "Your role does not allow this. Ask an admin for it:", command: "cairn user ls" }
          : null;
  return (
    <div className="empty" role="alert">
      <Title className="empty-title">{error.message}</Title>
      {hint && <p>{hint.text}</p>}
      {hint && <Command text={hint.command} />}
      {retry && <p><button type="button" onClick={retry}>Try again</button></p>}
    </div>
  );
}

/** The head of a page or part that is still being read. */
export function Waiting(): ReactNode {
  return <p className="waiting-text" aria-busy="true">Reading…</p>;
}

export interface Tab {
  key: string;
  title: string;
  href: string;
}

/** Tabs are links: each has an address of its own. */
export function Tabs({ tabs, current, label }: { tabs: Tab[]; current: string; label: string }): ReactNode {
  return (
    <nav className="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.key} href={tab.href} data-title={tab.title} aria-current={tab.key === current ? "page" : undefined}>{tab.title}</a>
      ))}
    </nav>
  );
}

export function Facts({ facts }: { facts: [string, ReactNode][] }): ReactNode {
  return (
    <dl className="facts">
      {facts.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

interface FieldProps {
  label: string;
  value: string;
  onChange: (value: string) => void;
  type?: string;
  hint?: string;
  problem?: string | undefined;
  autoComplete?: string;
  required?: boolean;
  placeholder?: string;
}

export function Field(props: FieldProps): ReactNode {
  const id = useId();
  const [touched, setTouched] = useState(false);
  const note = props.problem ?? props.hint;
  return (
    <div className="field">
      <label htmlFor={id}>{props.label}</label>
      <input
        id={id}
        type={props.type ?? "text"}
        value={props.value}
        placeholder={props.placeholder}
        required={props.required}
        autoComplete={props.autoComplete ?? "off"}
        aria-describedby={note ? `${id}-note` : undefined}
        aria-invalid={props.problem !== undefined && touched ? true : undefined}
        onChange={(event) => {
          setTouched(true);
          props.onChange(event.target.value);
        }}
      />
      {note && <span id={`${id}-note`} className={props.problem ? "problem" : "hint"}>{note}</span>}
    </div>
  );
}

interface ChoiceProps<V extends string> {
  label: string;
  value: V;
  options: [V, string][];
  onChange: (value: V) => void;
}

export function Choice<V extends string>({ label, value, options, onChange }: ChoiceProps<V>): ReactNode {
  const id = useId();
  return (
    <span className="choice">
      <label htmlFor={id}>{label}</label>
      <select id={id} value={value} onChange={(event) => onChange(event.target.value as V)}>
        {options.map(([key, text]) => (
          <option key={key} value={key}>{text}</option>
        ))}
      </select>
    </span>
  );
}
