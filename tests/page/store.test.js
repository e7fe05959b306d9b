// The state of the page: one writer, and links that are opened while a visitor chooses.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Store, withChanges } from "../../vitviz/ui/page/store.js";

test("a change is told once, and what is no change not at all", () => {
  const seen = [], store = new Store({ views: [{ method: "attention", parameters: { layer: 1 } }], opacity: 0.5 });
  store.onChange = (before) => seen.push(before.opacity);
  store.patch({ opacity: 0.5 });
  store.patch({ opacity: 0.6 });
  store.ask([{ layer: null, head: 2 }]);
  store.patchView(0, { method: "attention" });
  assert.deepEqual([seen, store.state.views[0].parameters, store.version], [[0.5, 0.6], { head: 2 }, 2]);
});

test("what was chosen while a link was opened stays chosen", () => {
  const before = {
    views: [{ picture: "cat", method: "rollout", parameters: { residual_weight: 0.5, query: [1, 2] } }], opacity: 0.5, layout: "one",
  };
  const after = { views: [{ picture: "rocket", method: "rollout", parameters: { residual_weight: 0.4 } }], opacity: 0.5, layout: "one", guide: 1 };
  const link = {
    views: [
      { picture: "coffee", method: "attention", parameters: { layer: 3, query: [4, 4] } },
      { picture: "coffee", method: "relevance", parameters: {} },
    ],
    opacity: 0.9, layout: "two",
  };
  assert.deepEqual(withChanges(link, before, after), {
    views: [{ picture: "rocket", method: "attention", parameters: { layer: 3, residual_weight: 0.4 } }, link.views[1]],
    opacity: 0.9, layout: "two", guide: 1,
  });
  assert.deepEqual(withChanges(link, before, before), link);
});

test("another method keeps no parameters of the link's, which are about another one", () => {
  const view = { method: "attention", parameters: { layer: 2 }, probe: "token_norms", probe_parameters: {} };
  const chosen = { method: "relevance", parameters: { target: 3 }, probe: "patch_similarity", probe_parameters: { layer: 1 } };
  const column = { method: "attention", parameters: { direction: "column" }, probe: "massive_activations" };
  const [link, before, after] = [{ ...view, ...column }, view, { ...view, ...chosen }].map((each) => ({ views: [each] }));
  assert.deepEqual(withChanges(link, before, after), { views: [{ ...view, ...chosen }] });
});
