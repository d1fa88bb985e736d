// How well it knows: what is promised, whether that still holds, how often a probability came true, and what an answer
// costs in errors.

import { get } from "./api.js";
import { chart, thinned } from "./charts.js";
import { fill, h } from "./dom.js";
import { count, moment, percent, rate, t } from "./texts.js";

export const title = () => t("nav.known");

export async function show(main, route, { signal }) {
  const heading = h("h1", null, t("nav.known"));
  const standing = h("div", { class: "standing" }, statement("waiting", "…", t("looking"), ""), statement("waiting", "…", t("looking"), ""));
  fill(main, heading, standing);
  const [status, info] = await Promise.all([get("/v1/status", {}, { signal }), get("/v1/info", {}, { signal })]);
  if (!status.calibrated) {
    fill(standing, statement("abstain", "?", t("known.not-calibrated"), [t("known.not-calibrated.more"), " ", h("code", null, "doubtless calibrate")]));
    return;
  }
  fill(standing, promise(status.promise, info), holding(status, info));
  // Curves take longer, a gallery is asked about itself for them; their places are there at once.
  const figures = h("div", { class: "figures" }, coming(t("chart.reliability")), coming(t("chart.risk")));
  main.append(figures);
  const curves = await get("/v1/calibration", {}, { signal });
  fill(figures, reliability(curves.reliability), risk(curves.risk_coverage));
}

const coming = (caption) => h("figure", { class: "coming" }, h("figcaption", null, h("b", null, caption), h("span", null, t("looking"))));

function statement(tone, mark, heading, words, more = null) {
  return h("section", { class: `verdict ${tone}` }, h("span", { class: "sign", "aria-hidden": "true" }, mark),
    h("h2", { class: "sentence" }, heading), h("p", { class: "reason" }, words), more);
}

/** What is promised, in words and in four numbers. */
function promise(given, info) {
  if (given === null) {
    return info.withdrawn ? statement("not-in-gallery", "!", t("known.withdrawn"), t("known.withdrawn.more")) : statement("abstain", "?", t("known.nothing"), t("known.nothing.more"));
  }
  const values = { error: rate(given.met ? given.target_error : given.bound), confidence: percent(given.confidence), coverage: rate(given.coverage), unknown: rate(given.unknown) };
  const fact = (key, value) => h("div", null, h("dt", null, key), h("dd", null, value));
  const facts = h("dl", { class: "facts" }, fact(t("known.coverage"), values.coverage), fact(t("known.unknown"), values.unknown),
    fact(t("known.confidence"), values.confidence), fact(t("known.queries"), count(given.queries)));
  if (given.unknown === null) return ofPairs(given, values, h("dl", { class: "facts" }, [...facts.childNodes].filter((_, place) => place !== 1)));
  if (given.bound >= 1) return statement("abstain", "?", t("known.nothing"), t("known.too-little", { target: rate(given.target_error) }), facts);
  const words = given.met ? t("known.promise.more", values) : t("known.instead", { ...values, target: rate(given.target_error) });
  return statement(given.met ? "answer" : "abstain", given.met ? "✓" : "≈", t("known.promise", values), words, facts);
}

/** What people's answers for pairs of items show, where nothing has a label. */
function ofPairs(given, values, facts) {
  if (given.bound === null) return statement("abstain", "?", t("known.nothing"), t("known.pairs.none"));
  return statement(given.met ? "answer" : "abstain", given.met ? "✓" : "≈", t("known.promise", values), t("known.pairs", values), facts);
}

/** Whether it still holds: by what people said of answers, and by what was asked lately. */
function holding({ watch, drift }, info) {
  const lines = [];
  let [tone, mark, heading] = ["waiting", "…", t("watch.unknown")];
  if (watch.standing === "holds") [tone, mark, heading] = ["answer", "✓", t("watch.holds")];
  if (watch.standing === "no longer holds") [tone, mark, heading] = ["not-in-gallery", "!", t("watch.broken")];
  if (watch.standing === null) heading = t("watch.nothing");
  if (watch.judged) lines.push(t("watch.judged", { judged: count(watch.judged), wrong: count(watch.wrong) }));
  else lines.push(t("watch.not-judged"));
  if (watch.since) lines.push(t("watch.since", { since: moment(watch.since) }));
  if (watch.more_needed) lines.push(t("watch.more-needed", { count: watch.more_needed }));
  if (watch.waiting) lines.push(t("watch.waiting", { count: watch.waiting }));
  if (drift?.alarm) {
    [tone, mark, heading] = ["not-in-gallery", "!", t("drift.alarm")];
    lines.push(t("drift.alarm.more", { queries: count(drift.queries) }));
  } else if (drift) lines.push(t(drift.queries ? "drift.none" : "drift.too-few", { queries: count(drift.queries) }));
  if (info.withdrawn) lines.push(t("known.withdrawn"));
  return h("section", { class: `verdict ${tone}` }, h("span", { class: "sign", "aria-hidden": "true" }, mark), h("h2", { class: "sentence" }, heading),
    h("ul", { class: "reason lines" }, lines.map((line) => h("li", null, line))));
}

function reliability(found) {
  if (!found) return null;
  const points = found.points.map((one) => [one.probability, one.right]);
  return chart({
    caption: t("chart.reliability"), note: t("chart.reliability.note"), across: t("chart.said"), up: t("chart.true"),
    lines: [{ kind: "ideal", points: [[0, 0], [1, 1]] }, { kind: "own", points, marks: true }],
    columns: { words: t("chart.table"), names: [t("chart.said"), t("chart.true"), t("chart.share")] },
    rows: found.points.map((one) => [rate(one.probability), rate(one.right), rate(one.share)]),
  });
}

function risk(found) {
  if (!found) return null;
  const points = found.points.map((one) => [one.coverage, one.wrong]);
  const highest = Math.max(0.05, Math.ceil(20 * Math.max(...points.map((one) => one[1]))) / 20);
  const at = found.promised && found.promised.wrong !== null ? [[found.promised.coverage, found.promised.wrong]] : [];
  return chart({
    caption: t("chart.risk"), note: t(at.length ? "chart.risk.note-at" : "chart.risk.note"), across: t("chart.answered"), up: t("chart.wrong"), highest,
    lines: [{ kind: "own", points: thinned(points) }], marks: at,
    columns: { words: t("chart.table"), names: [t("chart.answered"), t("chart.wrong")] },
    rows: thinned(points, 12).map(([x, y]) => [rate(x), rate(y)]),
  });
}
