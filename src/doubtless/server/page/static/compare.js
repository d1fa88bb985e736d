// Two pictures: do they show the same thing?

import { addresses, picture, postForm } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { dropField, buttons, fitting, preview, takeAnywhere } from "./picker.js";
import { number, percent, rate, t } from "./texts.js";
import { trouble } from "./verdict.js";

export const title = () => t("nav.compare");

export async function show(main, route, context) {
  const { signal, info } = context;
  const files = [null, null];
  const sides = [h("div", { class: "side" }), h("div", { class: "side" })];
  const said = h("div", { class: "told" }, invitation());
  let asked = 0;

  function draw(place) {
    const words = t(place ? "second-photo" : "first-photo");
    const chosen = (found) => take(found, place);
    fill(sides[place], h("h2", { class: "over" }, words), files[place]
      ? [preview(files[place], signal, words), buttons(chosen, { several: false, words: t("other-photo"), main: false })]
      : dropField(chosen, { several: false, invitation: t("drop-one") }));
  }
  function take(found, place) {
    for (const [offset, file] of found.slice(0, 2).entries()) files[(place + offset) % 2] = file;
    sides.forEach((_, side) => draw(side));
    if (files[0] && files[1]) compare();
  }
  async function compare() {
    asked += 1;
    const mine = asked;
    fill(said, h("section", { class: "verdict waiting" }, sign("…"), h("h2", { class: "sentence" }, t("looking")), h("p", { class: "reason" }, t("looking-more"))));
    try {
      const [first, second] = await Promise.all(files.map((file) => fitting(file, info.limits)));
      const found = await postForm("/v1/compare", {}, [["first", first], ["second", second]], { signal });
      if (mine !== asked) return;
      fill(said, verdict(found), why(found));
      announce(said.querySelector(".sentence").textContent);
    } catch (error) {
      if (error.status === undefined) throw error;
      if (mine === asked) fill(said, trouble(error, "h2"));
    }
  }

  sides.forEach((_, place) => draw(place));
  fill(main, h("h1", null, t("compare.title")), h("div", { class: "compare" }, sides[0], sides[1], said));
  takeAnywhere((found, event) => {
    const over = sides.findIndex((side) => side.contains(event.target));
    take(found, over >= 0 ? over : files[0] && !files[1] ? 1 : 0);
  }, signal);
  const first = route.parameters.get("first");
  if (first) take([await picture(addresses.image(first), { signal })], 0);
}

const sign = (mark) => h("span", { class: "sign", "aria-hidden": "true" }, mark);

const invitation = () => h("section", { class: "verdict waiting" }, sign("="), h("h2", { class: "sentence" }, t("compare.invite")), h("p", { class: "reason" }, t("compare.invite.more")));

const TONES = { same: ["answer", "="], different: ["not-in-gallery", "≠"], "cannot-tell": ["abstain", "?"] };

function verdict(found) {
  const [tone, mark] = TONES[found.decision];
  const share = found.probability === null ? null : found.decision === "different" ? 1 - found.probability : found.probability;
  const sure = share === null || found.decision === "cannot-tell" ? t(`compare.${found.decision}`) : t(`compare.${found.decision}.sure`, { sure: percent(share) });
  return h("section", { class: `verdict ${tone}`, "aria-label": t("verdict") }, sign(mark), h("h2", { class: "sentence" }, sure), h("p", { class: "reason" }, reason(found)));
}

/** What is promised of such decisions, or what is missing for a promise. */
function reason({ reason_code: code, reason_values: values, decision }) {
  const said = (key) => (values[key] === null || values[key] === undefined ? "—" : rate(values[key]));
  if (code === "promised") return t(`compare.promised.${decision}`, { bound: said("bound"), confidence: said("confidence") });
  if (code === "not-enough") return t(values.needed === null || values.needed === undefined ? "compare.nothing-promised" : "compare.not-enough", { needed: said("needed"), error: said("target_error") });
  return t(`compare.${code}`, { error: said("target_error") });
}

function why(found) {
  const fact = (key, value) => h("div", null, h("dt", null, key), h("dd", null, value));
  const doubts = found.uncertainty;
  return h("details", { class: "why" }, h("summary", null, t("why")), h("dl", { class: "facts" },
    fact(t("compare.probability"), found.probability === null ? t("not-measured") : percent(found.probability)),
    fact(t("compare.prior"), percent(found.prior)), fact(t("compare.cosine"), number(found.cosine)),
    fact(t("compare.uncertainty"), doubts === null ? t("not-measured") : doubts.map((one) => (one === null ? "—" : number(one))).join(" · "))));
}
