// One item: its picture, what is known of it, its neighbours, and what would be said of it were it not there.

import { addresses, get, post } from "./api.js";
import { combobox, named } from "./combobox.js";
import { fill, h } from "./dom.js";
import { hits, labelOf, photo } from "./pictures.js";
import { parts, percent, t } from "./texts.js";
import { card, trouble } from "./verdict.js";
import { why } from "./why.js";
import { mayWrite, outcome, written } from "./writing.js";

export const title = (route) => t("item-named", { id: route.id });

export async function show(main, route, context) {
  const id = route.id;
  const body = h("div", { class: "told" }, h("section", { class: "verdict waiting" }, h("h2", { class: "sentence" }, t("looking"))));
  const below = h("div", { class: "below" });
  const name = h("h1", { class: "label" }, "\u00a0");
  const picture = h("div", { class: "photos" }, h("span", { class: "photo" }));
  fill(main, h("p", { class: "crumbs" }, h("a", { href: "#/gallery" }, t("nav.gallery")), " › ", h("span", null, id)), name,
    h("div", { class: "ask" }, h("div", { class: "shown" }, picture), body, below));
  let about;
  try {
    about = await get(addresses.about(id), { k: 10 }, { signal: context.signal });
  } catch (error) {
    if (error.status !== 404) throw error;
    fill(main, trouble(error));
    return;
  }
  fill(name, labelOf(about));
  fill(picture, about.has_image ? photo(addresses.image(id), labelOf(about)) : h("span", { class: "soft" }, t("no-picture")));
  fill(body, h("h2", { class: "over" }, t("asked-without")), about.answer ? card(about.answer, { heading: "h3" }) : h("p", null, t("nothing-to-ask")), agrees(about));
  const done = draw(below, about, context);
  done();
}

/** Does its own label agree with what the others say? */
function agrees(about) {
  if (about.label === null || about.own_probability === null || about.own_probability === undefined) return null;
  return h("p", { class: "own" }, parts("own-label", { label: h("b", { class: "label" }, about.label), share: percent(about.own_probability) }));
}

function draw(below, about, context) {
  const entries = Object.entries(about.metadata);
  const body = h("div");
  const again = () => fill(body, mayWrite(context, () => relabel(about), again));
  again();
  return () => fill(below,
    h("section", null, h("h2", null, t("neighbours")), about.neighbours.length ? hits(about.neighbours, 10) : h("p", { class: "soft" }, t("no-neighbours"))),
    about.answer ? why(about.answer) : null,
    h("details", { class: "adding" }, h("summary", null, t("relabel")), body),
    about.has_image ? h("p", { class: "row" }, h("a", { class: "button", href: `#/compare?first=${encodeURIComponent(about.id)}` }, t("compare-with"))) : null,
    h("section", null, h("h2", null, t("metadata")),
      h("dl", { class: "facts" }, fact(t("id"), about.id), entries.map(([key, value]) => fact(key, typeof value === "object" ? JSON.stringify(value) : String(value))))));
}

const fact = (key, value) => h("div", null, h("dt", null, key), h("dd", null, value));

function relabel(about) {
  const said = outcome();
  const box = combobox({ caption: t("label"), value: about.label ?? "" });
  const set = (label) => written(said, () => post(addresses.label(about.id), { label }), (item) => t("labelled", { label: item.label }));
  return [h("div", { class: "row" }, box.element, named(box, t("relabel.do"), set)), said];
}
