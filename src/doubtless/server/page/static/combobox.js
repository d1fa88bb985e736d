// A field that knows the gallery's labels, whichever of thousands is meant; what is not among them may be written, too.

import { get } from "./api.js";
import { fresh, h, later } from "./dom.js";
import { count, t } from "./texts.js";

const SHOWN = 8;

/** {element, input, value()}; `chosen` is called when a label is picked or the field is left with Enter. */
export function combobox({ caption, value = "", chosen = null, hidden = false, placeholder = "" }) {
  const id = fresh("labels");
  const list = h("ul", { id, role: "listbox", "aria-label": caption, hidden: true });
  const input = h("input", {
    type: "text", role: "combobox", autocomplete: "off", spellcheck: "false", placeholder, value,
    "aria-expanded": "false", "aria-controls": id, "aria-autocomplete": "list", "aria-label": hidden ? caption : null,
  });
  let at = -1;
  let asked = 0;

  const options = () => [...list.children];
  function close() {
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }
  function mark(place) {
    at = place;
    options().forEach((option, number) => option.setAttribute("aria-selected", number === at));
    if (at >= 0) {
      input.setAttribute("aria-activedescendant", options()[at].id);
      options()[at].scrollIntoView({ block: "nearest" });
    }
  }
  function pick(label) {
    input.value = label;
    close();
    chosen?.(label);
  }
  async function look() {
    asked += 1;
    const mine = asked;
    const found = await get("/v1/labels", { text: input.value.trim(), limit: SHOWN }).catch(() => ({ labels: [] }));
    if (mine !== asked || document.activeElement !== input) return; // an older question, or nobody waits any more
    list.replaceChildren(...found.labels.map((one) => h("li", {
      id: fresh("label"), role: "option", "aria-selected": "false",
      on: { pointerdown: (event) => { event.preventDefault(); pick(one.label); } },
    }, h("span", null, one.label), h("small", null, count(one.count)))));
    at = -1;
    list.hidden = found.labels.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
  }
  const soon = later(look, 120);
  input.addEventListener("input", soon);
  input.addEventListener("focus", look);
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    const many = list.hidden ? 0 : options().length;
    if (event.key === "ArrowDown" && !many) look();
    else if (event.key === "ArrowDown") mark((at + 1) % many);
    else if (event.key === "ArrowUp" && many) mark((at - 1 + many) % many);
    else if (event.key === "Escape" && many) close();
    else if (event.key === "Enter") {
      event.preventDefault();
      if (many && at >= 0) pick(options()[at].firstChild.textContent);
      else { close(); chosen?.(input.value.trim()); }
      return;
    } else return;
    event.preventDefault();
  });
  const field = h("label", { class: "field" }, hidden ? null : h("span", null, caption), input);
  return { element: h("div", { class: "combobox" }, field, list), input, value: () => input.value.trim() };
}

/** A button beside a combobox: says so when nothing stands in it. */
export function named(box, words, action) {
  const go = () => {
    if (box.value()) action(box.value());
    else box.input.focus();
  };
  return h("button", { type: "button", on: { click: go } }, words ?? t("say-so"));
}
