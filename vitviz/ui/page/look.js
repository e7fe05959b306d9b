// How maps are coloured: the scale and the look of the state.

import { colours } from "./colour_tables.js";
import { store } from "./page.js";
import { fitScale } from "./scales.js";

export function lookOf() {
  const { opacity, fade, smooth, grid, layout, divider } = store.state;
  return { opacity, fade, smooth, grid, part: layout === "slide" ? divider : undefined };
}

/** The look of a map on a small picture. */
export const smallLook = () => ({ ...lookOf(), part: undefined, grid: false });

/** The colours, scale function and look of maps on small pictures, and a key that changes with any of them. */
export function lookOfPanels() {
  const { colormap, scale, percentiles } = store.state, look = smallLook();
  return { table: colours[colormap], fittedScale, look, key: JSON.stringify([colormap, scale, percentiles, look]) };
}

/**
 * The scale of the state, fitted to maps.
 * @param {Numbers[]} maps
 * @param {ScaleOptions=} options
 */
export function fittedScale(maps, options) {
  return fitScale(store.state.scale, maps, { percentiles: store.state.percentiles, ...options });
}

/** @param {any} options */
export const quantityOf = ({ pane, query }) => pane.metadata(query).quantity ?? QUANTITIES[pane.view.method] ?? "";

/** @type {Record<string, string>} */
const QUANTITIES = { attention: "attention weight", rollout: "share of the rollout" };
