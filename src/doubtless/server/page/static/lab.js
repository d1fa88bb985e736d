// The demo's own view: make a photo worse and watch verdict and doubt change. Nothing asked here counts.

import { get, picture, postForm } from "./api.js";
import { announce, button, fill, h, later } from "./dom.js";
import { disturbed } from "./disturb.js";
import { hits, shaped } from "./pictures.js";
import { buttons, takeAnywhere } from "./picker.js";
import { percent, t } from "./texts.js";
import { card, sentence, trouble, waiting } from "./verdict.js";
import { why } from "./why.js";

const KINDS = ["blur", "noise", "occlusion"];
const LONGEST = 640;

export const title = () => t("nav.lab");

export async function show(main, route, context) {
  const view = new Lab(main, context);
  takeAnywhere((files) => view.take(files[0]), context.signal);
  const found = await get("/v1/examples", { limit: 8 }, { signal: context.signal });
  view.draw(found);
  const first = found.pictures[0]?.image ?? (found.items[0] && `/v1/items/${encodeURIComponent(found.items[0].id)}/image`);
  if (first) await view.take(await picture(first, { signal: context.signal }));
}

class Lab {
  constructor(main, context) {
    this.main = main;
    this.context = context;
    this.canvas = h("canvas", { role: "img", "aria-label": t("lab.picture"), width: 28, height: 28 });
    this.sliders = Object.fromEntries(KINDS.map((kind) => [kind, h("input", { id: `lab-${kind}`, type: "range", min: 0, max: 100, step: 5, value: 0 })]));
    this.shown = Object.fromEntries(KINDS.map((kind) => [kind, h("output", { for: `lab-${kind}` }, percentOf(0))]));
    this.verdict = h("div", { class: "told" }, waiting());
    this.below = h("div", { class: "below" });
    this.busy = false;
    this.soon = later(() => this.ask(), 40);
    for (const kind of KINDS) this.sliders[kind].addEventListener("input", () => this.moved());
  }

  draw(found) {
    const faces = found.pictures.map((one) => h("li", null, h("button", { type: "button", "aria-label": t("example", { name: one.name }), on: { click: async () => this.take(await picture(one.image)) } },
      h("span", { class: "frame" }, h("img", { src: one.image, alt: "", width: 96, height: 96, class: "sharp" })))));
    fill(this.main, h("h1", null, t("nav.lab")), h("p", { class: "lead" }, t("lab.lead")), h("div", { class: "ask lab" },
      h("div", { class: "shown" }, h("div", { class: "photos" }, h("span", { class: "photo" }, this.canvas)), h("div", { class: "again moving" }, KINDS.map((kind) => h("div", { class: "slider" }, h("label", { for: `lab-${kind}` }, t(`lab.${kind}`)), this.shown[kind], this.sliders[kind])),
        h("div", { class: "row" }, button(t("lab.undo"), () => this.undo()), buttons((files) => this.take(files[0]), { several: false, words: t("other-photo"), main: false })),
        faces.length ? h("ul", { class: "faces" }, faces) : null)),
      this.verdict, this.below));
  }

  /** A new photo, untouched. */
  async take(blob) {
    const bitmap = await createImageBitmap(blob).catch(() => null);
    if (!bitmap) {
      fill(this.verdict, trouble({ status: 415, message: "" }, "h2"));
      return;
    }
    const scale = Math.min(1, LONGEST / Math.max(bitmap.width, bitmap.height));
    this.canvas.width = Math.max(1, Math.round(bitmap.width * scale));
    this.canvas.height = Math.max(1, Math.round(bitmap.height * scale));
    shaped(this.canvas, this.canvas.width, this.canvas.height);
    const pen = this.canvas.getContext("2d", { willReadFrequently: true });
    pen.drawImage(bitmap, 0, 0, this.canvas.width, this.canvas.height);
    this.image = pen.getImageData(0, 0, this.canvas.width, this.canvas.height);
    this.undo();
  }

  undo() {
    for (const kind of KINDS) this.sliders[kind].value = 0;
    this.moved();
  }

  moved() {
    if (!this.image) return;
    const strengths = {};
    for (const kind of KINDS) {
      strengths[kind] = this.sliders[kind].value / 100;
      fill(this.shown[kind], percentOf(this.sliders[kind].value));
    }
    this.canvas.getContext("2d").putImageData(disturbed(this.image, strengths), 0, 0);
    this.soon();
  }

  /** One question at a time: what moved meanwhile is asked when the answer is there. */
  async ask() {
    if (this.busy) {
      this.again = true;
      return;
    }
    this.busy = true;
    const { signal, info } = this.context;
    try {
      const blob = await new Promise((done) => this.canvas.toBlob(done, "image/png"));
      const answer = await postForm("/v1/search", { k: Math.min(4, info.limits.k), trial: true }, [["image", blob]], { signal });
      this.answered(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      if (error.status === undefined) throw error;
      fill(this.verdict, trouble(error, "h2"));
    } finally {
      this.busy = false;
    }
    if (this.again) {
      this.again = false;
      this.ask();
    }
  }

  answered(answer) {
    const open = this.below.querySelector(".why")?.open ?? true;
    const details = why(answer);
    details.open = open;
    fill(this.verdict, card(answer, { heading: "h2" }));
    fill(this.below, details, answer.hits.length ? h("section", null, h("h2", null, t("nearest")), hits(answer.hits, 4)) : null);
    const doubt = answer.doubt === null ? "" : t("doubt-of", { share: percent(answer.doubt) });
    announce(`${h("p", null, sentence(answer).nodes).textContent} ${doubt}`);
  }
}

const percentOf = (value) => `${value}\u00a0%`;
