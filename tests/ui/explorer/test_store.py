"""The state of the page in the browser: one writer, and replies that come late, twice, out of order or never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.driver import new_page
from tests.support.example import ROOT

pytestmark = pytest.mark.browser
SCRIPT = ROOT / "vitviz" / "ui" / "explorer" / "js" / "store.js"

# A server whose replies come in any order, or are lost on their way, or twice, and that knows what it was asked.
SERVER = """
class FakeServer {
  constructor(seed) {
    Object.assign(this, { seed, sent: [], replies: [], stopped: [], shown: [] });
    const server = { progress: async (asked) => this.progress(asked), stop: async ({ number }) => this.stop(number) };
    this.runs = new Runs((request) => this.take(request), server, (state) => this.shown.push(state));
  }
  random() {
    this.seed = (this.seed * 1103515245 + 12345) % 2147483648;
    return this.seed / 2147483648;
  }
  take(request) {
    // Some never reach the server.
    if (this.random() < 0.1) return;
    this.sent.push(request.number);
    const reply = { page: request.page, number: request.number, answer: request.key };
    setTimeout(() => {
      this.replies[request.number] = this.stopped.includes(request.number) ? { ...reply, stopped: true } : reply;
      const fate = this.random();
      if (fate < 0.3) return;
      for (let times = fate < 0.5 ? 2 : 1; times > 0; times--) {
        setTimeout(() => this.runs.reply(this.replies[request.number]), 4000 * this.random());
      }
      // One of another page, and one of long ago.
      this.runs.reply({ ...reply, page: "another" });
      this.runs.reply(this.replies[Math.floor(this.replies.length * this.random())]);
    }, 3000 * this.random());
  }
  progress({ number }) {
    if (!this.sent.includes(number)) return { unknown: true };
    return this.replies[number] ? { reply: this.replies[number] } : { done: 1, total: 3, text: "" };
  }
  stop(number) { this.stopped.push(number); }
}
"""
JOURNEYS = 8
JOURNEY = """async (seed) => {
  const server = new FakeServer(seed), last = {}, wrong = [], settled = {};
  let count = 0;
  const until = performance.now() + 30000;
  while (performance.now() < until) {
    const slot = ["analysis 0", "analysis 1", "map 0 x", "switch"][Math.floor(4 * server.random())], key = `key ${++count}`;
    if (server.random() < 0.15) { server.runs.drop(slot); delete last[slot]; }
    else {
      last[slot] = key;
      server.runs.request(slot, key, { kind: "x", key }).then(
        (reply) => { settled[key] = reply.answer; if (reply.answer !== key) wrong.push([key, reply]); },
        (error) => { settled[key] = error.replaced ? "replaced" : error.message; });
    }
    await new Promise((done) => setTimeout(done, 1500 * server.random()));
  }
  await new Promise((done) => setTimeout(done, 120000));
  const missing = Object.values(last).filter((key) => settled[key] !== key && settled[key] !== "The server does not answer");
  const late = Object.keys(settled).filter((key) => settled[key] === key && server.runs.running);
  return { wrong, missing, late, count, answered: Object.values(settled).filter((each) => each.startsWith("key")).length,
    running: Boolean(server.runs.running), last: server.shown.at(-1) };
}"""


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page = new_page(browser)
    page.add_script_tag(content=f"{SCRIPT.read_text()}\n{SERVER}")
    yield page
    page.close()


def test_whatever_becomes_of_replies_the_last_wish_of_each_slot_is_answered(page: Page) -> None:
    """In several journeys, each with a server of its own."""
    page.clock.install()
    page.evaluate(
        f"""window.finished = null;
        Promise.all([...Array({JOURNEYS}).keys()].map({JOURNEY})).then((found) => {{ window.finished = found; }}); null"""
    )
    for _ in range(400):
        page.clock.run_for(1000)
        if page.evaluate("window.finished !== null"):
            break
    journeys: list[dict[str, Any]] | None = page.evaluate("window.finished")
    assert journeys is not None and len(journeys) == JOURNEYS
    for seed, found in enumerate(journeys):
        assert found["wrong"] == [] and found["missing"] == [] and not found["running"], seed
        assert found["count"] > 15 and found["answered"] > 0 and found["last"] is None, seed


def test_a_wish_is_sent_once_and_a_new_one_stops_the_one_before(page: Page) -> None:
    found = page.evaluate(
        """async () => {
          const sent = [], stopped = [], ends = [];
          const server = { progress: async () => ({ done: 0, total: 1 }), stop: async ({ number }) => stopped.push(number) };
          const runs = new Runs((request) => sent.push(request), server, () => {});
          const one = runs.request("map 0", "a", { kind: "map", key: "a" });
          const again = runs.request("map 0", "a", { kind: "map", key: "a" }) === one;
          one.catch((error) => ends.push(error.replaced));
          const two = runs.request("map 0", "b", { kind: "map", key: "b" });
          await null;
          // The server has not let go of the first yet: the second waits for that.
          const before = sent.length;
          runs.reply({ page: runs.page, number: sent[0].number, stopped: true });
          runs.reply({ page: runs.page, number: sent[0].number, path: "late" });
          runs.reply({ page: runs.page, number: sent[1].number, path: "right" });
          return { again, before, stopped, ends, sent: sent.map(({ key }) => key), path: (await two).path };
        }"""
    )
    assert found == {"again": True, "before": 1, "stopped": [1], "ends": [True], "sent": ["a", "b"], "path": "right"}


def test_what_is_asked_first_is_what_others_need(page: Page) -> None:
    order = page.evaluate(
        """() => {
          const sent = [], server = { progress: async () => ({ done: 0, total: 1 }), stop: async () => {} };
          const runs = new Runs((request) => sent.push(request), server, () => {});
          for (const slot of ["compare", "switch", "map 1 a", "map 0 b", "analysis 1", "analysis 0", "open"]) {
            runs.request(slot, slot, { kind: slot }).catch(() => {});
          }
          for (let place = 0; place < 7; place++) runs.reply({ page: runs.page, number: sent.at(-1).number });
          return sent.map(({ kind }) => kind);
        }"""
    )
    assert order == ["compare", "open", "analysis 1", "analysis 0", "map 1 a", "map 0 b", "switch"]


def test_a_change_is_told_once_and_what_is_no_change_not_at_all(page: Page) -> None:
    found = page.evaluate(
        """() => {
          const seen = [];
          const store = new Store({ views: [{ method: "attention", parameters: { layer: 1 } }], opacity: 0.5 }, (before) => seen.push(before.opacity));
          store.patch({ opacity: 0.5 });
          store.patch({ opacity: 0.6 });
          store.patchParameters(0, { layer: null, head: 2 });
          store.patchView(0, { method: "attention" });
          return { seen, parameters: store.state.views[0].parameters, version: store.version };
        }"""
    )
    assert found == {"seen": [0.5, 0.6], "parameters": {"head": 2}, "version": 2}


def test_what_was_chosen_while_a_link_was_opened_stays_chosen(page: Page) -> None:
    before = {
        "views": [{"picture": "cat", "method": "rollout", "parameters": {"residual_weight": 0.5, "query": [1, 2]}}],
        "opacity": 0.5,
        "layout": "one",
    }
    after = {
        "views": [{"picture": "rocket", "method": "rollout", "parameters": {"residual_weight": 0.4}}],
        "opacity": 0.5,
        "layout": "one",
        "guide": 1,
    }
    link = {
        "views": [
            {"picture": "coffee", "method": "attention", "parameters": {"layer": 3, "query": [4, 4]}},
            {"picture": "coffee", "method": "relevance", "parameters": {}},
        ],
        "opacity": 0.9,
        "layout": "two",
    }
    merged = page.evaluate("([link, before, after]) => withChanges(link, before, after)", [link, before, after])
    assert merged == {
        "views": [
            {"picture": "rocket", "method": "attention", "parameters": {"layer": 3, "residual_weight": 0.4}},
            link["views"][1],
        ],
        "opacity": 0.9,
        "layout": "two",
        "guide": 1,
    }
    assert page.evaluate("([link, state]) => withChanges(link, state, state)", [link, before]) == link
    # Another method has parameters of its own: none of the link's, which are about another one.
    view = {"method": "attention", "parameters": {"layer": 2}, "probe": "token_norms", "probe_parameters": {}}
    chosen = {
        "method": "relevance",
        "parameters": {"target": 3},
        "probe": "patch_similarity",
        "probe_parameters": {"layer": 1},
    }
    column = {"method": "attention", "parameters": {"direction": "column"}, "probe": "massive_activations"}
    states = [{"views": [each]} for each in ({**view, **column}, view, {**view, **chosen})]
    merged = page.evaluate("([link, before, after]) => withChanges(link, before, after)", states)
    assert merged == {"views": [{**view, **chosen}]}
