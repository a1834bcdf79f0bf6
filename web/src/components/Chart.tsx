// One chart: curves, the runs behind them as bands, checkpoints on them as marks. uPlot draws; of long curves it is given what the
// screen can show (model/series.ts, thin), so that panning costs the same whatever their length.
import { useEffect, useId, useLayoutEffect, useRef, type KeyboardEvent, type ReactNode } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import type { Band } from "../model/bands";
import { formatMarks, formatNumber, formatTicks, formatTime, roomForStep } from "../model/format";
import { fromPower, inPower, nearestValue, powerOf, thin } from "../model/series";
import { useTheme } from "./theme";
import type { Range, View } from "./view";

export interface Line {
  label: string;
  x: number[];
  y: number[];
  /** Which colour of the palette. */
  colour: number;
  dashed?: boolean;
  /** What lies under a smoothed curve, the next line. */
  faint?: boolean;
}

export interface Mark {
  x: number;
  label: string;
  href: string;
  pinned: boolean;
}

export interface ChartProps {
  title: string;
  lines: Line[];
  bands: Band[];
  marks: Mark[];
  /** x is seconds since 1970 rather than steps. */
  time: boolean;
  log: boolean;
  view: View;
  height?: number;
}

function newMark(href: string): HTMLAnchorElement {
  const anchor = document.createElement("a");
  anchor.href = href;
  anchor.tabIndex = -1;
  // A click on a mark is no beginning of a selection.
  for (const kind of ["mousedown", "pointerdown"]) anchor.addEventListener(kind, (event) => event.stopPropagation());
  return anchor;
}

/** More marks than this in view become too many to hit; every n-th is shown then. */
const MOST_MARKS = 120;
export const COLOURS = 10;

/** There is no half of a step. */
const WHOLE_STEPS = Array.from({ length: 13 }, (_, power) => [1, 2, 5].map((one) => one * 10 ** power)).flat();

function cssColour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** More points than this in each column of the screen are drawn as a thin line: a thick one is slow to draw and shows no more. */
const DENSE = 1.5;

/** All there is to be seen: the curves, checkpoints that are older or newer than any report, and the beginning of the newest run. */
function extent({ lines, marks, bands }: ChartProps): Range {
  let from = Infinity;
  let to = -Infinity;
  for (const line of lines) {
    if (line.x.length === 0) continue;
    from = Math.min(from, line.x[0]!);
    to = Math.max(to, line.x[line.x.length - 1]!);
  }
  for (const mark of marks) {
    from = Math.min(from, mark.x);
    to = Math.max(to, mark.x);
  }
  for (const band of bands) to = Math.max(to, band.from);
  if (!(to >= from)) return { from: 0, to: 1 };
  return to > from ? { from, to } : { from: from - 1, to: to + 1 };
}

class Drawing {
  private readonly plot: uPlot;
  private readonly marksLayer: HTMLDivElement;
  private markElements: HTMLAnchorElement[] = [];
  private shown: Range = { from: 0, to: 1 };
  private frame = 0;
  private drag: { x: number; range: Range } | null = null;
  /** The mark under the pointer, or with the focus. */
  private pointed: HTMLAnchorElement | null = null;
  private everyMark = 1;
  /** y is drawn in units of ten to this power: uPlot has no marks for what is very large or very small. */
  private power = 0;
  private readonly observer: ResizeObserver;
  // Asking the style sheet makes the browser compute styles, which is too slow to do in each frame.
  private readonly colours = {
    run: cssColour("--band-run"),
    failed: cssColour("--band-failed"),
    pause: cssColour("--band-pause"),
    edge: cssColour("--band-edge"),
  };

  constructor(
    private readonly box: HTMLDivElement,
    private readonly readout: HTMLElement,
    private props: ChartProps,
  ) {
    this.power = powerOf(props.lines);
    this.plot = new uPlot(this.options(), this.data(), box);
    this.marksLayer = document.createElement("div");
    this.marksLayer.className = "marks";
    this.plot.over.append(this.marksLayer);
    this.plot.over.addEventListener("pointerdown", this.onDown, true);
    this.plot.over.addEventListener("wheel", this.onWheel, { passive: false });
    this.marksLayer.addEventListener("keydown", this.onMarkKey);
    for (const kind of ["pointerover", "focusin"] as const) this.marksLayer.addEventListener(kind, (event) => this.point(event.target));
    for (const kind of ["pointerout", "focusout"] as const) this.marksLayer.addEventListener(kind, () => this.point(null));
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(box);
    this.buildMarks();
    this.draw();
  }

  destroy(): void {
    cancelAnimationFrame(this.frame);
    this.observer.disconnect();
    this.plot.destroy();
  }

  update(props: ChartProps): void {
    const marks = props.marks !== this.props.marks || props.lines !== this.props.lines;
    if (props.lines !== this.props.lines) this.power = powerOf(props.lines);
    this.props = props;
    if (marks) this.buildMarks();
    this.draw();
  }

