// The simulation of "What a promise means": questions as dots, what is answered, and what of it is wrong.
// Known things are right as often as their probability says; of strangers every answer is wrong.

const KNOWN = 300, NAMESPACE = 'http://www.w3.org/2000/svg', WIDTH = 640, HEIGHT = 190;

function random(seed) { // mulberry32: the same dots for the same seed
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4294967296;
  };
}

function questions(seed) {
  const next = random(seed), made = [];
  for (let i = 0; i < 4 * KNOWN; i += 1) {
    const known = i < KNOWN;
    const sure = known ? 1 - 0.75 * next() ** 3 : 0.1 + 0.88 * next() ** 1.7; // strangers: lower, not always
    made.push({known, sure, right: known && next() < sure, height: next()});
  }
  return made;
}

function slider(box, words, least, most, value, changed) {
  const label = document.createElement('label'), shown = document.createElement('output'), input = document.createElement('input');
  Object.assign(input, {type: 'range', min: least, max: most, value});
  label.append(`${words}: `, shown, input);
  const show = () => { shown.textContent = `${input.value} %`; };
  input.addEventListener('input', () => { show(); changed(); });
  show();
  box.append(label);
  return input;
}

function shape(name, attributes) {
  const made = document.createElementNS(NAMESPACE, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

function simulate(box) {
  let all = questions(1), seed = 1;
  box.replaceChildren();
  const draw = () => {
    const least = sureness.value / 100, share = come.value / 100;
    const strangers = Math.min(3 * KNOWN, Math.round(KNOWN * share / (1 - share)));
    const asked = all.slice(0, KNOWN + strangers), answered = asked.filter(one => one.sure >= least);
    const wrong = answered.filter(one => !one.right).length;
    picture.replaceChildren(...asked.map(one => shape('circle', {
      cx: 10 + one.sure * (WIDTH - 20), cy: 10 + one.height * (HEIGHT - 44), r: 3.6,
      class: one.sure < least ? 'waiting' : one.right ? 'right' : 'wrong',
    })), shape('path', {d: `M${10 + least * (WIDTH - 20)} 0V${HEIGHT - 26}`, class: 'least'}));
    [[0, '0 %'], [0.5, 'how sure it is'], [1, '100 %']].forEach(([place, words]) => {
      const text = shape('text', {x: 10 + place * (WIDTH - 20), y: HEIGHT - 6, 'text-anchor': ['start', 'middle', 'end'][2 * place]});
      text.textContent = words;
      picture.append(text);
    });
    const percent = (part, whole) => whole ? `${(100 * part / whole).toFixed(1)} %` : 'none';
    told.textContent = `${answered.length} of ${asked.length} questions are answered (${percent(answered.length, asked.length)}). `
      + `${wrong} of these answers are wrong: ${percent(wrong, answered.length)}.`;
  };
  const told = document.createElement('p'), again = document.createElement('button');
  const picture = shape('svg', {viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: 'img', 'aria-label': 'A dot per question: green answered rightly, red wrongly, grey not answered'});
  const sureness = slider(box, 'Answer from this probability on', 30, 99, 80, draw);
  const come = slider(box, 'Share of strangers among the questions', 0, 70, 10, draw);
  told.setAttribute('aria-live', 'polite');
  Object.assign(again, {type: 'button', textContent: 'Other questions'});
  again.addEventListener('click', () => { seed += 1; all = questions(seed); draw(); });
  box.append(picture, told, again);
  draw();
}

document.querySelectorAll('[data-simulation=promise]').forEach(simulate);
