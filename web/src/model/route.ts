// The address of what is shown, in the part after '#': the master serves one file for all of them, and what stands there is sent
// to nobody. "#/trials/7/logs?line=12" is the path [trials, 7, logs] with the query line=12.

export interface Route {
  path: string[];
  query: URLSearchParams;
}

export function parseRoute(hash: string): Route {
  const text = hash.replace(/^#\/?/, "");
  const question = text.indexOf("?");
  const path = (question < 0 ? text : text.slice(0, question)).split("/").filter((part) => part !== "");
  return { path: path.map(decode), query: new URLSearchParams(question < 0 ? "" : text.slice(question + 1)) };
}

function decode(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export function link(path: (string | number)[], query: { [name: string]: string | number | undefined } = {}): string {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== "") search.set(name, String(value));
  }
  const text = search.toString();
  return `#/${path.map((part) => encodeURIComponent(String(part))).join("/")}${text === "" ? "" : `?${text}`}`;
}

/**
 * The address in the part after '#' of one that was written as a path ("/experiments/7?tab=x"), as people do and older versions of
 * the command line did; null where there is nothing to change.
 */
export function addressOfPath(location: { pathname: string; search: string; hash: string }): string | null {
  if (location.hash !== "" || location.pathname === "/" || location.pathname === "/index.html") return null;
  return `/#${location.pathname}${location.search}`;
}

/** The one-time code of the link that the master prints ("/#code=…"); it is taken out of the address at once. */
export function loginCode(hash: string): string | null {
  return /^#code=(.+)$/.exec(hash)?.[1] ?? null;
}
