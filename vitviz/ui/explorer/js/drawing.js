// What is drawn of the state: panes, legends, pins, sheet and strip. A part of explorer.js, whose names it uses.

const OUTLIER_COLOUR = "#ffd43b";
const QUANTITIES = { attention: "attention weight", rollout: "share of the rollout" };

const isDouble = () => store.state.layout === "two" || store.state.layout === "difference";
const shownPanes = () => (isDouble() ? panes : panes.slice(0, 1));

function ask() {
  if (!asked) asked = requestAnimationFrame(show);
}

/** The query that a pane shows: what is under the pointer, or what was chosen. */
function queryOfPane(pane) {
  const { chosen } = pane;
  if (!hovered || !pane.hasToken) return chosen;
  const linked = pane.linked(hovered.pane, hovered.query);
  return linked === undefined ? chosen : linked;
}

function show() {
  asked = 0;
  const shown = shownPanes();
  if (!element.isConnected || shown.some((pane) => !pane.painter)) return;
  const maps = shown.map((pane) => {
    const query = queryOfPane(pane);
    pane.rest(hovered ? query : null);
    const values = pane.values(query) ?? (hovered ? pane.values(pane.chosen) : null);
    const said = pane.values(query) ? query : pane.chosen;
    const drawn = pane.drawn(said, values);
    return { pane, query: values ? said : query, values, drawn, scaled: pane.scaled(drawn), signed: pane.signed(said) };
  });
  // Two maps of the same quantity side by side have one scale.
  const all = maps.map(({ scaled }) => scaled), isShared = store.state.layout === "two" && all.every(Boolean) && quantityOf(maps[0]) === quantityOf(maps[1]);
  const common = isShared ? fittedScale(all, { signed: maps.some(({ signed }) => signed) }) : null;
  for (const map of maps) {
    map.scale = common ?? (map.scaled && fittedScale([map.scaled], { signed: map.signed }));
    showMap(map);
  }
  if (store.state.layout === "difference") showDifference(...maps);
  const failures = shown.map(({ packs }) => packs.failure).filter(Boolean);
  setState(failures.length ? "failed" : "ready", failures.some(({ final }) => !final));
  if (moved) measured.hovers.push(performance.now() - moved);
  moved = 0;
  const map = maps.find(({ pane }) => pane.index === active) ?? maps[0];
  controls.showScale(store.state, map.scale);
  showPins(find("pins"), map.pane.hasToken ? map.pane.view.pins : [], (canvas, query) => drawPin(canvas, map.pane, query), unpin);
  const token = tokenOf(map.query, map.pane.facts, map.pane.model) ?? map.pane.facts.start;
  showSheet(map.pane, token);
  showStrip(find("strip"), map.pane, token, colours[store.state.colormap], { ...lookOf(), grid: false }, fittedScale, (layer) => showLayer(layer));
  probes.follow(panes[active], hovered?.pane === panes[active] ? hovered.query : null);
  guide.show(store.state.panel === "guide" ? store.state.guide : null, guideFacts(map));
}

const quantityOf = ({ pane, query }) => pane.about(query).quantity ?? QUANTITIES[pane.view.method] ?? "";

function lookOf() {
  const { opacity, fade, smooth, grid, layout, divider } = store.state;
  return { opacity, fade, smooth, grid, part: layout === "slide" ? divider : undefined };
}

/** How a map lies on a picture that is small. */
const smallLook = () => ({ ...lookOf(), part: undefined, grid: false });

/** The colours of maps, what fits their scale, how they lie on a small picture, and a key of all this. */
function lookOfPanels() {
  const { colormap, scale, percentiles } = store.state, look = smallLook();
  return { table: colours[colormap], fittedScale, look, key: JSON.stringify([colormap, scale, percentiles, look]) };
}

/** The scale of the page, fittedScale to maps. */
function fittedScale(maps, options) {
  return fitScale(store.state.scale, maps, { percentiles: store.state.percentiles, ...options });
}

function showMap({ pane, query, values, drawn, scaled, scale }) {
  const table = colours[store.state.colormap];
  pane.show(query, drawn, scale, table, lookOf(), marksOf(pane));
  pane.showChips(query, values);
  const under = hovered && !pane.hasToken && hovered.pane === pane && values ? tokenOf(hovered.query, pane.facts, pane.model) : null;
  const value = under === null ? "" : `, ${nameOf(hovered.query)}: ${digits(values[under])}`;
  pane.showLegend(scale, scaled, table, `${quantityOf({ pane, query })}${value}`);
  const about = scale?.caption(scaled, SCALES[scale.name]);
  const outliers = store.state.outliers ? pane.facts.outliers?.about : "";
  pane.say(!values && pane.packs.failure ? reason(pane.packs.failure) : [pane.sentence(query, values), about, outliers].filter(Boolean).join(" "));
  pane.element.classList.toggle("vx-chosen-pane", isDouble() && pane.index === active);
}

