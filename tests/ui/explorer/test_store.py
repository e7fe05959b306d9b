"""The state of the page in the browser: one writer, and replies that come late or never."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.driver import new_page
from tests.support.example import ROOT

pytestmark = pytest.mark.browser
SCRIPT, BACKEND = (ROOT / "vitviz" / "ui" / "explorer" / "js" / f"{name}.js" for name in ("store", "backend"))

# Replies come after any time, and some never.
SERVER = """
class FakeBackend {
  constructor(seed) {
    Object.assign(this, { seed, ended: new Set(), shown: [] });
    this.runs = new Runs(this, (state) => this.shown.push(state));
  }
  random() {
    this.seed = (this.seed * 1103515245 + 12345) % 2147483648;
    return this.seed / 2147483648;
  }
  async run({ number, key }, show) {
    const fate = this.random();
    await new Promise((done) => setTimeout(done, 3000 * this.random()));
    show({ done: 1, total: 3, text: "" });
    await new Promise((done) => setTimeout(done, 3000 * this.random()));
    if (fate < 0.1) return { failed: "The server does not answer" };
    return this.ended.has(number) ? { stopped: true } : { answer: key };
  }
  end({ number }) { this.ended.add(number); }
}
// Connections that are refused, cut or whole, and a server that knows a run by page and number.
class Connections {
  constructor(fates) {
    Object.assign(this, { fates, asked: [], begun: new Set() });
    globalThis.fetch = (path, { body }) => this.answer(JSON.parse(body));
  }
  async answer({ page, number }) {
    this.asked.push(number);
    const fate = this.fates.shift();
    if (fate === "refused") throw TypeError("Failed to fetch");
    if (fate === "away") return new Response("", { status: 502 });
    if (fate === "many") return new Response('{"detail": "wait for them"}', { status: 429 });
    this.begun.add(`${page} ${number}`);
    const lines = ['{"text": "Work', 'ing", "done": 1, "total": 3}\\n', '{"reply": {"answer": "dör"}}\\n'].map((text) => new TextEncoder().encode(text));
    return new Response(new ReadableStream({ start(controller) {
      for (const line of lines.slice(0, fate === "cut" ? 2 : 3)) controller.enqueue(line);
      fate === "broken" ? controller.error(TypeError("network error")) : controller.close();
    } }));
  }
}
"""
JOURNEYS = 8
JOURNEY = """async (seed) => {
  const server = new FakeBackend(seed), last = {}, wrong = [], settled = {};
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
          const sent = [], replies = [], stopped = [], ends = [];
          const backend = { run: (request) => { sent.push(request); return new Promise((done) => replies.push(done)); }, end: ({ number }) => stopped.push(number) };
          const runs = new Runs(backend, () => {});
          const one = runs.request("map 0", "a", { kind: "map", key: "a" });
          const again = runs.request("map 0", "a", { kind: "map", key: "a" }) === one;
          one.catch((error) => ends.push(error.replaced));
          const two = runs.request("map 0", "b", { kind: "map", key: "b" });
          await null;
          // The server has not let go of the first yet: the second waits for that.
          const before = sent.length;
          replies[0]({ stopped: true });
          await new Promise((done) => setTimeout(done));
          replies[1]({ path: "right" });
          return { again, before, stopped, ends, sent: sent.map(({ key }) => key), path: (await two).path };
        }"""
    )
    assert found == {"again": True, "before": 1, "stopped": [1], "ends": [True], "sent": ["a", "b"], "path": "right"}


def test_what_is_asked_first_is_what_others_need(page: Page) -> None:
    order = page.evaluate(
        """async () => {
          const sent = [], runs = new Runs({ run: async (request) => { sent.push(request); return {}; } }, () => {}), ends = [];
          for (const slot of ["compare", "switch", "map 1 a", "map 0 b", "analysis 1", "analysis 0", "open"]) {
            ends.push(runs.request(slot, slot, { kind: slot }));
          }
          await Promise.all(ends);
          return sent.map(({ kind }) => kind);
        }"""
    )
    assert order == ["compare", "open", "analysis 1", "analysis 0", "map 1 a", "map 0 b", "switch"]


@pytest.mark.parametrize(
    ("fates", "reply"),
    [
        (["whole"], {"answer": "dör"}),
        (["refused", "cut", "broken", "away", "whole"], {"answer": "dör"}),
        (["many"], {"failed": "wait for them", "final": None}),
        (["refused"] * 9, {"failed": "The server does not answer"}),
    ],
)
def test_a_run_is_read_on_when_its_connection_was_lost(page: Page, fates: list[str], reply: dict[str, Any]) -> None:
    page.clock.install()
    page.add_script_tag(content=BACKEND.read_text())
    page.evaluate(
        """(fates) => {
          const connections = window.connections = new Connections(fates);
          new ServerBackend().run({ page: "a", number: 7 }, (line) => { window.line = line; }).then((reply) => { window.reply = reply; });
        }""",
        fates,
    )
    for _ in range(20):
        page.clock.run_for(1000)
    found = page.evaluate(
        "({ reply: window.reply, line: window.line, asked: connections.asked, begun: [...connections.begun] })"
    )
    assert found["reply"] == reply and set(found["asked"]) == {7} and set(found["begun"]) <= {"a 7"}
    assert "answer" not in reply or found["line"] == {"text": "Working", "done": 1, "total": 3}


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
