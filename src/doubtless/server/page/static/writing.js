// What changes the gallery: who may, the key of those who may, and saying what became of it.

import { ApiError, keepKey, keptKey } from "./api.js";
import { announce, button, fill, h } from "./dom.js";
import { t } from "./texts.js";

/** Runs something that writes, and says below it what became of it. */
export async function written(place, work, done) {
  place.classList.remove("failed");
  try {
    const nodes = [done(await work())].flat();
    fill(place, nodes);
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    place.classList.add("failed");
    const known = [0, 401, 403, 404, 413, 415, 422, 503].includes(error.status);
    fill(place, known ? t(`error.${error.status}`) : t("error.other"), " ", h("span", { lang: "en" }, error.message));
  }
  announce(place.textContent);
}

/** A line that says what became of something; it has its height before there is anything to say. */
export const outcome = () => h("p", { class: "outcome" });

/** A field for the key, for callers that may not write; `again` is called once they may. */
export function keyField(context, again) {
  const input = h("input", { type: "text", class: "secret", autocomplete: "off", spellcheck: "false", value: keptKey() });
  const said = outcome();
  const use = async () => {
    keepKey(input.value.trim());
    try {
      await context.refresh();
    } catch (error) {
      keepKey(""); // a key that is refused would keep this tab from reading, too
      await context.refresh();
    }
    if (context.info.may_write) again();
    else {
      keepKey("");
      fill(said, t("key.refused"));
      announce(t("key.refused"));
    }
  };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") use(); });
  return h("div", { class: "key" }, h("p", { class: "soft" }, t("key.needed")),
    h("div", { class: "row" }, h("label", { class: "field" }, h("span", null, t("key")), input), button(t("key.use"), use)), said);
}

/** What may write, or the field for a key, or the sentence that nobody may. */
export function mayWrite(context, controls, again) {
  if (context.info.may_write) return controls();
  if (context.info.read_only) return h("p", { class: "soft" }, t("read-only"));
  return keyField(context, again);
}
