// Who works with the keyboard keeps their place. What has the focus may vanish under them: a button that was pressed (Pause becomes
// Activate), a row that was deleted, the bar of what was selected. The browser then starts at the top of the page; here the nearest
// thing around it that is still there gets the focus.
import { useEffect, type RefObject } from "react";

/** Where a screen reader can say where one is, and Tab goes on with what is inside. */
const PLACES = "[tabindex], [role=group], [role=region], section, nav";

export function useKeptFocus(main: RefObject<HTMLElement | null>): void {
  useEffect(() => {
    const root = main.current!;
    let path: HTMLElement[] = [];
    const remember = (event: FocusEvent): void => {
      path = [];
      for (let at = event.target as HTMLElement | null; at && at !== root; at = at.parentElement) path.push(at);
    };
    // Whoever left by themselves (a click on nothing) has no place to come back to. What is being removed loses the focus first, in some
    // browsers, so that only afterwards it is known which of the two it was.
    const forget = (): void => {
      const left = path;
      setTimeout(() => {
        if (path === left && path[0]?.isConnected && document.activeElement === document.body) path = [];
      });
    };
    const restore = (): void => {
      if (path.length === 0 || path[0]!.isConnected || document.activeElement !== document.body) return;
      const near = path.find((one) => one.isConnected && one.matches(PLACES)) ?? root;
      path = [];
      if (!near.hasAttribute("tabindex")) near.tabIndex = -1;
      near.focus({ preventScroll: true });
    };
    const observer = new MutationObserver(restore);
    root.addEventListener("focusin", remember);
    root.addEventListener("focusout", forget);
    observer.observe(root, { childList: true, subtree: true });
    return () => {
      root.removeEventListener("focusin", remember);
      root.removeEventListener("focusout", forget);
      observer.disconnect();
    };
  }, [main]);
}
