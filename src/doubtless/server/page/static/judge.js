// Right, wrong, or what it is: kept as feedback. And the photo itself, added to the gallery under a label.

import { post, postForm } from "./api.js";
import { combobox, named } from "./combobox.js";
import { button, fill, h } from "./dom.js";
import { itemAddress } from "./pictures.js";
import { parts, t } from "./texts.js";
import { mayWrite, outcome, written } from "./writing.js";

/** Below a verdict: what a person says of it, and the photo's way into the gallery. */
export function judging(answer, photo, context) {
  return h("div", { class: "judging" }, feedback(answer, context), adding(answer, photo, context));
}

function feedback(answer, context) {
  if (!context.info.may_judge || answer.id === null) return null;
  const said = outcome();
  const say = (body) => written(said, () => post("/v1/feedback", { answer: answer.id, who: "page", ...body }),
    (entry) => (entry.truth === null ? t("kept") : t("kept-as", { label: entry.truth })));
  const label = combobox({ caption: t("it-is"), hidden: true, placeholder: t("it-is"), chosen: (one) => one && say({ label: one }) });
  // Where nothing was answered nothing can be right: what it lies between can be chosen instead.
  const labels = answer.decision === "abstain" ? (answer.between ?? []).map((one) => one.label).filter((one) => one !== null) : [];
  const question = t(labels.length ? "what-is-it" : "is-it-right");
  const choices = labels.length ? labels.map((one) => button(one, () => say({ label: one })))
    : [button(t("right"), () => say({ said: "right" })), button(t("wrong"), () => say({ said: "wrong" }))];
  return h("section", { class: "feedback", "aria-label": question },
    h("div", { class: "row" }, h("span", { class: "asking" }, question), choices,
      label.element, named(label, t("say-so"), (one) => say({ label: one }))), said);
}

function adding(answer, photo, context) {
  const body = h("div");
  const draw = () => fill(body, mayWrite(context, () => controls(answer, photo), draw));
  draw();
  return h("details", { class: "adding" }, h("summary", null, t("add")), body);
}

function controls(answer, photo) {
  const said = outcome();
  const label = combobox({ caption: t("label"), value: answer.label ?? "" });
  const add = (one) => written(said, () => postForm("/v1/items", { label: one }, [["image", photo]]),
    (item) => parts("added", { label: one, item: h("a", { href: itemAddress(item.id) }, t("look-at-it")) }));
  return [h("p", { class: "soft" }, t("add.more")), h("div", { class: "row" }, label.element, named(label, t("add.do"), add)), said];
}
