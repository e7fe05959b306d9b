// How maps are coloured: the scale and the look of the state.

import { colours } from "./colour_tables.js";
import { isHiding, store } from "./page.js";
import { fitScale } from "./scales.js";

export function lookOf() {
  const { opacity, fade, drain, smooth, grid, layout, divider } = store.state, isBare = isHiding();
  // What is hidden is hidden from the picture, and a map of the whole one says nothing of it.
  return { opacity, fade, drain: drain && !isBare, isBare, smooth, grid, part: layout === "slide" ? divider : undefined };
}

/** The look of a map on a small picture. */
export const smallLook = () => ({ ...lookOf(), part: undefined, grid: false, isBare: false });

/** The colours, scale function and look of maps on small pictures, and a key that changes with any of them. */
export function lookOfPanels() {
  const { colormap, scale, percentiles, low, high } = store.state, look = smallLook();
  return { table: colours[colormap], fittedScale, look, key: JSON.stringify([colormap, scale, percentiles, low, high, look]) };
}

/**
 * The scale of the state, fitted to maps.
 * @param {Numbers[]} maps
 * @param {ScaleOptions=} options
 */
export function fittedScale(maps, options) {
  const { scale, percentiles, low, high } = store.state;
  // A scale that is held is that of maps without a sign.
  return fitScale(scale, maps, { percentiles, ...(!options?.signed && { low, high }), ...options });
}

/** @param {any} options */
export const quantityOf = ({ pane, query }) => pane.metadata(query).quantity ?? QUANTITIES[pane.view.method] ?? "";

/** @type {Record<string, string>} */
const QUANTITIES = { attention: "attention weight", rollout: "share of the rollout" };
