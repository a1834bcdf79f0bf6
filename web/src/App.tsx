// The frame around all pages: who looks, where one can go, whether the page is live.
import { useCallback, useEffect, useRef, useState, type ReactNode } from "react";
import { api, ApiError, setUnauthenticatedHandler } from "./api/client";
import { live } from "./api/live";
import type { User } from "./api/types";
import { describe } from "./components/Dialog";
import { Empty, Failure, Waiting } from "./components/basics";
import { useLiveState, useRoute } from "./components/hooks";
import { useKeptFocus } from "./components/keptFocus";
import { UserContext } from "./components/session";
import { toggleTheme, useTheme } from "./components/theme";
import { Toasts } from "./components/Toasts";
import { link, loginCode } from "./model/route";
import { mayDo } from "./model/states";
import { AccountPage } from "./pages/account/AccountPage";
import { LoginPage } from "./pages/account/LoginPage";
import { UsersPage } from "./pages/account/UsersPage";
import { CheckpointPage } from "./pages/checkpoints/CheckpointPage";
import { DiffPage } from "./pages/checkpoints/DiffPage";
import { ClusterPage } from "./pages/cluster/ClusterPage";
import { ExperimentPage } from "./pages/experiment/ExperimentPage";
import { ExperimentsPage } from "./pages/experiments/ExperimentsPage";
import { ComparePage } from "./pages/metrics/ComparePage";
import { StoragePage } from "./pages/storage/StoragePage";
import { TrialPage } from "./pages/trial/TrialPage";

type Session = { kind: "asking" } | { kind: "out"; problem: string | null } | { kind: "in"; user: User } | { kind: "failed"; error: ApiError };

/** With the code of a one-time link when there is one; it is taken out of the address before it is used. */
async function begin(): Promise<Session> {
  const code = loginCode(window.location.hash);
  if (code !== null) {
    window.history.replaceState(null, "", "/#/experiments");
    window.dispatchEvent(new HashChangeEvent("hashchange"));
    try {
      return { kind: "in", user: (await api.loginWithCode(code)).user };
    } catch (caught) {
      // Who is logged in already needs no code; otherwise the reason is shown.
      const known = await api.whoami().catch(() => null);
      return known ? { kind: "in", user: known } : { kind: "out", problem: describe(caught) };
    }
  }
  try {
    return { kind: "in", user: await api.whoami() };
  } catch (caught) {
    if (caught instanceof ApiError && (caught.status === 401 || caught.status === 403)) return { kind: "out", problem: null };
    return { kind: "failed", error: caught instanceof ApiError ? caught : new ApiError(0, "internal", describe(caught)) };
  }
}

// A code works once: it must not be sent twice when a component is mounted twice.
let first: Promise<Session> | null = null;

export function App(): ReactNode {
  const [session, setSession] = useState<Session>({ kind: "asking" });
  useEffect(() => {
    first ??= begin();
    void first.then(setSession);
    setUnauthenticatedHandler(() => setSession((before) => (before.kind === "in" ? { kind: "out", problem: "Your session has ended. Log in again." } : before)));
  }, []);

  // The master may come later than the page.
  useEffect(() => {
    if (session.kind !== "failed") return;
    const timer = setTimeout(() => void begin().then(setSession), 2000);
    return () => clearTimeout(timer);
  }, [session]);

  const inside = session.kind === "in";
  useEffect(() => {
    if (!inside) return;
    live.start();
    return () => live.stop();
  }, [inside]);

  switch (session.kind) {
    case "asking":
      return <main><Waiting /></main>;
    case "failed":
      return <main><h1>Cairn</h1><Failure error={session.error} /></main>;
    case "out":
      return <LoginPage problem={session.problem} onLogin={(user) => setSession({ kind: "in", user })} />;
    case "in":
      return (
        <UserContext value={session.user}>
          <Frame user={session.user} onLogout={() => setSession({ kind: "out", problem: null })} />
        </UserContext>
      );
  }
}

const PLACES: [string, string][] = [["experiments", "Experiments"], ["compare", "Compare"], ["storage", "Storage"], ["cluster", "Cluster"]];

function Frame({ user, onLogout }: { user: User; onLogout: () => void }): ReactNode {
  const { path } = useRoute();
  const theme = useTheme();
  const state = useLiveState();
  const place = path[0] === undefined || path[0] === "login" ? "experiments" : path[0];
  // Whoever followed a link stands at the beginning of what it led to: what had the focus is gone with the page before.
  const where = path.slice(0, 2).join("/");
  const before = useRef(where);
  useEffect(() => {
    if (before.current === where) return;
    before.current = where;
    window.scrollTo(0, 0);
    if (document.activeElement === document.body) document.getElementById("main")?.focus({ preventScroll: true });
  }, [where]);
  const main = useRef<HTMLElement>(null);
  useKeptFocus(main);
  const logout = useCallback(() => {
    void api.logout().catch(() => null).then(onLogout);
  }, [onLogout]);
  const places = mayDo(user.role, "admin") ? [...PLACES, ["users", "Users"] as [string, string]] : PLACES;
  return (
    <>
      <a className="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>To the content</a>
      <header className="frame">
        <a className="brand" href={link(["experiments"])}><img src="/favicon.svg" alt="" width={22} height={22} />Cairn</a>
        <nav aria-label="Pages">
          {places.map(([key, title]) => (
            <a key={key} href={link([key])} data-title={title} aria-current={place === key || (key === "experiments" && (place === "trials" || place === "checkpoints")) ? "page" : undefined}>{title}</a>
          ))}
        </nav>
        <span className={`live ${state}`} role="status">{state === "open" ? "live" : state === "lost" ? <>connection lost<span className="more">, trying again</span></> : "connecting"}</span>
        <button type="button" className="quiet" aria-label={theme === "dark" ? "Light colours" : "Dark colours"} onClick={toggleTheme}>{theme === "dark" ? "☀" : "☾"}</button>
        <a className="who" title={user.username} href={link(["account"])} aria-current={place === "account" ? "page" : undefined}>{user.username} <span className="role">({user.role})</span></a>
        <button type="button" className="quiet" onClick={logout}>Log out</button>
      </header>
      <main id="main" ref={main} tabIndex={-1}><Place path={path} admin={mayDo(user.role, "admin")} /></main>
      <Toasts />
    </>
  );
}

function Place({ path, admin }: { path: string[]; admin: boolean }): ReactNode {
  const [place, id, tab, other] = path;
  switch (place) {
    case undefined:
    case "login":
      return <ExperimentsPage />;
    case "experiments":
      return id === undefined ? <ExperimentsPage /> : <ExperimentPage key={id} id={id} tab={tab ?? ""} />;
    case "trials":
      if (id !== undefined) return <TrialPage key={id} id={id} tab={tab ?? ""} />;
      break;
    case "checkpoints":
      if (id !== undefined && tab === "compare" && other !== undefined) return <DiffPage key={`${id} ${other}`} a={id} b={other} />;
      if (id !== undefined) return <CheckpointPage key={id} id={id} />;
      break;
    case "compare":
      return <ComparePage />;
    case "storage":
      return <StoragePage />;
    case "cluster":
      return <ClusterPage />;
    case "account":
      return <AccountPage />;
    case "users":
      if (admin) return <UsersPage />;
      break;
  }
  return <Empty page title="There is no such page."><a href={link(["experiments"])}>To the experiments</a></Empty>;
}
