// Begins: language, what is served, and which view the address names.

import { ApiError, get } from "./api.js";
import { announce, fill, h } from "./dom.js";
import { language, t } from "./texts.js";
import { trouble } from "./verdict.js";
import * as ask from "./ask.js";
import * as compare from "./compare.js";
import * as gallery from "./gallery.js";
import * as item from "./item.js";
import * as known from "./known.js";
import * as lab from "./lab.js";
import * as map from "./map.js";
import * as review from "./review.js";

const views = { ask, gallery, compare, review, map, known, lab, item };
const TABS = ["ask", "gallery", "compare", "review", "map", "known", "lab"];
const main = document.getElementById("main");
const context = { info: null, signal: null, refresh: async () => { context.info = await get("/v1/info"); } };
let leaving = new AbortController();
let first = true;

/** `#/item/ID?x=y` as {view, id, parameters}. */
function route() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  const view = name in views && (name !== "lab" || context.info.demo) ? name : "ask";
  return { view, id: decoded(rest.join("/")), parameters: new URLSearchParams(query) };
}

/** Addresses are written by people, too: what cannot be decoded is taken as it is. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function navigate(current) {
  const tabs = TABS.filter((name) => name !== "lab" || context.info.demo);
  const here = current === "item" ? "gallery" : current;
  const links = tabs.map((name) => h("a", { href: `#/${name}`, "aria-current": name === here ? "page" : null }, t(`nav.${name}`)));
  fill(document.getElementById("nav"), links);
  const chosen = links.find((link) => link.hasAttribute("aria-current"));
  const bar = chosen.parentElement;
  bar.scrollLeft = chosen.offsetLeft - (bar.clientWidth - chosen.offsetWidth) / 2;
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const now = route();
  const mine = { ...context, signal: leaving.signal };
  // Views share what is known of the server: a key that is given in one of them counts in all.
  Object.defineProperty(mine, "info", { get: () => context.info });
  navigate(now.view);
  const words = views[now.view].title(now);
  document.title = `${words} · doubtless`;
  main.className = `view-${now.view}`;
  main.setAttribute("aria-busy", "true");
  try {
    const drawn = views[now.view].show(main, now, mine);
    if (!first) { // whoever goes by keyboard or ear is brought along
      main.focus({ preventScroll: true });
      window.scrollTo(0, 0);
      announce(words);
    }
    first = false;
    await drawn;
  } catch (error) {
    if (error.name === "AbortError" || mine.signal.aborted) return;
    if (!(error instanceof ApiError)) throw error;
    fill(main, trouble(error));
  } finally {
    if (!mine.signal.aborted) main.removeAttribute("aria-busy");
  }
}

document.documentElement.lang = language;
const skip = document.getElementById("skip");
skip.textContent = t("skip");
skip.addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
// A click on the view that is shown begins it anew; the browser would do nothing.
document.querySelector("header").addEventListener("click", (event) => {
  const link = event.target.closest("a");
  if (link && link.getAttribute("href") === (location.hash || "#/ask")) show();
});
document.getElementById("nav").setAttribute("aria-label", t("nav"));

try {
  await context.refresh();
  window.addEventListener("hashchange", show);
  await show();
} catch (error) {
  if (!(error instanceof ApiError)) throw error;
  fill(main, trouble(error));
}
