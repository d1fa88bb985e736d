// Pictures of items: every one has its place before it comes, so that nothing moves when it does.

import { addresses } from "./api.js";
import { h } from "./dom.js";
import { percent, number, t } from "./texts.js";

/** Pixels below which a picture is shown as it is, square by square, rather than smeared. */
const TINY = 64;

/** Marks a picture that is smaller than its place. */
export function sharpen(image) {
  image.addEventListener("load", () => image.classList.toggle("sharp", image.naturalWidth < TINY || image.naturalHeight < TINY));
  return image;
}

/** A photo in a frame of fixed size, as large as that allows, in its own shape; it comes when its shape is known. */
export function photo(address, alt) {
  const image = h("img", { alt });
  const frame = h("span", { class: "photo" });
  image.addEventListener("load", () => {
    shaped(image, image.naturalWidth, image.naturalHeight);
    frame.replaceChildren(image);
  });
  // What this browser cannot draw (HEIC in most) the server may still be able to read.
  image.addEventListener("error", () => frame.replaceChildren(h("span", { class: "soft" }, t("no-preview"))));
  image.src = address;
  return frame;
}

/** Gives an image or a canvas the shape of what it shows. */
export function shaped(element, width, height) {
  element.style.setProperty("--ratio", `${width / height}`);
  element.classList.toggle("sharp", Math.max(width, height) < TINY);
}

/** The picture of an item, or the place where it would be. */
export function thumbnail(item, size = 192, alt = "") {
  if (!item.has_image) return h("span", { class: "frame no-picture" }, t("no-picture"));
  const image = sharpen(h("img", { alt, width: size, height: size, loading: size > 96 ? "lazy" : null, decoding: "async" }));
  image.addEventListener("error", () => image.parentElement?.replaceChildren(t("no-picture")));
  image.src = addresses.thumbnail(item.id, size);
  return h("span", { class: "frame" }, image);
}

export const itemAddress = (id) => `#/item/${encodeURIComponent(id)}`;

export const labelOf = (item) => item.label ?? t("no-label");

/** One entry of a grid: picture, label, and what else is to be said of it. */
export function tile(item, more = null, size = 192) {
  return h("li", { class: "tile" }, h("a", { href: itemAddress(item.id), title: `${labelOf(item)} · ${item.id}` },
    thumbnail(item, size), h("span", { class: "caption" }, labelOf(item)), more));
}

/** Hits of an answer: each with the probability of its label. */
export function hits(found, most = 8) {
  return h("ol", { class: "tiles" }, found.slice(0, most).map((hit) => tile(hit, share(hit))));
}

function share(hit) {
  if (hit.probability === null || hit.probability === undefined) {
    return h("span", { class: "share" }, t("score", { score: number(hit.score) }));
  }
  const kind = hit.probability >= 0.5 ? "likely" : "unlikely";
  const width = `${(100 * hit.probability).toFixed(1)}%`;
  return h("span", { class: `share ${kind}` }, h("span", { class: "bar", "aria-hidden": "true" }, h("i", { css: { "--share": width } })),
    h("span", null, percent(hit.probability, true)));
}
