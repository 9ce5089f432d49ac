// Lines over time, by uPlot (which the page loads before this module), with a tooltip that says local time and UTC.

import { el, utc, clock } from "./shared.js";

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const COLOURS = 8;
// Steps of an axis that counts.
const WHOLE = [0, 1, 2, 3, 4, 5, 6, 7, 8].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
const colour = (at) => css(`--line-${(at % COLOURS) + 1}`);

/// A chart in `host` that is redrawn by `draw`. `format` says a value with its unit.
export function chart(host, format, { stacked = false, whole = () => stacked } = {}) {
  let plot = null;
  let last = null;
  const tip = el("div", { class: "tip", hidden: true });
  const legend = el("ul", { class: "legend" });
  const area = el("div", { class: "plot" });
  const empty = el("p", { class: "nothing", hidden: true });
  host.replaceChildren(area, empty, legend);
  const hidden = new Set();

  function tooltip(u) {
    const { idx, left, top } = u.cursor;
    if (idx === null || idx === undefined || left < 0) {
      tip.hidden = true;
      return;
    }
    const date = new Date(u.data[0][idx] * 1000);
    const values = last.lines.map((line, at) => ({ name: line.name, at, value: line.values[idx] }))
      .filter(({ value, name }) => value !== null && value !== undefined && !hidden.has(name) && !(stacked && value === 0))
      .sort((one, other) => other.value - one.value)
      .slice(0, 10);
    tip.replaceChildren(
      el("b", {}, clock(date, true)), el("small", {}, utc(date)),
      ...(values.length ? values.map(({ name, at, value }) => {
        const dot = el("i", {});
        dot.style.background = colour(at);
        return el("div", {}, dot, el("span", {}, name), el("em", {}, format(value)));
      }) : [el("div", {}, el("span", {}, "nothing here"))]),
    );
    tip.hidden = false;
    const wide = u.over.clientWidth;
    const at = left + 16 + tip.offsetWidth > wide ? left - 16 - tip.offsetWidth : left + 16;
    tip.style.transform = `translate(${Math.max(0, at)}px, ${Math.max(0, Math.min(top - 20, u.over.clientHeight - tip.offsetHeight))}px)`;
  }

  function build() {
    plot?.destroy();
    plot = null;
    area.replaceChildren();
    const { times, lines } = last;
    const some = lines.some((line) => line.values.some((value) => value !== null && value !== undefined && (!stacked || value > 0)));
    empty.hidden = some;
    area.hidden = legend.hidden = !some;
    empty.textContent = last.empty;
    legend.replaceChildren(...lines.map((line, at) => {
      const dot = el("i", {});
      dot.style.background = colour(at);
      const button = el("button", { type: "button", "aria-pressed": String(!hidden.has(line.name)), title: line.note ?? line.name,
        onclick: () => { if (!hidden.delete(line.name)) hidden.add(line.name); build(); } }, dot, el("span", {}, line.name));
      return el("li", {}, button);
    }));
    if (!some) return;
    const grid = { stroke: css("--grid"), width: 1 };
    const axis = { stroke: css("--faint"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const shown = lines.map((line) => !hidden.has(line.name));
    // Stacked: each line is drawn on the sum of those below it.
    const sums = stacked ? times.map((_, at) => lines.map((line) => line.values[at] ?? 0)) : null;
    const data = lines.map((line, index) => (stacked
      ? sums.map((values) => values.slice(index).reduce((sum, value, at) => sum + (shown[index + at] ? value : 0), 0))
      : line.values.map((value) => value ?? null)));
    const bars = stacked ? window.uPlot.paths.bars({ size: [0.8, 40], gap: 1 }) : undefined;
    plot = new window.uPlot({
      width: area.clientWidth || 400,
      height: 190,
      padding: [12, 18, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6, show: !stacked } },
      scales: { x: { time: true }, y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 26, space: 80, values: (_, marks, __, ___, step) => marks.map((at) => mark(at, step)) },
        { ...axis, size: 64, space: 36, ...(whole() ? { incrs: WHOLE } : {}), values: (_, marks) => marks.map((value) => format(value)) },
      ],
      series: [{}, ...lines.map((line, at) => ({
        label: line.name,
        show: shown[at],
        stroke: colour(at),
        width: stacked ? 0 : 1.75,
        fill: stacked ? colour(at) : undefined,
        paths: bars,
        spanGaps: false,
        points: { show: !stacked, size: 4, fill: colour(at), filter: () => lonely(line.values) },
      }))],
      hooks: { setCursor: [tooltip] },
    }, [times, ...data], area);
    plot.over.append(tip);
  }

  new ResizeObserver(() => plot?.setSize({ width: area.clientWidth, height: 190 })).observe(area);
  return {
    draw(times, lines, words) {
      last = { times, lines, empty: words };
      build();
    },
    redraw: () => last && build(),
  };
}

/// A value without neighbours makes no line, so its point is shown.
function lonely(values) {
  const there = (value) => value !== null && value !== undefined;
  return [...values.keys()].filter((at) => there(values[at]) && !there(values[at - 1]) && !there(values[at + 1]));
}

function mark(at, step) {
  const date = new Date(at * 1000);
  if (step >= 86400) return date.toLocaleDateString([], { day: "numeric", month: "short" });
  const options = { hour: "2-digit", minute: "2-digit", hour12: false, ...(step < 60 ? { second: "2-digit" } : {}) };
  return date.toLocaleTimeString([], options);
}
