// The part of the x axis that is shown, shared by all charts of a page. Outside of React: panning renders nothing but the charts.

export interface Range {
  from: number;
  to: number;
}

export class View {
  private range: Range | null = null;
  private readonly watchers = new Set<() => void>();

  /** null: all there is, also what is yet to come. */
  get(): Range | null {
    return this.range;
  }

  set(range: Range | null): void {
    if (range && !(range.to > range.from)) return;
    this.range = range;
    for (const watcher of this.watchers) watcher();
  }

  watch = (watcher: () => void): (() => void) => {
    this.watchers.add(watcher);
    return () => this.watchers.delete(watcher);
  };

  zoom(around: Range, factor: number, at = (around.from + around.to) / 2): void {
    this.set({ from: at - (at - around.from) * factor, to: at + (around.to - at) * factor });
  }

  pan(shown: Range, share: number): void {
    const by = (shown.to - shown.from) * share;
    this.set({ from: shown.from + by, to: shown.to + by });
  }
}
