// Which rows of a long list are in the page: those in view and some beyond. With the head and the space above and below them
// a table has at most 100 row elements.

export interface Window {
  first: number;
  /** One past the last. */
  end: number;
}

export const MOST_ROWS = 96;

export function visibleWindow(scroll: number, height: number, rowHeight: number, count: number, beyond = 10): Window {
  const first = Math.max(0, Math.min(count, Math.floor(scroll / rowHeight)) - beyond);
  const end = Math.min(count, Math.ceil((scroll + height) / rowHeight) + beyond, first + MOST_ROWS);
  return { first, end: Math.max(first, end) };
}

/** Pages of a list that a window touches. */
export function pagesOf(window: Window, pageSize: number): number[] {
  const pages: number[] = [];
  if (window.end <= window.first) return pages;
  for (let page = Math.floor(window.first / pageSize); page <= Math.floor((window.end - 1) / pageSize); page++) pages.push(page);
  return pages;
}
