// From values to pixels.

// The table for what may be above or below zero.
const DIFFERENCE = "coolwarm";

/** Colour tables as the canvas takes them: 256 pixels each, by name. `tables` has their bytes in base64. */
function readColours(tables) {
  return Object.fromEntries(Object.entries(tables).map(([name, table]) => {
    const bytes = fromBase64(table), pixels = new Uint32Array(256);
    for (let step = 0; step < 256; step++) {
      pixels[step] = (255 << 24) | (bytes[3 * step + 2] << 16) | (bytes[3 * step + 1] << 8) | bytes[3 * step];
    }
    return [name, pixels];
  }));
}

/** A colour table as a CSS gradient. */
function gradient(colours) {
  const stops = [];
  for (let step = 0; step < 256; step += 17) {
    const pixel = colours[step];
    stops.push(`rgb(${pixel & 255} ${(pixel >> 8) & 255} ${(pixel >> 16) & 255})`);
  }
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** Places on a scale "row column" into pixels of a wider picture, from its pixel `start` on; NaN is clear. */
function paint(places, rows, columns, colours, pixels, stride, start) {
  for (let row = 0, index = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++, index++) {
      // 256 equal steps, as the server and matplotlib divide them.
      const step = 256 * places[index];
      pixels[start + row * stride + column] = Number.isNaN(step) ? 0 : colours[step > 255 ? 255 : step > 0 ? step | 0 : 0];
    }
  }
}

/** Values "row column" interpolated between patch centres, `times` as many on each side. */
function interpolated(values, rows, columns, times) {
  const wide = columns * times, made = new Float32Array(rows * times * wide);
  const along = (count) => Array.from({ length: count * times }, (_, index) => {
    const place = Math.min(Math.max((index + 0.5) / times - 0.5, 0), count - 1), before = Math.floor(place);
    return [before, Math.min(before + 1, count - 1), place - before];
  });
  const across = along(columns);
  along(rows).forEach(([above, below, down], row) => across.forEach(([left, right, share], column) => {
    const upper = values[above * columns + left] * (1 - share) + values[above * columns + right] * share;
    const lower = values[below * columns + left] * (1 - share) + values[below * columns + right] * share;
    made[row * wide + column] = upper * (1 - down) + lower * down;
  }));
  return made;
}

const fadedTables = new Map();

/** A colour table whose weak end is clear; of one for what may be above or below zero, the middle is. */
function faded(colours, signed) {
  const known = fadedTables.get(colours);
  if (known) return known;
  const table = colours.map((pixel, step) => {
    const strength = signed ? Math.abs(step - 127.5) / 127.5 : step / 255;
    // >>> keeps the number positive.
    return ((Math.round(255 * Math.sqrt(strength)) << 24) | (pixel & 0xffffff)) >>> 0;
  });
  fadedTables.set(colours, table);
  return table;
}
