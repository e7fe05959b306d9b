// Occlusion: how far a score falls without each square. They are measured in an order that spreads them out, so that a map is soon there
// and sharpens.

import { copyPatch } from "./device_file.js";
import { signText } from "./pack_writer.js";
import { inLanes } from "./studies.js";

// About so many squares of the first grid are across.
const FIRST_SQUARES = 3;

/**
 * All patches, those of a coarse grid first, then those of ever finer ones.
 * @param {{ rows: number, columns: number }} input
 * @returns {{ order: number[], coarse: number }} patches, and how many the first grid has
 */
export function spreadOrder({ rows, columns }) {
  const widest = 2 ** Math.max(0, Math.floor(Math.log2(Math.min(rows, columns) / FIRST_SQUARES)));
  // The widest of the grids that have a line at a place of an axis.
  const gridOf = (/** @type {number} */ place, /** @type {number} */ count) => {
    const first = ((count - 1) % widest) >> 1;
    let side = widest;
    while ((place - first) % side !== 0) side /= 2;
    return side;
  };
  const ranked = Array.from({ length: rows * columns }, (_, patch) => {
    const down = gridOf(Math.floor(patch / columns), rows), across = gridOf(patch % columns, columns), side = Math.min(down, across);
    // The squares in the middle of four come before those between two.
    return { patch, side, rank: 2 * Math.log2(widest / side) - Number(down === across) };
  });
  return {
    order: ranked.toSorted((one, other) => one.rank - other.rank).map(({ patch }) => patch),
    coarse: ranked.filter(({ side }) => side === widest).length,
  };
}

/**
 * Values in which those that are not known yet, as NaN, are those of the nearest patch.
 * @param {Float32Array} values
 * @param {number} columns
 */
export function withNearest(values, columns) {
  const known = [...values.keys()].filter((patch) => !Number.isNaN(values[patch]));
  return values.map((value, patch) => {
    if (!Number.isNaN(value)) return value;
    const row = Math.floor(patch / columns), column = patch % columns;
    let nearest = known[0], least = Infinity;
    for (const other of known) {
      const distance = (Math.floor(other / columns) - row) ** 2 + ((other % columns) - column) ** 2;
      if (distance < least) [nearest, least] = [other, distance];
    }
    return values[nearest];
  });
}

/**
 * The map; while it is made, the squares so far.
 * @param {import("./class_maps.js").ClassMapRequest} request
 * @returns {Promise<import("./pack_writer.js").MapContent>}
 */
export async function occlusionMap({ studied, name, target: { score }, parameters: { signed }, report }) {
  const { network: { team, workers, file: { config, input } }, pixels, logits, signal } = studied, whole = score(logits);
  // Zero is the mean training colour.
  const grey = new Float32Array(config.channels * config.patch_height * config.patch_width);
  const { order, coarse } = spreadOrder(input), total = order.length, falls = new Float32Array(total).fill(NaN);
  const contentOf = (/** @type {Float32Array} */ patches) => {
    const values = new Float32Array(input.prefix.length + total).fill(NaN);
    values.set(patches, input.prefix.length);
    const description = `Occlusion for ${name}: one patch at a time; ${signText(signed)}`;
    return { values, description, quantity: "fall of the score", signed };
  };
  await inLanes(workers, total, async (index) => {
    const occluded = pixels.slice();
    copyPatch(occluded, config, input, order[index], grey, true);
    const after = (await team.encode(occluded, { logitsOnly: true, apart: true, signal })).logits;
    falls[order[index]] = signed ? whole - score(after) : Math.max(0, whole - score(after));
  // Workers end out of order: before all of the first grid are there, the nearest may be far away.
  }, (done) => report(done, total, order.slice(0, coarse).some((patch) => Number.isNaN(falls[patch]))
    ? undefined
    : () => ({ ...contentOf(withNearest(falls, input.columns)), unfinished: `${done} of ${total} squares` })));
  return { ...contentOf(falls), raised: falls.some((value) => value > 0) };
}