/** The patches that are outlined: outliers where they are asked for, and those that are pinned. */
function marksOf(pane) {
  const patches = store.state.outliers ? pane.facts.outliers?.patches ?? [] : [];
  return [...patches.map((place) => ({ token: pane.attention.token(...place), colour: OUTLIER_COLOUR, isDashed: true })), ...pane.marks];
}

/** The second pane shows what the first map has more (red) and less (blue) than its own. */
function showDifference(first, second) {
  const { pane } = second, { rows, columns, prefix } = first.pane.facts;
  const alike = rows === pane.facts.rows && columns === pane.facts.columns && prefix.join() === pane.facts.prefix.join();
  if (!alike) return pane.say("These two have different tokens: there is no difference patch by patch.");
  if (!first.values || !second.values) return;
  const values = first.drawn.map((value, token) => value - second.drawn[token]);
  const patches = pane.scaled(values), scale = fittedScale([patches], { signed: true });
  // Two equal maps have the colour of zero, which is in the middle.
  pane.show(second.query, values, scale, differenceColours, lookOf(), marksOf(pane));
  const isEqual = patches.every((value) => value === 0);
  pane.showLegend(isEqual ? null : scale, patches, differenceColours, "map 1 minus map 2");
  if (pane.index === active) controls.showScale(store.state, scale);
  const quantities = [first, second].map(quantityOf), alone = quantities[0] === quantities[1] ? "" : ` They are different quantities: ${quantities.join(", and ")}.`;
  const best = pane.attention.strongest(values.map(Math.abs)), about = scale.caption(patches, SCALES[scale.name]);
  pane.say(isEqual ? "Map 1 minus map 2: they are equal." : `Map 1 minus map 2. Largest difference: ${nameOf(queryOf(best, pane.facts))} with ${digits(values[best])}.${alone}${about && ` ${about}`}`);
}

function drawPin(canvas, pane, query) {
  const drawn = pane.drawn(query, pane.values(query)), { colormap } = store.state;
  pane.painter.draw(canvas, drawn?.subarray(pane.attention.prefix), drawn && fittedScale([pane.scaled(drawn)], { signed: pane.signed(query) }), colours[colormap], smallLook());
  if (Array.isArray(query)) pane.painter.mark(canvas, query, "white", 1.5);
}

function showSheet(pane, token) {
  const { facts, attention, view } = pane, [left, top, right, bottom] = facts.box;
  if (sheet?.attention !== attention) sheet = new Sheet(find("sheet"), attention);
  const head = valueOf(view, "head", facts);
  sheet.show({
    token, layer: valueOf(view, "layer", facts), head, shared: store.state.shared_scale, fittedScale, colours: colours[store.state.colormap],
    direction: valueOf(view, "direction", facts) ?? "row", fusion: typeof head === "string" ? head : sheet.wanted?.fusion ?? "mean",
    loaded: [...pane.packs.held.keys()].filter((name) => name.startsWith("layer")).join(), ratio: (bottom - top) / (right - left),
    ink: getComputedStyle(pane.find("status")).color,
  });
  controls.sayOfCell(cell ? sentenceOfCell(attention, cell, token) : "");
}

function sentenceOfCell(attention, { layer, head }, token) {
  const name = typeof head === "number" ? `head ${head}` : `${head} of all heads`;
  const values = attention.map(layer, head, token, "row");
  if (!values) return `Layer ${layer} is being fetched …`;
  const most = digits(Math.log(attention.tokens)), distance = attention.distance(values, token);
  const far = distance === null ? "" : `, mean distance ${digits(distance)} patches`;
  const spread = head === "max" || head === "min" ? "" : `: entropy ${digits(attention.entropy(values))} of ${most} nats`;
  return `Layer ${layer}, ${name}${spread}${far}.`;
}

/** What the guide says of the shown token: the numbers of one head; null while its layer is not there. */
function guideFacts({ pane, query }) {
  const { facts, attention, view } = pane, token = tokenOf(query, facts, pane.model) ?? facts.start;
  const layer = valueOf(view, "layer", facts) ?? facts.layers - 1, chosen = valueOf(view, "head", facts), head = typeof chosen === "number" ? chosen : 0;
  const weights = attention.map(layer, head, token, "row");
  if (!weights) return null;
  const scores = new Float32Array(attention.tokens), best = attention.strongest(weights);
  attention.scores(pane.packs.get(`layer ${layer}`), head, token, "row", scores);
  return {
    facts, head: `head ${head} of layer ${layer}`, name: nameOf(queryOf(token, facts)), best: nameOf(queryOf(best, facts)),
    scores: [...attention.range(scores)].map(digits), weight: digits(weights[best]), sum: digits(sumOf(weights.subarray(attention.prefix))),
  };
}
