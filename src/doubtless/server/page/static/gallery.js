// What is in the gallery: searched by words, by label, by metadata, a page at a time. The address holds what is asked
// for, so that a page can be kept and gone back to.

import { get } from "./api.js";
import { combobox } from "./combobox.js";
import { announce, fill, h } from "./dom.js";
import { tile } from "./pictures.js";
import { count, t } from "./texts.js";

const PAGE = 48;
/** Where pages that were seen begin: an address holds its own beginning only. */
const begins = new Map();

export const title = () => t("nav.gallery");

export async function show(main, route, { signal, info }) {
  const asked = route.parameters;
  const grid = h("ul", { class: "tiles many" }, Array.from({ length: Math.min(PAGE, info.items) }, placeholder));
  const number = h("p", { class: "soft", id: "counted" }, "\u00a0");
  const pager = h("nav", { class: "pager", "aria-label": t("pages") });
  fill(main, h("h1", null, t("nav.gallery")), filters(asked), number, grid, pager);
  const page = Number(asked.get("page") ?? 1);
  const place = (number) => address(asked, { after: "", page: number });
  begins.set(place(page), asked.get("after") ?? "");
  const before = begins.has(place(page - 1)) && page > 2 ? { after: begins.get(place(page - 1)), page: page - 1 } : { after: "", page: "" };
  const found = await get("/v1/items", {
    label: asked.get("label"), text: asked.get("text"), where: where(asked), limit: PAGE, after: asked.get("after"),
  }, { signal });
  const from = (page - 1) * PAGE;
  const shown = found.items.length ? t("shown", { from: count(from + 1), to: count(from + found.items.length), total: count(found.total) }) : t("nothing-found");
  fill(number, shown);
  fill(grid, found.items.map((one) => tile(one, metadata(one))));
  fill(pager, page > 1 ? h("a", { class: "button", href: address(asked, before) }, t("previous")) : null,
    found.next ? h("a", { class: "button", href: address(asked, { after: found.next, page: page + 1 }) }, t("next")) : null);
  announce(shown);
}

const placeholder = () => h("li", { class: "tile", "aria-hidden": "true" }, h("span", { class: "frame" }), h("span", { class: "caption" }, "\u00a0"));

function metadata(item) {
  const said = Object.entries(item.metadata).slice(0, 2).map(([key, value]) => `${key}: ${typeof value === "object" ? JSON.stringify(value) : value}`);
  return said.length ? h("span", { class: "more" }, said.join(" · ")) : null;
}

/** A filter on metadata: what is written may be meant as a word, a number or yes and no. */
function where(asked) {
  const key = asked.get("key");
  const value = asked.get("value");
  if (!key || !value) return null;
  const meant = [value];
  if (value.trim() !== "" && Number.isFinite(Number(value))) meant.push(Number(value));
  if (value === "true" || value === "false") meant.push(value === "true");
  return JSON.stringify({ [key]: meant });
}

/** The same address with other values; empty ones are left out. */
function address(asked, values) {
  const made = new URLSearchParams();
  for (const [name, value] of Object.entries({ ...Object.fromEntries(asked), ...values })) if (value) made.set(name, value);
  const query = made.toString();
  return query ? `#/gallery?${query}` : "#/gallery";
}

function filters(asked) {
  const go = (values) => {
    const next = address(asked, { ...values, after: "", page: "" });
    if (next !== location.hash) location.hash = next;
  };
  const field = (name, words, kind = "text") => {
    const input = h("input", { type: kind, value: asked.get(name) ?? "", name });
    input.addEventListener("change", () => { if (input.isConnected) go({ [name]: input.value.trim() }); });
    return h("label", { class: "field" }, h("span", null, words), input);
  };
  const text = field("text", t("search"), "search");
  const input = text.querySelector("input");
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") go({ text: input.value.trim() }); });
  input.addEventListener("search", () => go({ text: input.value.trim() }));
  const label = combobox({ caption: t("label"), value: asked.get("label") ?? "", chosen: (one) => go({ label: one }) });
  // A field that is taken away while it has the focus changes, too: nobody meant that.
  label.input.addEventListener("change", () => { if (label.input.isConnected) go({ label: label.value() }); });
  const bare = ["text", "label", "key", "value"].every((name) => !asked.get(name));
  return h("div", { class: "filters", role: "search" }, text, label.element,
    h("details", { class: "plain", open: Boolean(asked.get("key")) }, h("summary", null, t("by-metadata")),
      h("div", { class: "row" }, field("key", t("metadata-field")), field("value", t("metadata-value")))),
    bare ? null : h("a", { class: "button quiet", href: "#/gallery" }, t("show-all")));
}
