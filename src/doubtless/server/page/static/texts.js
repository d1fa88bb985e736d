// Which language, and what is said in it. The words stand in texts.en.js and texts.de.js, under the same names.

const KNOWN = ["en", "de"];
const wanted = (navigator.languages?.length ? navigator.languages : [navigator.language]).map((one) => one.slice(0, 2));
export const language = wanted.find((one) => KNOWN.includes(one)) ?? "en";
// A visitor from Austria counts as Austria does, as far as the browser knows how.
const locale = (navigator.languages ?? [navigator.language]).find((one) => one.startsWith(language)) ?? language;
// Only one of them travels.
const { default: words } = await import(`./texts.${language}.js`);
const plural = new Intl.PluralRules(locale);
const whole = new Intl.NumberFormat(locale);
const or = new Intl.ListFormat(locale, { type: "disjunction" });
const and = new Intl.ListFormat(locale, { type: "conjunction" });

/** What stands under a name, with `{places}` filled in; `count` chooses between `name.one` and `name.other`. */
export function t(name, values = {}) {
  const found = "count" in values ? words[`${name}.${plural.select(values.count) === "one" ? "one" : "other"}`] : words[name];
  if (found === undefined) throw new Error(`There is no text ${name} in ${language}.`);
  return found.replace(/\{(\w+)\}/g, (_, place) => (place === "count" ? whole.format(values.count) : String(values[place])));
}

/** The same as nodes, so that what fills a place may be an element: a label set bold, a link. */
export function parts(name, values) {
  return words[name].split(/(\{\w+\})/).filter(Boolean).map((piece) => (piece[0] === "{" ? values[piece.slice(1, -1)] : piece));
}

export const number = (value, digits = 2) => new Intl.NumberFormat(locale, { maximumFractionDigits: digits, minimumFractionDigits: digits }).format(value);
export const count = (value) => whole.format(value);
export const anyOf = (list) => or.format(list);
export const allOf = (list) => and.format(list);

/** Nodes in place of the words of a list: "a, b or c" with a, b and c as elements. */
export function anyOfNodes(nodes) {
  let next = 0;
  return or.formatToParts(nodes.map(() => "x")).map((part) => (part.type === "element" ? nodes[next++] : part.value));
}

/** Whole percent that never claim certainty; `short` where there is little room. */
export function percent(share, short = false) {
  const rounded = Math.floor(100 * share + 0.5);
  const said = (value) => `${whole.format(value)}\u00a0%`;
  if (rounded >= 100) return short ? `>\u00a0${said(99)}` : t("more-than", { share: said(99) });
  if (rounded < 1) return short ? `<\u00a0${said(1)}` : t("less-than", { share: said(1) });
  return said(rounded);
}

/** A share that is a measured figure, not a belief: one decimal where it says something, and 0 and 100 as they are. */
export function rate(share) {
  const digits = share < 0.1 && share > 0 ? 1 : 0;
  return `${new Intl.NumberFormat(locale, { maximumFractionDigits: digits }).format(100 * share)}\u00a0%`;
}

export function moment(iso) {
  return new Intl.DateTimeFormat(locale, { dateStyle: "medium", timeStyle: "short" }).format(new Date(iso));
}
