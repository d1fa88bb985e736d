// What was decided, as one would say it over a counter, and what it lies between. Everything is read off the answer's
// own numbers, so words and bars cannot disagree.

import { h } from "./dom.js";
import { anyOfNodes, number, parts, percent, rate, t } from "./texts.js";

/** Characters from which a sentence is set smaller: long labels must leave room for what they lie between. */
const LONG = 60;
const VERY_LONG = 130;

const SIGNS = { answer: "✓", abstain: "?", "not-in-gallery": "∅", bare: "≈", error: "!" };

export function name(hit) {
  return hit.label ?? t("item-named", { id: hit.id });
}

/** What it lies between, the most probable first; `label` null is none of the labels found. */
function between(answer) {
  return answer.between ?? [];
}

export const called = (label) => label ?? t("nothing-we-have");

function strong(words) {
  return h("b", { class: "label" }, words);
}

/** The sentence as nodes, and the tone in which it is said. */
export function sentence(answer) {
  const first = answer.hits[0];
  if (!first) return { tone: "abstain", nodes: [t("verdict.empty")] };
  if (answer.decision === "not-in-gallery") return { tone: "not-in-gallery", nodes: [t("verdict.absent")] };
  if (answer.decision === "abstain") return { tone: "abstain", nodes: unsure(answer) };
  if (answer.probability === null) {
    return { tone: "bare", nodes: parts("verdict.nearest", { label: strong(name(first)) }) };
  }
  const label = strong(answer.label ?? name(first));
  return { tone: "answer", nodes: parts("verdict.answer", { label, sure: percent(answer.probability) }) };
}

function unsure(answer) {
  const choices = between(answer);
  if (choices.length > 1) {
    const nodes = anyOfNodes(choices.map((one) => (one.label === null ? called(null) : strong(one.label))));
    return parts("verdict.between", { choices: h("span", null, nodes) });
  }
  if (answer.doubt === null) return [t("verdict.nothing-said")];
  const likely = choices[0]?.label ?? name(answer.hits[0]);
  return parts("verdict.perhaps", { label: strong(likely) });
}

/** Bars for the two or three that are in question: of an answer what comes next, so that "97 %" has a neighbour. */
function rows(answer) {
  if (!answer.labels.length) return [];
  const none = answer.none === null ? [] : [{ label: null, probability: answer.none }];
  const all = [...answer.labels.slice(0, 3), ...none].sort((one, other) => other.probability - one.probability);
  return all.slice(0, Math.max(2, Math.min(3, between(answer).length || 3)));
}

export function bars(answer) {
  const shown = rows(answer);
  if (!shown.length) return null;
  return h("ul", { class: "bars", "aria-label": t("bars") }, shown.map((one) => bar(one.label ?? t("bar.none"), one.probability)));
}

/** A name, a bar and its percent: the name has a line of its own, so that no length of it can touch the number. */
export function bar(words, share, shown = percent(share, true)) {
  const width = `${(100 * Math.min(1, Math.max(0, share))).toFixed(1)}%`;
  return h("li", null, h("span", { class: "bar-name" }, words), h("span", { class: "bar-share" }, shown),
    h("span", { class: "bar", "aria-hidden": "true" }, h("i", { css: { "--share": width } })));
}

/** Why, in one sentence: by the code that the answer carries, in the visitor's language. */
export function reason(answer) {
  const { reason_code: code, reason_values: values = {} } = answer;
  const share = (value) => (value === null || value === undefined ? "" : percent(value));
  const asked = { label: values.label ?? "", probability: share(values.probability), none: share(values.none) };
  if (code === "between" || code === "too-unsure") {
    if (values.least === null || values.promised === null) return t("reason.no-promise");
    return t("reason.not-enough", { least: percent(values.least), promised: rate(values.promised), best: share(answer.probability) });
  }
  if (code === "absent-by-test") return t("reason.absent-by-test", { share: rate(values.p_value) });
  if (code === "doubtful" || code === "nothing-promised") return t(`reason.${code}`, { error: rate(values.target_error) });
  if (code === "absent") return t("reason.absent", asked);
  if (code === "first-hit") return t("reason.first-hit", asked);
  if (code === "answer") return t(answer.none === null ? "reason.first-hit" : "reason.answer", asked);
  return t(`reason.${code}`);
}

function warning({ code, values }) {
  const counts = ["new", "gone", "then", "now", "queries", "hits", "answered"];
  const shares = ["target_error", "bound", "above", "confidence"];
  const said = Object.fromEntries(Object.entries(values).map(([key, value]) => {
    if (value === null || value === undefined) return [key, "—"];
    if (counts.includes(key)) return [key, number(value, 0)];
    return [key, shares.includes(key) ? rate(value) : value];
  }));
  if (code === "target-not-met" && values.bound === null) return t("warning.target-not-met-at-all", said);
  return t(`warning.${code}`, said);
}

/** What this answer cannot promise, behind one line: it must not push the verdict away. */
export function warnings(answer) {
  const codes = answer.warning_codes ?? [];
  if (!codes.length) return null;
  return h("details", { class: "warnings" },
    h("summary", null, t("warnings", { count: codes.length })),
    h("ul", null, codes.map((one) => h("li", null, warning(one)))));
}

/** The card: sign, sentence, reason, bars. Its `words` are what is read aloud. */
export function card(answer, options = {}) {
  const { tone, nodes } = sentence(answer);
  const heading = h(options.heading ?? "h1", { class: "sentence" }, nodes);
  const length = heading.textContent.length;
  if (length > LONG) heading.classList.add(length > VERY_LONG ? "very-long" : "long");
  return h("section", { class: `verdict ${tone}`, "aria-label": t("verdict") },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS[tone]),
    heading, h("p", { class: "reason" }, reason(answer)), bars(answer), options.without ? null : warnings(answer));
}

/** What stands there while the answer is on its way, as tall as most answers are. */
export function waiting() {
  return h("section", { class: "verdict waiting", "aria-busy": "true", "aria-label": t("verdict") },
    h("span", { class: "sign", "aria-hidden": "true" }, "…"), h("h1", { class: "sentence" }, t("looking")),
    h("p", { class: "reason" }, t("looking-more")));
}

/** What went wrong: ours in the visitor's language, the server's own sentence below it. */
export function trouble(error, heading = "h1") {
  const known = [0, 401, 403, 404, 408, 413, 415, 422, 503].includes(error.status);
  const words = known ? t(`error.${error.status}`) : t("error.other");
  return h("section", { class: "verdict error", role: "alert" },
    h("span", { class: "sign", "aria-hidden": "true" }, SIGNS.error), h(heading, { class: "sentence" }, words),
    error.message ? h("p", { class: "reason", lang: "en" }, error.message) : null);
}
