// Elements from values. Whatever comes from a gallery becomes text or an attribute here, never markup:
// labels and ids are written by strangers.

const SVG = "http://www.w3.org/2000/svg";

/** An element. Properties: `class`, `on` (events), `data`, `css` (custom properties), anything else an attribute. */
export function h(tag, properties, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** The same of SVG. */
export function s(tag, properties, ...children) {
  return filled(document.createElementNS(SVG, tag), properties, children);
}

function filled(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.setAttribute("class", value);
    else if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (name === "data") Object.assign(element.dataset, value);
    // The policy forbids style attributes; what a script sets on the object it allows.
    else if (name === "css") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Puts children in place of what an element holds, in one step: nothing is seen half drawn. */
export function fill(element, ...children) {
  element.replaceChildren(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Says something to those who listen to the page instead of looking at it. */
export function announce(sentence) {
  document.getElementById("said").textContent = sentence;
}

let made = 0;
/** An id that no other element has. */
export function fresh(word) {
  made += 1;
  return `${word}-${made}`;
}

/** Calls `work` when nothing has happened for a moment. */
export function later(work, milliseconds = 150) {
  let waiting;
  return (...given) => {
    clearTimeout(waiting);
    waiting = setTimeout(() => work(...given), milliseconds);
  };
}

/** A button. */
export function button(words, action, properties = {}) {
  return h("button", { type: "button", ...properties, on: { click: action } }, words);
}