  /** Draws before the next frame, once however often it is asked to. */
  redraw = (): void => {
    if (this.frame) return;
    this.frame = requestAnimationFrame(() => {
      this.frame = 0;
      this.draw();
    });
  };

  range(): Range {
    return this.shown;
  }

  private draw(): void {
    this.shown = this.props.view.get() ?? extent(this.props);
    this.plot.batch(() => {
      const data = this.data();
      const dense = data[0].length > this.box.clientWidth * DENSE;
      this.props.lines.forEach((line, index) => {
        this.plot.series[index + 1]!.width = line.faint || dense ? 1 : 2;
      });
      this.plot.setData(data, false);
      this.plot.setScale("x", { min: this.shown.from, max: this.shown.to });
    });
  }

  private data(): uPlot.AlignedData {
    const { lines, log } = this.props;
    const columns = Math.max(200, Math.round(this.box.clientWidth || 600));
    const { from, to } = this.props.view.get() ?? extent(this.props);
    const thinned = lines.map((line) => {
      const points = thin(line.x, line.y, from, to, columns);
      // A logarithm has no place for zero and below.
      if (log) points.y = points.y.map((value) => (value !== null && value > 0 ? value : null));
      if (this.power !== 0) points.y = points.y.map((value) => (value === null ? null : value / 10 ** this.power));
      return points;
    });
    if (thinned.length === 0) return [[]];
    if (thinned.length === 1) return [thinned[0]!.x, thinned[0]!.y];
    return uPlot.join(thinned.map((points) => [points.x, points.y] as uPlot.AlignedData));
  }

  private options(): uPlot.Options {
    const { lines, time, log, height } = this.props;
    const grid = cssColour("--line");
    const text = cssColour("--text-soft");
    const axis: uPlot.Axis = {
      stroke: text,
      grid: { stroke: grid, width: 1 },
      ticks: { stroke: grid, width: 1 },
      font: "12px system-ui, sans-serif",
    };
    return {
      width: this.box.clientWidth || 600,
      height: height ?? 240,
      legend: { show: false },
      cursor: { drag: { x: true, y: false, setScale: false }, points: { size: 6 } },
      scales: { x: { time, auto: false }, y: log ? { distr: 3 } : { range: (_u, min, max) => padded(min, max) } },
      axes: [time ? { ...axis, values: (_u, ticks) => formatTicks(ticks) } : { ...axis, incrs: WHOLE_STEPS, space: (_u, _axis, _min, max) => roomForStep(max), size: 30, label: "steps", labelSize: 20, labelGap: 0, labelFont: axis.font! }, { ...axis, size: roomFor, values: (_u, ticks) => (log ? ticks.map((tick) => (tick === null ? "" : formatNumber(tick))) : formatMarks(ticks)).map((text) => inPower(text, this.power)) }],
      series: [
        {},
        ...lines.map((line): uPlot.Series => {
          const stroke = cssColour(`--series-${line.colour % COLOURS}`);
          return {
            label: line.label,
            stroke: line.faint ? `${stroke}55` : stroke,
            width: line.faint ? 1 : 2,
            dash: line.dashed ? [6, 4] : [],
            spanGaps: false,
            points: { show: line.x.length <= 60 && !line.faint, size: 5, fill: stroke },
          };
        }),
      ],
      hooks: {
        drawClear: [(plot) => this.drawBands(plot)],
        draw: [() => this.placeMarks()],
        setCursor: [(plot) => this.tell(plot)],
        setSelect: [(plot) => this.onSelect(plot)],
      },
    };
  }

  private drawBands(plot: uPlot): void {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    this.props.bands.forEach((band, index) => {
      const left = plot.valToPos(band.from, "x", true);
      const right = plot.valToPos(band.to, "x", true);
      // Every other run is shaded, so that neighbours are told apart; what failed and pauses always are.
      if (band.kind !== "run" || index % 2 === 1) {
        ctx.fillStyle = this.colours[band.kind];
        ctx.fillRect(left, bbox.top, Math.max(1, right - left), bbox.height);
      }
      if (index > 0 && band.kind !== "pause") {
        ctx.strokeStyle = this.colours.edge;
        ctx.setLineDash([3, 3]);
        ctx.beginPath();
        ctx.moveTo(left, bbox.top);
        ctx.lineTo(left, bbox.top + bbox.height);
        ctx.stroke();
      }
    });
    ctx.restore();
  }

  private buildMarks(): void {
    // A checkpoint keeps its element, and so the focus, when live data bring more of them.
    const before = new Map(this.markElements.map((element) => [element.getAttribute("href"), element]));
    this.markElements = this.props.marks.map((mark) => {
      const anchor = before.get(mark.href) ?? newMark(mark.href);
      before.delete(mark.href);
      anchor.className = mark.pinned ? "mark pinned" : "mark";
      anchor.title = mark.label;
      anchor.setAttribute("aria-label", mark.label);
      return anchor;
    });
  }

