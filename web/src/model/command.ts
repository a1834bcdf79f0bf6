// Commands that the page gives to copy: as they work in a terminal that was told nothing.

/** Where the command line looks for a master when nobody says where it is. */
const USUAL = ["http://127.0.0.1:8080", "http://localhost:8080"];
const ASKS_MASTER = /^cairn (experiment|trial|user|token|login-link)\b/;

/** Names the master in commands that ask one, unless it is where they look for it anyway. */
export function withMaster(command: string, origin: string): string {
  return ASKS_MASTER.test(command) && !USUAL.includes(origin) ? `${command} -m ${origin}` : command;
}
