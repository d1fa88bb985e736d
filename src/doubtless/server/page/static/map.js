// The gallery as a map: near dots look alike to the model, large ones are doubtful. One label at a time can be picked
// out; the pointer or the arrow keys show a dot's picture, Enter opens it.

import { get } from "./api.js";
import { combobox } from "./combobox.js";
import { fill, h, s } from "./dom.js";
import { itemAddress, labelOf, thumbnail } from "./pictures.js";
import { count, number, percent, t } from "./texts.js";

const MARGIN = 22;
const SMALL = 3.2;
const LARGE = 10;
/** Width of a map on a laptop; dots are smaller on smaller ones. */
const USUAL = 900;
const REACH = 24;
const COLOURS = 8;
/** Labels up to which colours tell them apart, with a list of them beside the map. */
const LISTED = 24;

export const title = () => t("nav.map");

export async function show(main, route, { signal }) {
  const said = h("p", { class: "soft" }, t("map.drawing"));
  const plane = h("div", { class: "plane" });
  const tools = h("div", { class: "filters picking" });
  fill(main, h("h1", null, t("nav.map")), said);
  const found = await get("/v1/map", {}, { signal });
  if (found.points.length < 2) {
    fill(said, t("map.too-few"));
    return;
  }
  const shown = found.sampled < found.total ? t("map.some", { sampled: count(found.sampled), total: count(found.total) }) : t("map.all", { count: found.total });
  fill(said, `${shown} ${t("map.reading")} ${t(`map.by.${found.by}`)}`);
  main.append(tools, plane); // its size decides the drawing's
  const drawing = new Drawing(found, plane);
  fill(plane, drawing.svg, drawing.card);
  fill(tools, highlighting(drawing, route.parameters.get("label")));
}

/** A field, and for few labels one button each, that pick out one label. */
function highlighting(drawing, asked) {
  const labels = drawing.labels;
  const chips = labels.length > LISTED ? [] : labels.map((label) => {
    const chip = h("button", { type: "button", class: `chip s${drawing.colour(label)}`, "aria-pressed": "false" }, h("i", { "aria-hidden": "true" }), label ?? t("no-label"));
    chip.addEventListener("click", () => choose(chip.getAttribute("aria-pressed") === "true" ? undefined : label));
    return chip;
  });
  const all = h("button", { type: "button", class: "quiet" }, t("map.show-all"));
  const box = combobox({ caption: t("map.highlight"), value: asked ?? "", chosen: (label) => choose(label || undefined) });
  all.addEventListener("click", () => { box.input.value = ""; choose(undefined); });
  function choose(label) {
    drawing.highlight(label);
    chips.forEach((chip, place) => chip.setAttribute("aria-pressed", String(label !== undefined && labels[place] === label)));
  }
  if (asked) choose(asked);
  return [chips.length ? null : box.element, chips.length ? h("div", { class: "chips", role: "group", "aria-label": t("map.highlight") }, chips) : null, all];
}

class Drawing {
  constructor({ points, by }, plane) {
    this.by = by;
    this.plane = plane;
    this.labels = [...new Set(points.map((point) => point.label))].sort((one, other) => String(one).localeCompare(String(other)));
    this.places = new Map(this.labels.map((label, place) => [label, place]));
    this.points = placed(points, plane.clientWidth, plane.clientHeight);
    const smaller = Math.min(1.2, Math.max(0.6, plane.clientWidth / USUAL));
    const sizes = radii(points.map((point) => point.doubt ?? 0)).map((radius) => smaller * radius);
    this.dots = this.points.map((point, place) => this.dot(point, sizes[place]));
    // Small dots lie over large ones, or they could not be pointed at.
    const order = [...this.dots.keys()].sort((one, other) => sizes[other] - sizes[one]);
    this.svg = s("svg", { viewBox: `0 0 ${plane.clientWidth} ${plane.clientHeight}`, tabindex: "0", role: "application", "aria-roledescription": t("nav.map"), "aria-label": t("map.keys") },
      s("g", { class: "dots" }, order.map((place) => this.dots[place])));
    this.card = h("div", { class: "map-card", "aria-live": "polite" });
    this.card.hidden = true;
    this.at = -1;
    this.listen();
  }

  colour(label) {
    return this.places.get(label) % COLOURS;
  }

  dot(point, radius) {
    return s("circle", { class: `dot s${this.colour(point.label)}`, cx: point.left.toFixed(1), cy: point.top.toFixed(1), r: radius.toFixed(1) });
  }