  private placeMarks(): void {
    const { marks, lines } = this.props;
    const { from, to } = this.shown;
    const inside = marks.map((mark, index) => ({ mark, index })).filter(({ mark }) => mark.x >= from && mark.x <= to);
    const every = Math.max(1, Math.ceil(inside.length / MOST_MARKS));
    const chosen = inside.filter(({ mark }, position) => mark.pinned || position % every === 0);
    if (every !== this.everyMark) {
      this.everyMark = every;
      this.tell(this.plot);
    }
    const curve = lines.find((line) => !line.faint);
    const elements = chosen.map(({ mark, index }) => {
      const element = this.markElements[index]!;
      const value = curve ? nearestValue(curve.x, curve.y, mark.x) : NaN;
      const usable = Number.isFinite(value) && (!this.props.log || value > 0);
      element.style.left = `${this.plot.valToPos(mark.x, "x")}px`;
      element.style.top = usable ? `${this.plot.valToPos(value / 10 ** this.power, "y")}px` : "100%";
      return element;
    });
    // All marks are one stop of the Tab key; arrow keys lead from one to the next.
    const stop = elements.find((element) => element === document.activeElement) ?? elements.find((element) => element.tabIndex === 0) ?? elements[0];
    for (const element of elements) element.tabIndex = element === stop ? 0 : -1;
    // Nothing is moved about in the page when only positions changed: a mark that has the focus keeps it.
    const children = this.marksLayer.children;
    if (elements.length === children.length && elements.every((element, i) => element === children[i])) return;
    const focused = elements.find((element) => element === document.activeElement);
    this.marksLayer.replaceChildren(...elements);
    focused?.focus({ preventScroll: true }); // who is moved about loses it
  }

  private onMarkKey = (event: globalThis.KeyboardEvent): void => {
    const marks = [...this.marksLayer.children] as HTMLAnchorElement[];
    const at = marks.indexOf(event.target as HTMLAnchorElement);
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: marks.length - 1 }[event.key];
    if (at < 0 || to === undefined) return;
    event.preventDefault();
    const next = marks[Math.max(0, Math.min(marks.length - 1, to))]!;
    marks[at]!.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };

  private point(target: EventTarget | null): void {
    this.pointed = target instanceof HTMLAnchorElement ? target : null;
    this.tell(this.plot);
  }

  private tell(plot: uPlot): void {
    if (this.pointed?.isConnected) {
      this.readout.textContent = this.pointed.getAttribute("aria-label");
      return;
    }
    const { left } = plot.cursor;
    if (left === undefined || left === null || left < 0) {
      this.readout.textContent = this.everyMark > 1 ? `One of ${this.everyMark} checkpoints has a mark here; zoom in to see all.` : "";
      return;
    }
    const x = plot.posToVal(left, "x");
    const parts: string[] = [];
    const nearest = plot.cursor.idx;
    const at = nearest === null || nearest === undefined ? x : (plot.data[0][nearest] ?? x);
    parts.push(this.props.time ? formatTime(at) : `step ${Math.round(at)}`);
    this.props.lines.forEach((line, index) => {
      if (line.faint || nearest === null || nearest === undefined) return;
      const value = fromPower(plot.data[index + 1]?.[nearest], this.power);
      if (value === undefined) return;
      // What was reported goes first: a smoothed value is nobody's.
      const reported = this.props.lines[index - 1]?.faint ? fromPower(plot.data[index]?.[nearest], this.power) : undefined;
      parts.push(reported !== undefined ? `${line.label} ${formatNumber(reported)} (smoothed ${formatNumber(value)})` : `${line.label} ${formatNumber(value)}`);
    });
    const band = this.props.bands.find((one) => x >= one.from && x <= one.to);
    if (band) parts.push(band.label);
    this.readout.textContent = parts.join(" · ");
  }

  private onSelect(plot: uPlot): void {
    const { left, width } = plot.select;
    if (width < 4) return;
    const range = { from: plot.posToVal(left, "x"), to: plot.posToVal(left + width, "x") };
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.props.view.set(range);
  }

  // With Shift (or the middle button) the curve is pulled along; without, a part of it is chosen.
  private onDown = (event: PointerEvent): void => {
    if (!event.shiftKey && event.button !== 1) return;
    event.preventDefault();
    event.stopPropagation();
    this.drag = { x: event.clientX, range: this.shown };
    this.plot.over.setPointerCapture(event.pointerId);
    this.plot.over.addEventListener("pointermove", this.onMove);
    this.plot.over.addEventListener("pointerup", this.onUp, { once: true });
  };

  private onMove = (event: PointerEvent): void => {
    if (!this.drag) return;
    const { from, to } = this.drag.range;
    const by = ((this.drag.x - event.clientX) / this.plot.over.clientWidth) * (to - from);
    this.props.view.set({ from: from + by, to: to + by });
  };

  private onUp = (): void => {
    this.drag = null;
    this.plot.over.removeEventListener("pointermove", this.onMove);
  };

  private onWheel = (event: WheelEvent): void => {
    // The wheel alone scrolls the page.
    if (!event.ctrlKey && !event.shiftKey) return;
    event.preventDefault();
    const rect = this.plot.over.getBoundingClientRect();
    const at = this.plot.posToVal(event.clientX - rect.left, "x");
    const amount = event.deltaY || event.deltaX;
    this.props.view.zoom(this.shown, amount > 0 ? 1.25 : 0.8, at);
  };

  private resize(): void {
    const width = this.box.clientWidth;
    if (width > 0 && width !== this.plot.width) {
      this.plot.setSize({ width, height: this.props.height ?? 240 });
      this.draw();
    }
  }
}

