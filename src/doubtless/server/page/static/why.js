// Where the doubt comes from: what was measured, in words, and what was not, said to be so.

import { h } from "./dom.js";
import { allOf, number, percent, t } from "./texts.js";

const PARTS = ["image", "model", "gallery", "distance", "novelty"];

function level(value) {
  if (value < 0.1) return t("level.hardly");
  if (value < 0.35) return t("level.some");
  return value < 0.65 ? t("level.much") : t("level.very-much");
}

function row(heading, what, value, kind = "") {
  const measured = value !== undefined && value !== null;
  const width = `${(100 * Math.min(1, Math.max(0, value ?? 0))).toFixed(1)}%`;
  return h("div", { class: `part ${kind}${measured ? "" : " missing"}` },
    h("dt", null, heading, h("small", null, what)),
    h("dd", null, measured
      ? [h("span", { class: "bar", "aria-hidden": "true" }, h("i", { css: { "--share": width } })),
        h("span", null, `${level(value)} `, h("small", null, number(value)))]
      : t("not-measured")));
}

/** The rows of an answer's doubt; null before calibration. */
export function doubt(answer) {
  if (answer.doubt === null) return h("p", { class: "soft" }, t("why.not-calibrated"));
  const unmeasured = answer.unmeasured ?? PARTS.filter((part) => !(part in answer.parts));
  const shown = PARTS.filter((part) => part in answer.parts || unmeasured.includes(part));
  const measured = Object.keys(answer.parts).length > 0;
  return h("dl", { class: "doubt" },
    measured ? shown.map((part) => row(t(`part.${part}`), t(`part.${part}.what`), answer.parts[part])) : null,
    row(t("part.all"), t("part.all.what"), answer.doubt, "total"));
}

/** The covering set in a sentence. */
function covering(answer, confidence) {
  if (answer.covering_set === null || answer.doubt === null) return null;
  const names = Object.fromEntries(answer.hits.map((hit) => [hit.id, hit.label ?? hit.id]));
  const labels = [...new Set(answer.covering_set.map((one) => (answer.labels.length ? one : names[one] ?? one)))];
  if (!labels.length) return null;
  return h("p", null, t("covering", { confidence: percent(confidence), count: labels.length, labels: allOf(labels) }));
}

/** Why on demand. */
export function why(answer, confidence = 0.9) {
  const largest = answer.reason_values?.largest;
  return h("details", { class: "why" }, h("summary", null, t("why")),
    largest ? h("p", null, t(`because.${largest}`)) : null,
    doubt(answer), covering(answer, confidence));
}
