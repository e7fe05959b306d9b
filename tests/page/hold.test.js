// A scale that is held: every further map is drawn on it, and what was chosen before comes back.

import assert from "node:assert/strict";
import { test } from "node:test";

const STATE = { views: [{}], layout: "one", panel: "", scale: "rank", percentiles: [2, 98], low: null, high: null };
const settings = { methods: [], probes: [], scales: [], models: [], examples: [], colours: {} };
const element = { textContent: JSON.stringify({ settings, state: STATE, models: {}, views: [] }), querySelectorAll: () => [] };
element.querySelector = () => element;
Object.assign(globalThis, { document: { getElementById: () => element }, location: { pathname: "/" } });
const { holdScale } = await import("../../vitviz/ui/page/choices.js");
const { fittedScale } = await import("../../vitviz/ui/page/look.js");
const { fitScale } = await import("../../vitviz/ui/page/scales.js");
const { store } = await import("../../vitviz/ui/page/page.js");

const [first, second] = [[0.1, 0.2, 0.4], [0.02, 0.3, 0.9]].map((values) => Float32Array.from(values));

for (const chosen of [null, "linear", "log", "rank"]) {
  test(`a held scale is that of every further map, and gives way to ${chosen ?? "the automatic one"}`, () => {
    store.patch({ scale: chosen });
    const of = { quantity: "relevance" }, own = fittedScale([second], of), held = fittedScale([first], of);
    holdScale(held, "relevance");
    const further = fittedScale([second], of);
    assert.deepEqual([further.name, ...further.ends], [held.name, ...held.ends]);
    assert.notDeepEqual(further.ends, own.ends);
    // A signed map has zero in its middle, so that no scale of others fits.
    const signed = fittedScale([second], { ...of, signed: true });
    assert.deepEqual(signed.ends.map((end) => Math.fround(Math.abs(end))), [0.9, 0.9].map(Math.fround));
    // Maps of another quantity have their own.
    const others = fitScale(null, [second]);
    assert.deepEqual(fittedScale([second], { quantity: "attention weight" }).ends, others.ends);
    assert.deepEqual(fittedScale([second]).ends, others.ends);
    // Another one may be held before it is released.
    holdScale(others, "attention weight");
    holdScale(null, "attention weight");
    const { scale, low, high } = store.state;
    assert.deepEqual([scale, low, high], [chosen, null, null]);
  });
}