/** Of the y axis: the same for all charts, so that they line up, but for those with longer numbers. */
function roomFor(plot: uPlot, texts: string[] | null): number {
  if (!texts || texts.length === 0) return 64;
  plot.ctx.save();
  plot.ctx.font = `${12 * devicePixelRatio}px system-ui, sans-serif`;
  const widest = Math.max(...texts.map((text) => plot.ctx.measureText(text).width)) / devicePixelRatio;
  plot.ctx.restore();
  return Math.max(64, Math.ceil(widest) + 22);
}

/** Room above and below; a flat curve lies in the middle. */
function padded(min: number | null, max: number | null): [number, number] {
  if (min === null || max === null || !Number.isFinite(min) || !Number.isFinite(max)) return [0, 1];
  const room = max > min ? (max - min) * 0.08 : Math.abs(max) * 0.1 || 1;
  return [min - room, max + room];
}

/** For who cannot see the curves: where each begins and ends. */
function summary(props: ChartProps): string {
  const parts = props.lines
    .filter((line) => !line.faint && line.y.length > 0)
    .map((line) => {
      const last = line.y.length - 1;
      const where = props.time ? formatTime(line.x[last]!) : `step ${line.x[last]!}`;
      return `${line.label} from ${formatNumber(line.y[0]!)} to ${formatNumber(line.y[last]!)} at ${where}`;
    });
  return `${props.title}: ${parts.join("; ")}. Arrow keys move, plus and minus zoom, 0 shows all.`;
}

export function Chart(props: ChartProps): ReactNode {
  const box = useRef<HTMLDivElement>(null);
  const readout = useRef<HTMLSpanElement>(null);
  const drawing = useRef<Drawing | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const theme = useTheme();
  const title = useId();

  // What uPlot cannot change afterwards makes a new one.
  const shape = JSON.stringify([
    props.time, props.log, props.height ?? 0, theme,
    props.lines.map((line) => [line.label, line.colour, line.dashed, line.faint, line.x.length <= 60]),
  ]);
  useLayoutEffect(() => {
    const made = new Drawing(box.current!, readout.current!, latest.current);
    drawing.current = made;
    return () => {
      drawing.current = null;
      made.destroy();
    };
  }, [shape]);
  useLayoutEffect(() => drawing.current?.update(props), [props.lines, props.bands, props.marks]);
  useEffect(() => props.view.watch(() => drawing.current?.redraw()), [props.view]);

  const onKey = (event: KeyboardEvent): void => {
    const shown = drawing.current?.range();
    if (!shown || event.target !== event.currentTarget) return;
    const { view } = props;
    if (event.key === "ArrowLeft") view.pan(shown, -0.1);
    else if (event.key === "ArrowRight") view.pan(shown, 0.1);
    else if (event.key === "+" || event.key === "=") view.zoom(shown, 0.7);
    else if (event.key === "-") view.zoom(shown, 1.4);
    else if (event.key === "0" || event.key === "Escape") view.set(null);
    else return;
    event.preventDefault();
  };

  return (
    <figure className="chart" aria-labelledby={title}>
      <figcaption id={title}>{props.title}</figcaption>
      <div className="legend">
        {props.lines.filter((line) => !line.faint).map((line) => (
          <span key={line.label} className="legend-entry">
            <span className={`swatch colour-${line.colour % COLOURS}${line.dashed ? " dashed" : ""}`} aria-hidden="true" />
            {line.label}
          </span>
        ))}
      </div>
      <div
        className="plot"
        ref={box}
        tabIndex={0}
        role="group"
        aria-label={summary(props)}
        onKeyDown={onKey}
        onDoubleClick={() => props.view.set(null)}
      />
      <span className="readout" ref={readout} />
    </figure>
  );
}