  listen() {
    this.svg.addEventListener("pointermove", (event) => this.show(this.nearest(event)));
    this.svg.addEventListener("pointerleave", () => this.show(-1));
    this.svg.addEventListener("click", (event) => {
      const place = this.nearest(event);
      if (event.pointerType === "touch" && place !== this.touched) this.touched = place; // a first touch only looks
      else if (place >= 0) location.hash = itemAddress(this.points[place].id);
    });
    this.svg.addEventListener("keydown", (event) => this.key(event));
    this.svg.addEventListener("blur", () => this.show(-1));
  }

  key(event) {
    const ways = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
    if (event.key === "Escape") this.show(-1);
    else if (event.key === "Enter" && this.at >= 0) location.hash = itemAddress(this.points[this.at].id);
    else if (event.key in ways) this.show(this.at < 0 ? this.candidates()[0] : this.beside(this.at, ways[event.key]));
    else return;
    event.preventDefault();
  }

  /** Places of the dots that can be reached: all, or those of the label that is picked out. */
  candidates() {
    return [...this.points.keys()].filter((place) => this.chosen === undefined || this.points[place].label === this.chosen);
  }

  /** The nearest dot in a direction; the same one where there is none. */
  beside(from, [x, y]) {
    const here = this.points[from];
    let best = from;
    let least = Infinity;
    for (const place of this.candidates()) {
      const right = this.points[place].left - here.left;
      const down = this.points[place].top - here.top;
      const along = right * x + down * y;
      const aside = Math.abs(right * y) + Math.abs(down * x);
      const far = along + 2.5 * aside;
      if (place !== from && along > 0 && far < least) [best, least] = [place, far];
    }
    return best;
  }

  nearest(event) {
    const onto = this.svg.getScreenCTM().inverse();
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(onto);
    let best = -1;
    let least = REACH * onto.a;
    for (const place of this.candidates()) {
      const far = Math.hypot(this.points[place].left - x, this.points[place].top - y);
      if (far < least) [best, least] = [place, far];
    }
    return best;
  }

  show(place) {
    if (place === this.at) return;
    if (this.at >= 0) this.dots[this.at].classList.remove("chosen");
    this.at = place;
    this.card.hidden = place < 0;
    if (place < 0) return;
    const point = this.points[place];
    this.dots[place].classList.add("chosen");
    fill(this.card, thumbnail(point, 96), h("span", null, h("b", null, labelOf(point)), h("small", null, this.doubt(point)), h("small", null, point.id)));
    // Beside the dot, on the side where there is room.
    const box = this.plane.getBoundingClientRect();
    const at = new DOMPoint(point.left, point.top).matrixTransform(this.svg.getScreenCTM());
    const [x, y] = [at.x - box.left, at.y - box.top];
    this.card.style.setProperty("--x", `${x}px`);
    this.card.style.setProperty("--y", `${y}px`);
    this.card.className = `map-card ${x > box.width / 2 ? "to-left" : "to-right"} ${y > box.height / 2 ? "above" : "below-it"}`;
  }

  doubt(point) {
    if (point.doubt === null) return "";
    return this.by === "probability" ? t("doubt-of", { share: percent(point.doubt, true) }) : t("doubt-of", { share: number(point.doubt) });
  }

  /** Picks out one label; undefined: all of them again. */
  highlight(label) {
    this.chosen = label;
    this.show(-1);
    this.svg.classList.toggle("picked", label !== undefined);
    this.points.forEach((point, place) => this.dots[place].classList.toggle("on", point.label === label));
  }
}

/** Points in the drawing: as large as it allows, one scale for both directions, so that near stays near. */
function placed(points, width, height) {
  const [left, right] = [Math.min(...points.map((one) => one.x)), Math.max(...points.map((one) => one.x))];
  const [top, bottom] = [Math.min(...points.map((one) => one.y)), Math.max(...points.map((one) => one.y))];
  const scale = Math.min((width - 2 * MARGIN) / Math.max(right - left, 1e-9), (height - 2 * MARGIN) / Math.max(bottom - top, 1e-9));
  return points.map((point) => ({
    ...point, left: width / 2 + (point.x - (left + right) / 2) * scale, top: height / 2 + (point.y - (top + bottom) / 2) * scale,
  }));
}

/** By rank, so that one outlier does not make all others small. */
function radii(doubts) {
  const ordered = [...doubts].sort((one, other) => one - other);
  const rank = new Map(ordered.map((value, place) => [value, place / Math.max(1, ordered.length - 1)]));
  return doubts.map((value) => SMALL + (LARGE - SMALL) * rank.get(value) ** 2);
}
