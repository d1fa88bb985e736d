// What can happen to a photo: out of focus, noisy, partly hidden; each from 0 (untouched) to 1 (hardly anything left).
// Strengths go by the shorter side, so that they mean the same for a thumbnail and a photograph. The same noise grows and
// the same blocks come one after the other: more is more of the same.

/** Standard deviation of the blur at strength 1, as a part of the shorter side. */
const WIDEST_BLUR = 0.12;
/** Standard deviation of the noise at strength 1, as a part of a pixel's range. */
const STRONGEST_NOISE = 0.2;
/** Grains along the shorter side at most: finer ones vanish when a model scales a photograph down. */
const GRAINS = 64;
const MOST_HIDDEN = 0.8;
const BLOCKS = 4;
const GREY = 127;

/** All three in the order in which they happen: what is out of focus is so before a sensor's noise. */
export function disturbed(image, { blur, noise, occlusion }) {
  const made = new ImageData(new Uint8ClampedArray(image.data), image.width, image.height);
  if (blur > 0) blurred(made, blur);
  if (noise > 0) noised(made, noise);
  if (occlusion > 0) hidden(made, occlusion);
  return made;
}

/** Three running means come to a Gaussian within a few percent, in a time that does not grow with its width. */
function blurred({ data, width, height }, strength) {
  const spread = strength * WIDEST_BLUR * Math.min(width, height);
  // Three boxes of radius r have the variance r (r + 1); a radius between two whole ones is mixed from both.
  const radius = Math.sqrt(spread * spread + 0.25) - 0.5;
  let from = Float32Array.from(data);
  let to = new Float32Array(data.length);
  for (let round = 0; round < 3; round += 1) {
    means(from, to, { many: height, stride: 4 * width, length: width, step: 4 }, radius);
    [from, to] = [to, from];
    means(from, to, { many: width, stride: 4, length: height, step: 4 * width }, radius);
    [from, to] = [to, from];
  }
  data.set(from);
}

function means(from, to, { many, stride, length, step }, radius) {
  const whole = Math.floor(radius);
  const rest = radius - whole;
  const size = 2 * radius + 1;
  const clamp = (place) => Math.min(length - 1, Math.max(0, place)); // the edge goes on as it is
  for (let line = 0; line < many; line += 1) {
    for (let channel = 0; channel < 4; channel += 1) {
      const base = line * stride + channel;
      const at = (place) => from[base + clamp(place) * step];
      let sum = 0;
      for (let place = -whole; place <= whole; place += 1) sum += at(place);
      for (let place = 0; place < length; place += 1) {
        to[base + place * step] = (sum + rest * (at(place - whole - 1) + at(place + whole + 1))) / size;
        sum += at(place + whole + 1) - at(place - whole);
      }
    }
  }
}

function noised({ data, width, height }, strength) {
  const grain = Math.max(1, Math.floor(Math.min(width, height) / GRAINS));
  const across = Math.ceil(width / grain);
  const draw = normal(1);
  const pattern = Float32Array.from({ length: across * Math.ceil(height / grain) }, draw);
  const scale = strength * STRONGEST_NOISE * 255;
  for (let row = 0; row < height; row += 1) {
    for (let column = 0; column < width; column += 1) {
      const more = scale * pattern[Math.floor(row / grain) * across + Math.floor(column / grain)];
      const place = 4 * (row * width + column);
      for (let channel = 0; channel < 3; channel += 1) data[place + channel] += more;
    }
  }
}

/** Grey blocks, the last one in part; not one square, which is itself the picture of something. */
function hidden({ data, width, height }, strength) {
  const order = shuffled(BLOCKS * BLOCKS, 2);
  for (let place = 0; place < order.length; place += 1) {
    const share = Math.min(1, strength * MOST_HIDDEN * BLOCKS * BLOCKS - place);
    if (share <= 0) break;
    const row = Math.floor(order[place] / BLOCKS);
    const column = order[place] % BLOCKS;
    const top = Math.floor((row * height) / BLOCKS);
    const bottom = top + Math.round(share * (Math.floor(((row + 1) * height) / BLOCKS) - top));
    for (let y = top; y < bottom; y += 1) {
      for (let x = Math.floor((column * width) / BLOCKS); x < Math.floor(((column + 1) * width) / BLOCKS); x += 1) {
        data.fill(GREY, 4 * (y * width + x), 4 * (y * width + x) + 3);
      }
    }
  }
}

/** Numbers between 0 and 1, the same for the same seed (a linear congruential generator modulo 2^32). */
function uniform(seed) {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 0.5) / 4294967296;
  };
}

function normal(seed) {
  const draw = uniform(seed);
  return () => Math.sqrt(-2 * Math.log(draw())) * Math.cos(2 * Math.PI * draw());
}

function shuffled(length, seed) {
  const draw = uniform(seed);
  const order = [...Array(length).keys()];
  for (let place = length - 1; place > 0; place -= 1) {
    const other = Math.floor(draw() * (place + 1));
    [order[place], order[other]] = [order[other], order[place]];
  }
  return order;
}
