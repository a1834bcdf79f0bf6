import type { ReactNode } from "react";
import type { NumberOrText } from "../api/types";
import { formatNumber, toNumber } from "../model/format";

const WIDTH = 110;
const HEIGHT = 24;

/** A curve as small as a word; its numbers are in its label. */
export function Sparkline({ points, label }: { points: NumberOrText[][]; label: string }): ReactNode {
  const good = points
    .map(([x, y]) => [toNumber(x ?? null), toNumber(y ?? null)] as const)
    .filter(([x, y]) => Number.isFinite(x) && Number.isFinite(y));
  if (good.length === 0) return <span className="faint">–</span>;
  const xs = good.map(([x]) => x);
  const ys = good.map(([, y]) => y);
  const [x0, x1, y0, y1] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const place = ([x, y]: readonly [number, number]): string => {
    const px = x1 > x0 ? ((x - x0) / (x1 - x0)) * (WIDTH - 4) + 2 : WIDTH / 2;
    const py = y1 > y0 ? HEIGHT - 3 - ((y - y0) / (y1 - y0)) * (HEIGHT - 6) : HEIGHT / 2;
    return `${px.toFixed(1)},${py.toFixed(1)}`;
  };
  const last = ys[ys.length - 1]!;
  return (
    <svg className="sparkline" width={WIDTH} height={HEIGHT} role="img" aria-label={`${label}: ${formatNumber(ys[0]!)} to ${formatNumber(last)}`}>
      {good.length === 1 ? <circle cx={WIDTH / 2} cy={HEIGHT / 2} r={2} /> : <polyline points={good.map(place).join(" ")} />}
    </svg>
  );
}
