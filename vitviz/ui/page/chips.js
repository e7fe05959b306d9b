// The tokens that are not patches, as buttons in the picture's corner.

import { create, createButton } from "./dom.js";
import { PIN_COLOURS } from "./pins.js";
import { backend } from "./settings.js";
import { isEqual } from "./store.js";
import { nameOf, queryOf } from "./token_names.js";
import { tokenOf } from "./tokens.js";

// One more button stands for the others, once there are more than this.
const MAX_CHIPS = 1;
// Of all panes, so that two pictures stay at one height.
let areUnfolded = false;

/**
 * @param {Pane} pane
 * @param {Query} query of the map
 */
export function showChips(pane, query) {
  const { facts, model, hasToken } = pane, chips = pane.find("chips");
  const queries = [
    ...(model.pools_by_attention && backend.computes ? [null] : []),
    ...facts.prefix,
    ...(hasToken && backend.computes ? ["patches"] : []),
  ];
  const isFolded = !areUnfolded && queries.length > MAX_CHIPS + 1;
  const startToken = tokenOf(null, facts, model);
  const defaultQuery = startToken !== null ? queryOf(startToken, facts) : model.pools_by_attention ? null : "patches";
  const visible = isFolded ? [queries.find((item) => item === defaultQuery) ?? queries[0]] : queries;
  if (isFolded && typeof query === "string" && !visible.includes(query)) visible.push(query);
  chips.toggleAttribute("data-square", Array.isArray(query));
  const names = JSON.stringify([visible, isFolded, hasToken]);
  if (chips.dataset.names !== names) {
    chips.dataset.names = names;
    chips.replaceChildren(
      ...visible.map((item) => chipOf(pane, item)),
      ...(isFolded ? [moreChips(pane)] : []),
    );
  }
  visible.forEach((item, index) => {
    const chip = chips.children[index], pin = pane.view.pins.findIndex((pinned) => isEqual(pinned, item));
    chip.style.borderColor = pin < 0 ? "" : PIN_COLOURS[pin];
    chip.setAttribute("aria-pressed", isEqual(item, query ?? defaultQuery) && hasToken);
  });
}

/** @type {Record<string, string>} */
const MEANINGS = {
  cls: "The class token, from which a model of this kind reads the class",
  patches: "The mean of what all patches attend to",
  null: "The learned query that reads the picture after the last layer",
};

/**
 * @param {Pane} pane
 * @param {Query} query
 */
function chipOf(pane, query) {
  const { hooks, hasToken } = pane, token = pane.facts.prefix.indexOf(String(query));
  const title = MEANINGS[String(query)] ?? "A token that stands for no part of the picture (Darcet et al. 2024)";
  const onclick = (/** @type {MouseEvent} */ event) =>
    event.shiftKey && token >= 0 ? hooks.pin(pane, token) : hooks.choose(pane, query);
  const chip = createButton({ className: "vx-chip", disabled: !hasToken, title, onclick }, create("b", { textContent: nameOf(query) }));
  if (token >= 0) {
    chip.onpointerenter = (event) => event.pointerType !== "touch" && hooks.hover(pane, token, event);
    chip.onpointerleave = () => hooks.hover(pane, null);
  }
  return chip;
}

/** @param {Pane} pane */
function moreChips(pane) {
  const onclick = () => {
    areUnfolded = true;
    pane.hooks.onChange(pane, null);
  };
  return createButton({ className: "vx-chip", textContent: "more", onclick });
}
