// The map of the gallery: a card beside the dot under the pointer, or the one that arrow keys have reached.
(() => {
  const show = (dot) => {
    const map = dot.closest(".map"), card = map.querySelector(".card"), plane = map.querySelector(".plane");
    map.querySelectorAll(".dot.chosen").forEach((one) => one.classList.remove("chosen"));
    dot.classList.add("chosen");
    const cell = Number(card.dataset.cell), columns = Number(card.dataset.columns), place = Number(dot.dataset.place);
    card.querySelector(".cell").style.backgroundPosition =
      `${-cell * (place % columns)}px ${-cell * Math.floor(place / columns)}px`;
    card.querySelector(".words").textContent = dot.dataset.words;
    card.hidden = false;
    const box = plane.getBoundingClientRect(), at = dot.getBoundingClientRect();
    const left = at.right - box.left + 8, top = at.top - box.top + 8;
    card.style.left = `${Math.max(4, left + card.offsetWidth > box.width ? at.left - box.left - card.offsetWidth - 8 : left)}px`;
    card.style.top = `${Math.max(4, Math.min(top, box.height - card.offsetHeight - 4))}px`;
  };
  const hide = (map) => {
    map.querySelector(".card").hidden = true;
    map.querySelectorAll(".dot.chosen").forEach((one) => one.classList.remove("chosen"));
  };
  document.addEventListener("pointerover", (event) => {
    const dot = event.target.closest?.(".map .dot");
    if (dot) show(dot);
  });
  document.addEventListener("pointerout", (event) => {
    const map = event.target.closest?.(".map");
    if (map && event.pointerType === "mouse" && !map.contains(event.relatedTarget)) hide(map);
  });
  const WAYS = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] };
  document.addEventListener("keydown", (event) => {
    const plane = event.target.closest?.(".map svg");
    if (!plane) return;
    if (event.key === "Escape") return hide(plane.closest(".map"));
    const way = WAYS[event.key];
    if (!way) return;
    event.preventDefault();
    const dots = [...plane.querySelectorAll(".dot")], from = plane.querySelector(".dot.chosen");
    if (!from) return show(dots[0]);
    const x = Number(from.dataset.x), y = Number(from.dataset.y);
    let best = null, least = Infinity;
    for (const dot of dots) {
      const dx = Number(dot.dataset.x) - x, dy = Number(dot.dataset.y) - y;
      const along = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1]) + Math.abs(dy * way[0]);
      if (along <= 0 || along < aside) continue;
      const far = along + 2 * aside;
      if (far < least) [best, least] = [dot, far];
    }
    if (best) show(best);
  });
  // What is decided is read out; Gradio's wrapper stays while its content changes.
  new MutationObserver((_, observer) => {
    const decision = document.getElementById("decision");
    if (!decision) return;
    decision.setAttribute("role", "status");
    decision.setAttribute("aria-live", "polite");
    observer.disconnect();
  }).observe(document.documentElement, { childList: true, subtree: true });
})();
