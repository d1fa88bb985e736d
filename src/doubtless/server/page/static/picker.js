// A place for pictures: dropped anywhere on the view, pasted, chosen, or taken with a phone's camera.

import { button, h } from "./dom.js";
import { photo } from "./pictures.js";
import { t } from "./texts.js";

const ACCEPTED = "image/*,.heic,.heif,.avif";
const LARGEST_SIDE = 2400;

const pictures = (files) => [...(files ?? [])].filter((file) => file.type.startsWith("image/") || /\.(heic|heif|avif)$/i.test(file.name) || !file.type);

/** An input for files; `camera` asks a phone for its back camera. */
function chooser(chosen, { several, camera = false }) {
  const input = h("input", { type: "file", class: "unseen", tabindex: "-1", "aria-hidden": "true", accept: ACCEPTED, multiple: several && !camera, capture: camera ? "environment" : null });
  input.addEventListener("change", () => {
    const found = [...input.files];
    input.value = ""; // the same file may be chosen twice
    if (found.length) chosen(found);
  });
  return input;
}

/** A button that opens the chooser, and on phones one that opens the camera. */
export function buttons(chosen, { several = true, words = t("choose"), main = true } = {}) {
  const file = chooser(chosen, { several });
  const camera = chooser(chosen, { several, camera: true });
  return h("span", { class: "pickers" },
    button(words, () => file.click(), { class: main ? "main" : null }),
    main ? [button(t("camera"), () => camera.click(), { class: "camera" }), camera] : null, file);
}

/** The large field of an empty view. */
export function dropField(chosen, options = {}) {
  return h("div", { class: "drop" }, h("p", null, options.invitation ?? t("drop")), buttons(chosen, options));
}

/** Takes what is dropped or pasted anywhere while a view is shown; `signal` ends it. */
export function takeAnywhere(chosen, signal) {
  const over = (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  };
  const leave = (event) => { if (!event.relatedTarget) document.body.classList.remove("dragging"); };
  document.addEventListener("dragover", over, { signal });
  document.addEventListener("dragleave", leave, { signal });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    const found = pictures(event.dataTransfer?.files);
    if (found.length) chosen(found, event);
  }, { signal });
  document.addEventListener("paste", (event) => {
    const found = pictures(event.clipboardData?.files);
    if (!found.length) return; // words that are pasted into a field are none of our business
    event.preventDefault();
    chosen(found, event);
  }, { signal });
  signal.addEventListener("abort", () => document.body.classList.remove("dragging"));
}

/** Whether the server takes a file as it is. */
export const fits = (file, limits) => !limits?.upload || file.size < 0.95 * limits.upload;

/** A file as it can be sent: as it is, or drawn smaller where it has more bytes than the server accepts. */
export async function fitting(file, limits) {
  if (fits(file, limits)) return file;
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (!bitmap) return file; // the server says what is wrong with it
  const scale = Math.min(1, LARGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = h("canvas", { width: Math.round(bitmap.width * scale), height: Math.round(bitmap.height * scale) });
  canvas.getContext("2d").drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return new Promise((done) => canvas.toBlob((blob) => done(blob ?? file), "image/jpeg", 0.9));
}

/** A picture of somebody's file in a frame of fixed size; its address is given back when the view goes. */
export function preview(blob, signal, alt) {
  const address = URL.createObjectURL(blob);
  signal.addEventListener("abort", () => URL.revokeObjectURL(address));
  return photo(address, alt);
}
