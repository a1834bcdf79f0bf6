import { useState, type FormEvent, type ReactNode } from "react";
import { api } from "../../api/client";
import type { User } from "../../api/types";
import { Command, Field } from "../../components/basics";
import { describe } from "../../components/Dialog";
import { useTitle } from "../../components/hooks";

/** Name and password, or the link that the master prints. `problem`: why a link did not do. */
export function LoginPage({ onLogin, problem }: { onLogin: (user: User) => void; problem: string | null }): ReactNode {
  useTitle("Log in");
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  const [error, setError] = useState<string | null>(problem);
  const [busy, setBusy] = useState(false);
  const submit = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      onLogin((await api.login(name, password)).user);
    } catch (caught) {
      setError(describe(caught));
      setPassword("");
    }
    setBusy(false);
  };
  return (
    <main className="login">
      <h1>Cairn</h1>
      <form onSubmit={(event) => void submit(event)} className="panel">
        <Field label="User" value={name} onChange={setName} autoComplete="username" required />
        <Field label="Password" type="password" value={password} onChange={setPassword} autoComplete="current-password" required />
        {error && <p role="alert" className="problem">{error}</p>}
        <button type="submit" className="primary" disabled={busy}>Log in</button>
      </form>
      <p className="hint">On the master&apos;s machine, this prints a link that logs in once, as the master does when it starts:</p>
      <p><Command text="cairn login-link" /></p>
      <p className="hint">And this sets a password:</p>
      <p><Command text="cairn user change-password USER" /></p>
    </main>
  );
}
