// Files made in the page.

/** Offer bytes or text as a file. */
function save(content, name, type) {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  create("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

/** The sheet as SVG: every cell an image, names and frame as what they are. `sheet` is drawn already. */
function sheetAsSvg(sheet, title) {
  const { layers, rows, columns } = sheet.attention.facts, { left, top } = SHEET_MARGIN;
  const width = left + sheet.columnsOfCells * sheet.cellWidth, height = top + layers * sheet.cellHeight;
  const parts = sheet.filled.flatMap((isFilled, place) => {
    if (!isFilled) return [];
    const row = Math.floor(place / sheet.columnsOfCells), column = place % sheet.columnsOfCells;
    const cell = canvasOf(columns, rows);
    cell.getContext("2d").drawImage(sheet.raw, column * columns, row * rows, columns, rows, 0, 0, columns, rows);
    const at = `x="${left + column * sheet.cellWidth}" y="${top + row * sheet.cellHeight}"`;
    const size = `width="${sheet.cellWidth - SHEET_GAP}" height="${sheet.cellHeight - SHEET_GAP}"`;
    return [`<image ${at} ${size} preserveAspectRatio="none" style="image-rendering: pixelated" href="${cell.toDataURL()}"/>`];
  });
  for (let row = 0; row < layers; row++) {
    parts.push(`<text x="${left - 5}" y="${top + (row + 0.5) * sheet.cellHeight}" text-anchor="end" dominant-baseline="middle">${row}</text>`);
  }
  for (let column = 0; column < sheet.columnsOfCells; column++) {
    const name = column === 0 ? sheet.wanted.fusion : column - 1;
    parts.push(`<text x="${left + (column + 0.5) * sheet.cellWidth}" y="${top - 6}" text-anchor="middle">${name}</text>`);
  }
  const escaped = title.replace(/&/g, "&amp;").replace(/</g, "&lt;");
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${width} ${height}" width="${width}" height="${height}" ` +
    `font-family="sans-serif" font-size="11"><title>${escaped}</title>\n${parts.join("\n")}\n</svg>\n`;
}

/** A Float32Array as a file of NumPy's format, version 1.0. */
function asNpy(values, shape) {
  const tuple = `(${shape.join(", ")}${shape.length === 1 ? "," : ""})`;
  let header = `{'descr': '<f4', 'fortran_order': False, 'shape': ${tuple}, }`;
  header += " ".repeat(63 - (10 + header.length) % 64) + "\n";
  const bytes = new Uint8Array(10 + header.length + values.length * 4);
  bytes.set([0x93, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8]);
  bytes.set(new TextEncoder().encode(header), 10);
  bytes.set(new Uint8Array(Float32Array.from(values).buffer), 10 + header.length);
  return bytes;
}

const CRC_TABLE = Uint32Array.from({ length: 256 }, (_, number) => {
  let value = number;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? 0xedb88320 ^ (value >>> 1) : value >>> 1;
  return value;
});

function crc32(bytes) {
  let value = -1;
  for (const byte of bytes) value = CRC_TABLE[(value ^ byte) & 255] ^ (value >>> 8);
  return ~value >>> 0;
}

/** Files by name as a ZIP archive, stored as they are: with files of NumPy's format, what numpy.load calls NPZ. */
function asZip(files) {
  const parts = [], directory = [];
  let place = 0;
  for (const [name, bytes] of Object.entries(files)) {
    const title = new TextEncoder().encode(name);
    // Version, flags, method, time and date (1980-01-01), checksum, both sizes, length of the name, of what is added.
    const common = [20, 0, 0, 0, 33].flatMap(two).concat(...[crc32(bytes), bytes.length, bytes.length].map(four), two(title.length), two(0));
    const local = new Uint8Array([80, 75, 3, 4, ...common, ...title]);
    directory.push(new Uint8Array([80, 75, 1, 2, ...two(20), ...common, ...two(0), ...two(0), ...two(0), ...four(0), ...four(place), ...title]));
    parts.push(local, bytes);
    place += local.length + bytes.length;
  }
  const length = directory.reduce((sum, entry) => sum + entry.length, 0), count = directory.length;
  const end = new Uint8Array([80, 75, 5, 6, ...two(0), ...two(0), ...two(count), ...two(count), ...four(length), ...four(place), ...two(0)]);
  return new Blob([...parts, ...directory, end], { type: "application/zip" });
}

function two(value) {
  return [value & 255, (value >> 8) & 255];
}

function four(value) {
  return [...two(value), ...two(value >>> 16)];
}

/** The bytes of a text as a file of NumPy's format: `numpy.load(…)["about"].item()` is the text in UTF-8. */
function asNpyText(text) {
  const content = new TextEncoder().encode(text);
  let header = `{'descr': '|S${content.length}', 'fortran_order': False, 'shape': (), }`;
  header += " ".repeat(63 - (10 + header.length) % 64) + "\n";
  const start = [0x93, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8];
  return Uint8Array.from([...start, ...new TextEncoder().encode(header), ...content]);
}

/** A pane's token in every layer and head that is there, the shown map, and what they are of (JSON), as NPZ. */
function numbersOf(pane, query, about) {
  const { attention, facts, view } = pane, direction = valueOf(view, "direction", facts) ?? "row";
  const token = tokenOf(query, facts, pane.model) ?? facts.start;
  const layers = [...Array(facts.layers).keys()].filter((layer) => attention.map(layer, 0, token, direction));
  const all = new Float32Array(layers.length * facts.heads * attention.tokens);
  layers.forEach((layer, index) => {
    for (let head = 0; head < facts.heads; head++) {
      all.set(attention.map(layer, head, token, direction), (index * facts.heads + head) * attention.tokens);
    }
  });
  const shown = pane.values(query);
  return asZip({
    "attention.npy": asNpy(all, [layers.length, facts.heads, attention.tokens]),
    "layers.npy": asNpy(layers, [layers.length]),
    "map.npy": asNpy(shown.subarray(attention.prefix), [facts.rows, facts.columns]),
    "prefix.npy": asNpy(shown.subarray(0, attention.prefix), [attention.prefix]),
    "about.npy": asNpyText(JSON.stringify(about)),
  });
}
