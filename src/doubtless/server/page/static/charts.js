// Two small charts in SVG, with their numbers as a table for those who do not see them.

import { h, s } from "./dom.js";
import { rate } from "./texts.js";

const WIDTH = 460;
const HEIGHT = 300;
const LEFT = 66;
const BOTTOM = 44;
const TOP = 12;
const RIGHT = 22;

/** A curve over shares of both axes. `lines`: [{kind, points: [[x, y]], marks}]; `highest`: where the y axis ends. */
export function chart({ caption, note, across, up, lines, highest = 1, columns, rows, marks = [] }) {
  const x = (value) => LEFT + value * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + (1 - value / highest) * (HEIGHT - TOP - BOTTOM);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const drawing = s("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${caption}. ${note}` },
    ticks.map((at) => [
      s("line", { class: "gridline", x1: x(at), x2: x(at), y1: TOP, y2: HEIGHT - BOTTOM }),
      s("line", { class: "gridline", x1: LEFT, x2: WIDTH - RIGHT, y1: y(at * highest), y2: y(at * highest) }),
      s("text", { x: x(at), y: HEIGHT - BOTTOM + 17, "text-anchor": "middle" }, rate(at)),
      s("text", { x: LEFT - 8, y: y(at * highest) + 4, "text-anchor": "end" }, rate(at * highest)),
    ]),
    lines.map((line) => [
      s("polyline", { class: `curve ${line.kind}`, points: line.points.map(([one, other]) => `${x(one).toFixed(1)},${y(Math.min(other, highest)).toFixed(1)}`).join(" ") }),
      line.marks ? line.points.map(([one, other]) => s("circle", { class: `mark ${line.kind}`, cx: x(one).toFixed(1), cy: y(other).toFixed(1), r: 4 })) : null,
    ]),
    marks.map(([one, other]) => s("circle", { class: "mark at", cx: x(one).toFixed(1), cy: y(Math.min(other, highest)).toFixed(1), r: 6 })),
    s("text", { class: "axis-name", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, across),
    s("text", { class: "axis-name", x: -(TOP + HEIGHT - BOTTOM) / 2, y: 12, "text-anchor": "middle", transform: "rotate(-90)" }, up));
  return h("figure", null, h("figcaption", null, h("b", null, caption), h("span", null, note)), drawing, table(columns, rows));
}

/** The same numbers, on demand. */
function table({ words, names }, rows) {
  return h("details", { class: "plain" }, h("summary", null, words), h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": words },
    h("table", null, h("thead", null, h("tr", null, names.map((name) => h("th", { scope: "col" }, name)))),
      h("tbody", null, rows.map((row) => h("tr", null, row.map((cell) => h("td", null, cell))))))));
}

/** At most `most` of many points, the first and the last among them: a page needs no more than it has pixels. */
export function thinned(points, most = 200) {
  if (points.length <= most) return points;
  const step = (points.length - 1) / (most - 1);
  return Array.from({ length: most }, (_, place) => points[Math.round(place * step)]);
}
