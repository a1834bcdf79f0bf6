import { useContext, useState, type ReactNode } from "react";
import { api } from "../../api/client";
import type { Role, User } from "../../api/types";
import { Dialog } from "../../components/Dialog";
import { Choice, Failure, Field, Waiting } from "../../components/basics";
import { useResource, useTitle } from "../../components/hooks";
import { UserContext } from "../../components/session";
import { attempt } from "../../components/Toasts";
import { formatTime } from "../../model/format";

const ROLES: [Role, string][] = [["viewer", "viewer: looks"], ["user", "user: also starts, pauses, deletes"], ["admin", "admin: also users and webhooks"]];

/** Who may what. For admins. */
export function UsersPage(): ReactNode {
  useTitle("Users");
  const me = useContext(UserContext);
  const users = useResource("users", () => api.users());
  const [asking, setAsking] = useState<"new" | User | null>(null);
  const [role, setRole] = useState<Role>("user");
  const [name, setName] = useState("");
  const [password, setPassword] = useState("");
  if (users.error && !users.data) return <Failure page error={users.error} retry={users.reload} />;
  if (!users.data) return <Waiting />;
  const { users: list } = users.data;
  const patch = (user: User, change: { role?: Role; active?: boolean }): void => {
    // Shown at once; should it be refused, it is read again.
    users.set({ users: list.map((one) => (one === user ? { ...one, ...change } : one)) });
    void attempt("Changed.", () => api.patchUser(user.username, change)).then(users.reload);
  };
  return (
    <>
      <div className="page-head"><h1>Users</h1><button type="button" className="primary" onClick={() => { setName(""); setPassword(""); setAsking("new"); }}>New user…</button></div>
      <div className="table-box plain" tabIndex={0} role="region" aria-label="Users">
        <table>
          <thead><tr><th scope="col">Name</th><th scope="col">Role</th><th scope="col">Password</th><th scope="col">Since</th><th scope="col">May log in</th><th scope="col"><span className="hidden">Password</span></th></tr></thead>
          <tbody>
            {list.map((user) => (
              <tr key={user.username}>
                <td><span>{user.username}</span>{user.username === me?.username && <span className="label">you</span>}</td>
                <td>
                  <select aria-label={`Role of ${user.username}`} value={user.role} disabled={user.username === me?.username} onChange={(event) => patch(user, { role: event.target.value as Role })}>
                    {ROLES.map(([key]) => <option key={key} value={key}>{key}</option>)}
                  </select>
                </td>
                <td>{user.has_password === false ? "none, tokens only" : "set"}</td>
                <td>{formatTime(user.created)}</td>
                <td><input type="checkbox" aria-label={`${user.username} may log in`} checked={user.active} disabled={user.username === me?.username} onChange={(event) => patch(user, { active: event.target.checked })} /></td>
                <td><button type="button" className="link" aria-label={`New password for ${user.username}`} onClick={() => { setPassword(""); setAsking(user); }}>new password</button></td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {asking === "new" && (
        <Dialog title="New user" submit="Add" disabled={name === "" || (password !== "" && password.length < 8)} onClose={() => setAsking(null)}
          onSubmit={async () => { await api.createUser({ username: name, role, ...(password === "" ? {} : { password }) }); users.reload(); }}>
          <Field label="Name" value={name} onChange={setName} required />
          <Choice label="Role" value={role} options={ROLES} onChange={setRole} />
          <Field label="Password" type="password" value={password} onChange={setPassword} autoComplete="new-password" hint="At least 8 characters; empty: tokens only" />
        </Dialog>
      )}
      {asking !== null && asking !== "new" && (
        <Dialog title={`New password for ${asking.username}`} submit="Set" disabled={password.length < 8} onClose={() => setAsking(null)}
          onSubmit={async () => { await api.patchUser(asking.username, { password }); users.reload(); }}>
          <Field label="Password" type="password" value={password} onChange={setPassword} autoComplete="new-password" hint="At least 8 characters. The user's sessions end." />
        </Dialog>
      )}
    </>
  );
}
