// How well it knows: what is promised, whether that still holds, how often a probability came true, and what an answer
// costs in errors.

import { get } from "./api.js";
import { chart, thinned } from "./charts.js";
import { fill, h } from "./dom.js";
import { count, moment, percent, rate, t } from "./texts.js";

export const title = () => t("nav.known");

export async function show(main, route, { signal }) {
  fill(main, h("h1", null, t("nav.known")), h("p", { class: "soft" }, t("looking")));
  const [status, curves, info] = await Promise.all([
    get("/v1/status", {}, { signal }), get("/v1/calibration", {}, { signal }), get("/v1/info", {}, { signal })]);
  if (!status.calibrated) {
    fill(main, h("h1", null, t("nav.known")), h("section", { class: "verdict abstain" }, h("span", { class: "sign", "aria-hidden": "true" }, "?"),
      h("h2", { class: "sentence" }, t("known.not-calibrated")), h("p", { class: "reason" }, t("known.not-calibrated.more"), " ", h("code", null, "doubtless calibrate"))));
    return;
  }
  fill(main, h("h1", null, t("nav.known")), h("div", { class: "standing" }, promise(status.promise, info), holding(status, info)),
    h("div", { class: "figures" }, reliability(curves), risk(curves)));
}

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
  if (given.bound >= 1) return statement("abstain", "?", t("known.nothing"), t("known.too-little", { target: rate(given.target_error) }), facts);
  const words = given.met ? t("known.promise.more", values) : t("known.instead", { ...values, target: rate(given.target_error) });
  return statement(given.met ? "answer" : "abstain", given.met ? "✓" : "≈", t("known.promise", values), words, facts);
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
  } else if (drift) lines.push(t(drift.queries ? "drift.none" : "drift.nothing-asked", { queries: count(drift.queries) }));
  if (info.withdrawn) lines.push(t("known.withdrawn"));
  return h("section", { class: `verdict ${tone}` }, h("span", { class: "sign", "aria-hidden": "true" }, mark), h("h2", { class: "sentence" }, heading),
    h("ul", { class: "reason lines" }, lines.map((line) => h("li", null, line))));
}

function reliability({ reliability: curve }) {
  if (!curve) return null;
  const points = curve.x.map((x, place) => [x, curve.y[place]]);
  return chart({
    caption: t("chart.reliability"), note: t("chart.reliability.note"), across: t("chart.said"), up: t("chart.true"),
    lines: [{ kind: "ideal", points: [[0, 0], [1, 1]] }, { kind: "own", points, marks: true }],
    columns: { words: t("chart.table"), names: [t("chart.said"), t("chart.true")] },
    rows: points.map(([x, y]) => [rate(x), rate(y)]),
  });
}

function risk({ risk_coverage: curve, promise: given }) {
  if (!curve) return null;
  const points = curve.x.map((x, place) => [x, curve.y[place]]);
  const highest = Math.max(0.05, Math.ceil(20 * Math.max(...points.map((one) => one[1]))) / 20);
  return chart({
    caption: t("chart.risk"), note: t("chart.risk.note"), across: t("chart.answered"), up: t("chart.wrong"), highest,
    lines: [{ kind: "own", points: thinned(points) }], marks: given ? [] : [],
    columns: { words: t("chart.table"), names: [t("chart.answered"), t("chart.wrong")] },
    rows: thinned(points, 12).map(([x, y]) => [rate(x), rate(y)]),
  });
}

