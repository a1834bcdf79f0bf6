// Who looks at the page.
import { createContext, useContext } from "react";
import type { Role, User } from "../api/types";
import { mayDo } from "../model/states";

export const UserContext = createContext<User | null>(null);

/** Whether the user has this role or a greater one: what needs more is not shown. */
export function useMay(needed: Role): boolean {
  return mayDo(useContext(UserContext)?.role, needed);
}
