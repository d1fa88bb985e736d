// What is worth a look: pictures that are there twice, labels that are probably wrong, items least sure of, and answers
// that were drawn to be judged.

import { addresses, get, post } from "./api.js";
import { combobox, named } from "./combobox.js";
import { button, fill, h } from "./dom.js";
import { itemAddress, labelOf, thumbnail, tile } from "./pictures.js";
import { count, parts, percent, t } from "./texts.js";
import { mayWrite, outcome, written } from "./writing.js";

const LEAST = 18;

export const title = () => t("nav.review");

export async function show(main, route, context) {
  const body = h("div", null, h("p", { class: "soft" }, t("review.looking")));
  fill(main, h("h1", null, t("nav.review")), h("p", { class: "lead" }, t("review.lead")), body);
  const found = await get("/v1/review", { limit: 24 }, { signal: context.signal });
  const key = h("div");
  const draw = () => {
    fill(key, context.info.may_write ? null : mayWrite(context, () => null, draw));
    fill(body, key, section("answer", found, context), section("pair", found, context), section("label", found, context), section("duplicate", found, context), least(found));
  };
  draw();
}

function section(kind, found, context) {
  const questions = found.questions.filter((one) => one.kind === kind);
  if ((kind === "answer" || kind === "pair") && !questions.length) return null; // drawn only where somebody asked for it
  const total = found.found[kind] ?? questions.length;
  const none = kind === "label" && found.notes.length && !context.info.calibrated ? t("review.not-calibrated") : t(`review.${kind}.none`);
  return h("section", { class: "questions" }, h("h2", null, t(`review.${kind}`), total ? h("small", null, ` ${count(total)}`) : null),
    questions.length ? [h("p", { class: "soft" }, t(`review.${kind}.more`)), h("ul", { class: "cards" }, questions.map((one) => question(one, context)))]
      : h("p", { class: "soft" }, none));
}

function question(one, context) {
  const said = outcome();
  const face = (item) => h("a", { href: itemAddress(item.id), title: item.id }, thumbnail(item, 192, one.kind === "duplicate" ? "" : labelOf(item)), one.kind === "duplicate" ? h("span", { class: "caption" }, labelOf(item)) : null);
  const drawn = one.image ? h("span", { class: "frame" }, h("img", { src: one.image, alt: t("photo", { number: 1 }) })) : h("span", { class: "frame no-picture" }, t("no-picture"));
  const faces = one.kind === "answer" ? h("span", null, drawn) : [face(one.item), one.other ? face(one.other) : null];
  const may = one.kind === "answer" || one.kind === "pair" ? context.info.may_judge : context.info.may_write;
  return h("li", { class: `card ${one.kind}` }, h("div", { class: "faces-of" }, faces),
    h("div", { class: "asked" }, h("p", null, words(one)), may ? actions(one, said) : null, said));
}

const bold = (words) => h("b", { class: "label" }, words);

function words(one) {
  if (one.kind === "duplicate") {
    if (!one.options.length) return parts("review.twice", { label: bold(one.label ?? t("no-label")) });
    return parts("review.two-labels", { first: bold(one.label ?? t("no-label")), second: bold(one.other?.label ?? one.options[0].label) });
  }
  const best = one.options[0];
  if (one.kind === "pair") return [t("review.same-thing", { share: percent(best.probability) })];
  if (one.kind === "label") {
    const own = one.options.find((option) => option.label === one.label);
    return parts("review.mislabelled", { label: bold(one.label ?? t("no-label")), share: own ? percent(own.probability) : "—", other: bold(best.label), chance: percent(best.probability) });
  }
  return one.label === null ? [t("review.what-is-it")] : parts("review.was-it", { label: bold(one.label) });
}

function actions(one, said) {
  const keep = (label, id = one.item?.id) => written(said, () => post(addresses.label(id), { label }), (item) => t("labelled", { label: item.label }));
  const feed = (body) => written(said, () => post("/v1/feedback", { answer: one.answer, who: "page", ...body }), () => t("kept"));
  const say = one.kind === "answer" ? (label) => feed({ label }) : (label) => keep(label);
  const box = one.kind === "pair" ? null : combobox({ caption: t("it-is"), hidden: true, placeholder: t("it-is"), chosen: (label) => label && say(label) });
  const rest = box && h("details", { class: "plain" }, h("summary", null, t("something-else")), h("div", { class: "row" }, box.element, named(box, t("say-so"), say)));
  if (one.kind === "answer") {
    return h("div", null, h("div", { class: "row" }, one.label === null ? null : [button(t("right"), () => feed({ said: "right" })), button(t("wrong"), () => feed({ said: "wrong" }))]), rest);
  }
  if (one.kind === "pair") return h("div", { class: "row" }, button(t("review.same"), () => feed({ said: "right" })), button(t("review.different"), () => feed({ said: "wrong" })));
  if (one.kind === "duplicate") return h("div", { class: "row" }, twins(one, said), button(t("review.leave"), () => keep(one.label)));
  const others = one.options.filter((option) => option.label !== one.label);
  return h("div", null, h("div", { class: "row" }, one.label === null ? null : button(t("review.is-right", { label: one.label }), () => keep(one.label)),
    others.map((option) => button(t("review.rather", { label: option.label }), () => keep(option.label)))), rest);
}

/** One picture under two labels: either may be right for both. */
function twins(one, said) {
  if (!one.options.length || !one.other) return null;
  const both = (label) => written(said, async () => {
    for (const item of [one.item, one.other]) await post(addresses.label(item.id), { label });
    return { label };
  }, (made) => t("labelled", made));
  return [one.item.label, one.other.label].filter((label) => label !== null).map((label) => button(t("review.both", { label }), () => both(label)));
}

function least(found) {
  const shown = found.least_certain.slice(0, LEAST);
  if (!shown.length) return null;
  const what = found.by === "probability" ? (one) => t("doubt-of", { share: percent(one.doubt, true) }) : () => null;
  return h("section", null, h("h2", null, t("review.least")), h("p", { class: "soft" }, t("review.least.more")),
    h("ol", { class: "tiles" }, shown.map((one) => tile(one, h("span", { class: "share" }, what(one))))));
}
