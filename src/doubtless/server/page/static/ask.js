// The first view: show a photo, read the verdict, say whether it is right.

import { addresses, get, picture, postForm } from "./api.js";
import { announce, button, fill, h } from "./dom.js";
import { judging } from "./judge.js";
import { hits, photo, thumbnail } from "./pictures.js";
import { buttons, dropField, fits, fitting, preview, takeAnywhere } from "./picker.js";
import { t } from "./texts.js";
import { card, sentence, trouble, waiting } from "./verdict.js";
import { why } from "./why.js";

/** Two rows of pictures on a laptop. */
const HITS = 10;
/** Milliseconds that nobody notices. */
const AT_ONCE = 60;

export const title = () => t("nav.ask");

export async function show(main, route, context) {
  const view = new Asking(main, context);
  takeAnywhere((files) => view.ask(files), context.signal);
  const id = route.parameters.get("item");
  if (id) await view.askItem({ id, has_image: true });
  else await view.welcome();
}

class Asking {
  constructor(main, context) {
    this.main = main;
    this.context = context;
    this.photos = [];
    this.asked = 0;
  }

  async welcome() {
    const { info, signal } = this.context;
    const examples = h("div", { class: "examples" });
    const counted = info.labels ? t("holds-labels", { items: t("items", { count: info.items }), labels: t("labels", { count: info.labels }) })
      : t("holds", { items: t("items", { count: info.items }) });
    fill(this.main, h("div", { class: "welcome" },
      h("div", null, h("h1", null, t("welcome")), h("p", { class: "lead" }, t("welcome.more")), h("p", { class: "soft" }, counted)),
      dropField((files) => this.ask(files)), examples, outcomes()));
    const found = await get("/v1/examples", { limit: 8 }, { signal }).catch(() => null);
    if (!found || signal.aborted || !examples.isConnected) return;
    const own = found.pictures.map((one) => this.example(
      h("span", { class: "frame" }, h("img", { src: one.image, alt: "", width: 96, height: 96, class: "sharp" })),
      t("example", { name: one.name }), async () => this.ask([await picture(one.image)], { trial: true })));
    const held = found.pictures.length ? [] : found.items.map((item) => this.example(
      thumbnail(item, 192), t("example-of", { label: item.label ?? item.id }), () => this.askItem(item)));
    if (own.length + held.length === 0) return;
    fill(examples, h("h2", null, t(own.length ? "try" : "try-items")), h("ul", { class: "faces" }, own, held));
  }

  example(face, words, action) {
    return h("li", null, h("button", { type: "button", "aria-label": words, title: words, on: { click: action } }, face));
  }

  /** Asks with files; those that are there already show the same thing when `more`. */
  async ask(files, { trial = false, more = false } = {}) {
    const { signal } = this.context;
    this.photos = more ? [...this.photos, ...files] : [...files];
    this.trial = trial;
    const mine = this.count();
    let begun = false;
    const begin = () => {
      clearTimeout(this.soon);
      if (!begun) this.begin(this.photos.map((blob, place) => preview(blob, signal, t("photo", { number: place + 1 }))));
      begun = true;
    };
    // The question is on its way before anything is drawn, and an answer that is here at once is drawn at once.
    const coming = this.send(this.photos);
    this.soon = setTimeout(begin, AT_ONCE);
    try {
      const { answer, photo } = await coming;
      if (mine !== this.asked) return;
      begin();
      this.answered(answer, { photo });
    } catch (error) {
      if (mine === this.asked) begin();
      this.failed(error, mine);
    }
  }

  /** A new question: what comes of older ones is not shown. */
  count() {
    clearTimeout(this.soon);
    this.asked += 1;
    return this.asked;
  }

  /** The answer to photos of one thing, and the first of them as it was sent. */
  async send(photos) {
    const { info, signal } = this.context;
    const large = photos.some((file) => !fits(file, info.limits));
    const sent = large ? await Promise.all(photos.map((file) => fitting(file, info.limits))) : photos;
    const fields = { k: Math.min(HITS, info.limits.k), trial: this.trial || null };
    const path = sent.length > 1 ? "/v1/together" : "/v1/search";
    return { answer: await postForm(path, fields, sent.map((blob) => ["image", blob]), { signal }), photo: sent[0] };
  }

  /** Asks about an item of the gallery as if it were not in it. */
  async askItem(item) {
    const { signal } = this.context;
    this.photos = [];
    const mine = this.count();
    this.begin([photo(addresses.image(item.id), t("photo", { number: 1 }))]);
    try {
      const about = await get(addresses.about(item.id), { k: HITS }, { signal });
      if (mine === this.asked) this.answered(about.answer, { note: t("asked-without-itself") });
    } catch (error) {
      this.failed(error, mine);
    }
  }

  /** Photos, and room for the verdict; everything else comes with the answer, so that nothing has to make way. */
  begin(photos) {
    this.verdict = h("div", { class: "told" }, waiting());
    this.again = h("div", { class: "again" });
    this.below = h("div", { class: "below" });
    const several = photos.length > 1;
    fill(this.main, h("div", { class: "ask" },
      h("div", { class: "shown" }, h("div", { class: several ? "photos several" : "photos" }, photos,
        several ? h("p", { class: "soft" }, t("together", { count: photos.length })) : null), this.again),
      this.verdict, this.below));
    window.scrollTo(0, 0);
  }

  /** What can be done next. */
  next() {
    fill(this.again, buttons((files) => this.ask(files), { words: t("new-photo") }),
      this.photos.length && !this.trial ? buttons((files) => this.ask(files, { more: true }), { words: t("more-photos"), main: false }) : null,
      button(t("start-over"), () => this.welcome(), { class: "quiet" }));
  }

  /** The verdict first; what stands below it a moment later, where it moves nothing. */
  answered(answer, { photo = null, note = null }) {
    const mine = this.asked;
    fill(this.verdict, card(answer), note ? h("p", { class: "soft" }, note) : null);
    setTimeout(() => {
      if (mine !== this.asked) return;
      this.next();
      fill(this.below, photo && !this.trial ? judging(answer, photo, this.context) : null,
        answer.hits.length ? h("section", null, h("h2", null, t("nearest")), hits(answer.hits, HITS)) : null, why(answer));
      announce(h("p", null, sentence(answer).nodes).textContent);
    });
  }

  failed(error, mine) {
    if (error.name === "AbortError" || mine !== this.asked) return;
    if (error.status === undefined) throw error;
    fill(this.verdict, trouble(error));
    this.next();
    announce(this.verdict.textContent);
  }
}

/** What it can say, before it has said anything. */
function outcomes() {
  const kinds = [["answer", "✓"], ["abstain", "?"], ["not-in-gallery", "∅"]];
  return h("ul", { class: "outcomes", "aria-label": t("outcomes") }, kinds.map(([kind, sign]) => h("li", { class: kind },
    h("span", { class: "sign", "aria-hidden": "true" }, sign),
    h("div", null, h("b", null, t(`outcome.${kind}`)), h("span", null, t(`outcome.${kind}.more`))))));
}

