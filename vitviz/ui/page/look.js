// How maps are coloured: the scale and the look of the state.

import { colours } from "./colour_tables.js";
import { isHiding, page, store } from "./page.js";
import { fitScale } from "./scales.js";

export function lookOf() {
  const { opacity, fade, drain, smooth, grid, layout, divider } = store.state, isBare = isHiding();
  // What is hidden is hidden from the picture, and a map of the whole one says nothing of it.
  return { opacity, fade, drain: drain && !isBare, isBare, smooth, grid, part: layout === "slide" ? divider : undefined };
}

/** The look of a map on a small picture. */
export const smallLook = () => ({ ...lookOf(), drain: store.state.drain, part: undefined, grid: false, isBare: false });

/** The colours, scale function and look of maps on small pictures, and a key that changes with any of them. */
export function lookOfPanels() {
  const { colormap, scale, percentiles, low, high } = store.state, look = smallLook();
  return { table: colours[colormap], fittedScale, look, key: JSON.stringify([colormap, scale, percentiles, low, high, look]) };
}

export const isHeld = () => store.state.low !== null || store.state.high !== null;

/**
 * Whether a scale is held for maps of this quantity.
 * @param {string} quantity
 */
export const isHeldFor = (quantity) => isHeld() && quantity === page.heldQuantity;

/**
 * The scale of the state, fitted to maps.
 * @param {Numbers[]} maps
 * @param {ScaleOptions & { quantity?: string }} options a scale that is held is that of maps of one quantity, without a sign
 */
export function fittedScale(maps, { quantity = "", ...options } = {}) {
  const { scale, percentiles, low, high } = store.state, fits = quantity !== "" && isHeldFor(quantity);
  const name = fits || !isHeld() ? scale : null;
  return fitScale(name, maps, { percentiles, ...(fits && !options.signed && { low, high }), ...options });
}

export const ATTENTION = "attention weight";

/**
 * That of maps of attention.
 * @type {FitScale}
 */
export const attentionScale = (maps, options) => fittedScale(maps, { quantity: ATTENTION, ...options });

/** @param {any} options */
export const quantityOf = ({ pane, query }) => pane.metadata(query).quantity ?? QUANTITIES[pane.view.method] ?? "";

/** @type {Record<string, string>} */
const QUANTITIES = { attention: ATTENTION, rollout: "share of the rollout" };
