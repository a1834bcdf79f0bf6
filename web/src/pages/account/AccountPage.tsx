import { useContext, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Token } from "../../api/types";
import { Dialog } from "../../components/Dialog";
import { Choice, Command, Empty, Facts, Failure, Field, Waiting } from "../../components/basics";
import { useResource, useTitle } from "../../components/hooks";
import { UserContext } from "../../components/session";
import { attempt } from "../../components/Toasts";
import { formatMinute, formatTime } from "../../model/format";

const LIFETIMES: [string, string][] = [["86400", "a day"], ["2592000", "30 days"], ["31536000", "a year"], ["", "until it is deleted"]];

/** The user's own password and tokens. */
export function AccountPage(): ReactNode {
  useTitle("Account");
  const user = useContext(UserContext);
  const tokens = useResource("tokens", () => api.tokens());
  const [asking, setAsking] = useState<"token" | "password" | Token | null>(null);
  const [made, setMade] = useState<Token | null>(null);
  if (!user) return null;
  return (
    <>
      <h1>Account</h1>
      <div className="panels two">
        <section className="panel" aria-labelledby="you">
          <h2 id="you">You</h2>
          <Facts facts={[["Name", user.username], ["Role", user.role], ["Since", formatTime(user.created)]]} />
          <button type="button" onClick={() => setAsking("password")}>Change the password…</button>
        </section>
        <section className="panel" aria-labelledby="tokens">
          <h2 id="tokens">Tokens</h2>
          <p className="hint">For the command line and for programs: CAIRN_TOKEN.</p>
          {tokens.error && !tokens.data ? <Failure error={tokens.error} retry={tokens.reload} /> : !tokens.data ? <Waiting />
            : tokens.data.tokens.length === 0 ? <Empty title="No tokens." command="cairn token create NAME">Make one here, or in a terminal that is logged in:</Empty>
              : (
                <div className="table-box plain" tabIndex={0} role="region" aria-label="Tokens of yours">
                  <table>
                    <thead><tr><th scope="col">Name</th><th scope="col">Made</th><th scope="col">Last used</th><th scope="col">Ends</th><th scope="col"><span className="hidden">Delete</span></th></tr></thead>
                    <tbody>
                      {tokens.data.tokens.map((token) => (
                        <tr key={token.id}>
                          <td>{token.name}</td><td title={formatTime(token.created)}>{formatMinute(token.created)}</td><td title={formatTime(token.last_used)}>{formatMinute(token.last_used)}</td><td>{token.expires ? formatMinute(token.expires) : "never"}</td>
                          <td><button type="button" className="link bad" aria-label={`Delete token ${token.name}`} onClick={() => setAsking(token)}>delete</button></td>
                        </tr>
                      ))}
                    </tbody>
                  </table>
                </div>
              )}
          <button type="button" className="primary" onClick={() => setAsking("token")}>New token…</button>
        </section>
      </div>
      {asking === "token" && <NewToken onMade={(token) => { setMade(token); tokens.reload(); }} onClose={() => setAsking(null)} />}
      {asking === "password" && <NewPassword user={user.username} known={user.has_password !== false} onClose={() => setAsking(null)} />}
      {asking !== null && typeof asking === "object" && (
        <Dialog title={`Delete the token ${asking.name}?`} submit="Delete" danger onClose={() => setAsking(null)}
          onSubmit={async () => { await attempt("Deleted.", () => api.deleteToken(asking.id)); tokens.reload(); }}>
          <p>What uses it is refused from now on.</p>
        </Dialog>
      )}
      {made && (
        <Dialog title={`The token ${made.name}`} onClose={() => setMade(null)}>
          <p>It is shown this once. Keep it like a password.</p>
          <Command text={`export CAIRN_TOKEN=${made.token ?? ""}`} />
        </Dialog>
      )}
    </>
  );
}

function NewToken({ onMade, onClose }: { onMade: (token: Token) => void; onClose: () => void }): ReactNode {
  const [name, setName] = useState("");
  const [lifetime, setLifetime] = useState("2592000");
  return (
    <Dialog title="New token" submit="Make it" disabled={name.trim() === ""} onClose={onClose}
      onSubmit={async () => onMade(await api.createToken({ name: name.trim(), ...(lifetime === "" ? {} : { expires_seconds: Number(lifetime) }) }))}>
      <Field label="What it is for" value={name} onChange={setName} required />
      <Choice label="Works for" value={lifetime} options={LIFETIMES} onChange={setLifetime} />
    </Dialog>
  );
}

function NewPassword({ user, known, onClose }: { user: string; known: boolean; onClose: () => void }): ReactNode {
  const [current, setCurrent] = useState("");
  const [password, setPassword] = useState("");
  const [again, setAgain] = useState("");
  const short = password.length < 8;
  const differ = again !== "" && again !== password;
  return (
    <Dialog title="Change the password" submit="Change" disabled={short || again !== password} onClose={onClose}
      onSubmit={async () => { await api.patchUser(user, { password, ...(known ? { current_password: current } : {}) }); }}>
      {known && <Field label="Present password" type="password" value={current} onChange={setCurrent} autoComplete="current-password" />}
      <Field label="New password" type="password" value={password} onChange={setPassword} autoComplete="new-password" hint="At least 8 characters" />
      <Field label="Once more" type="password" value={again} onChange={setAgain} autoComplete="new-password" problem={differ ? "The two differ" : undefined} />
      <p className="hint">Other sessions of yours end; you log in again.</p>
    </Dialog>
  );
}
