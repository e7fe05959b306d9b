// The panels below the map: comparing methods, and switching parts off.

import { namesOfHidden, showAnswer } from "./answer.js";
import { runInPanel } from "./analyses.js";
import { chooseMap } from "./choices.js";
import { create, createButton, createCanvas, find, findAll, listenTo, setText, tableRow } from "./dom.js";
import { lookOfPanels } from "./look.js";
import { computedBy, offeredMethods } from "./map_sources.js";
import { reasonOf } from "./messages.js";
import { digits, percent } from "./numbers.js";
import { readPack } from "./packs.js";
import { activePane, activeTarget, activeView, page, requests, store } from "./page.js";
import { withoutToken } from "./pane.js";
import { showPredictions } from "./predictions.js";
import { answeredBy, withValues } from "./question_rule.js";
import { differenceOfMethod, lineOfQuestion } from "./question_words.js";
import { withoutNaN } from "./scales.js";
import { backend, METHODS, START } from "./settings.js";
import { analysisKey, isEqual } from "./store.js";
import { nameOf, queryOf } from "./token_names.js";

/** @type {Record<string, { level: (value: number) => string, change: (value: number) => string }>} */
const UNIT_TEXTS = {
  probability: {
    level: percent,
    change: (/** @type {any} */ value) => `${value < 0 ? "-" : ""}${percent(Math.abs(value)).slice(0, -1)} points`,
  },
  score: { level: digits, change: digits },
};

const NO_SCORE =
  "This model has no classifier. Choose a map for a likeness and a picture to compare with: " +
  "the change of that likeness can then be measured.";

/**
 * A change with its sign; the minus sign is as wide as the plus.
 * @param {string} text
 */
const signed = (text) => (text.startsWith("-") ? `−${text.slice(1)}` : `+${text}`);

/**
 * Values as shares of the sum of the positive ones.
 * @param {Float32Array} values
 */
function shares(values) {
  const sum = values.reduce((total, value) => (value > 0 ? total + value : total), 0) || 1;
  return values.map((value) => value / sum);
}

/** What all methods are asked: of likeness to a patch, every token begins at all patches. */
function askedOfAll() {
  const target = activeTarget(), question = withValues(store.questions[page.active], { target });
  return target?.patch ? { query: "patches", ...question } : question;
}

/** @param {string} text */
const sayOfSwitches = (text) => { find("switch-said").textContent = text; };

export class Panels {
  constructor() {
    /** @type {any} */
    this.comparison = null;
    /** @type {any} */
    this.ranking = null;
    this.lookKey = "";
    this.requested = "";
    for (const panel of findAll("details.vx-panel")) {
      panel.querySelector("summary").onclick = (/** @type {Event} */ event) => {
        event.preventDefault();
        store.patch({ panel: panel.open ? "" : panel.dataset.panel });
      };
    }
    listenTo("change", { "compare-order": () => this.drawCards(), "compare-scale": () => this.drawCards() });
    listenTo("click", {
      "compare-start": () => this.compare(),
      rank: () => (this.ranking ? this.showRanking(null) : this.rank()),
      "all-on": () => store.patch({ views: store.state.views.map((view) => ({ ...view, heads_off: [], patches_off: [] })) }),
    });
  }

  /**
   * @param {State} state
   * @param {Facts} facts
   * @param {Model} model
   */
  show(state, facts, model) {
    for (const panel of findAll("details.vx-panel")) panel.open = panel.dataset.panel === state.panel;
    find("hide").hidden = state.panel !== "switches";
    find("rank").setAttribute("aria-pressed", Boolean(this.ranking));
    if (!facts) return;
    const { key } = lookOfPanels(), isGone = this.comparison && !state.views[this.comparison.pane.index];
    // What is looked at no more is not computed.
    if (requests.pending("compare") && (isGone || state.panel !== "compare")) this.stopComparing("Stopped.");
    // Maps of B are none of A.
    if (isGone) this.comparison = null;
    if (isGone || this.lookKey !== key) {
      this.lookKey = key;
      this.drawCards();
    }
    const hasTarget = model.labels.length > 0 || model.reads_text || activeTarget() !== null;
    for (const name of ["compare-start", "rank"]) find(name).disabled = !hasTarget;
    setText(find("question"), hasTarget ? this.comparison?.line ?? lineOfQuestion(askedOfAll(), facts, model) : "");
    for (const hint of findAll(".vx-no-score")) setText(hint, hasTarget ? "" : NO_SCORE);
  }

  // ---- comparing ----

  /** Remove the results of the previous analysis. */
  clear() {
    requests.keepOnly("compare", []);
    Object.assign(this, { comparison: null, ranking: null });
    this.drawCards();
    this.showChanges(null);
    sayOfSwitches("");
  }

  /** Show every map and every score as soon as it is there, the cheap ones first. */
  compare() {
    if (find("compare-start").disabled || !activePane().facts) return;
    const pane = activePane(), { uid } = pane.facts, offered = offeredMethods(pane.facts, pane.model), question = askedOfAll();
    const byMethod = Object.fromEntries(offered.map(({ name }) => [name, answeredBy(question, name, METHODS)]));
    requests.keepOnly("compare", []);
    const comparison = {
      pane, question, line: lineOfQuestion(question, pane.facts, pane.model), byMethod, packs: /** @type {Record<string, Tensors>} */ ({}),
      scores: /** @type {any} */ (null), failure: "",
    };
    this.comparison = comparison;
    const fail = (/** @type {string} */ text) => this.comparison === comparison && this.stopComparing(text);
    this.drawCards();
    store.refresh();
    setText(find("compare-said"), "");
    const fetches = /** @type {Record<string, Promise<any>>} */ ({}), order = find("compare-order");
    const fetchMap = (/** @type {string} */ name) => (fetches[name] ??= backend.map({ uid, method: name, parameters: byMethod[name] }).then(
      (content) => {
        comparison.packs[name] = readPack(content);
        if (this.comparison === comparison) this.drawCards();
      }, (error) => fail(reasonOf(error))));
    for (const { name } of offered) if (computedBy(name, Object.keys(byMethod[name]), pane.facts) !== "run") fetchMap(name);
    const withoutTarget = (/** @type {[string, any]} */ [name, { target: _, ...others }]) => [name, others];
    const parameters = Object.fromEntries(Object.entries(byMethod).map(withoutTarget));
    const body = { kind: "compare", uid, parameters, target: question.target ?? null };
    const show = (/** @type {any} */ scores) => {
      if (this.comparison !== comparison) return;
      comparison.scores = scores;
      // Of those that take long, the server has a map when it has a score.
      for (const { method } of scores.maps) fetchMap(method);
      if (!order.options.length) order.append(new Option("as listed", ""),
        ...scores.metrics.map((/** @type {any} */ { name, title }) => new Option(`best by ${title}`, name)));
      setText(find("compare-said"), scores.about);
      this.drawScores();
    };
    runInPanel("compare", JSON.stringify(body), body, show, fail, show);
  }

  /**
   * Keep what is there, and say why there is no more.
   * @param {string} reason
   */
  stopComparing(reason) {
    requests.keepOnly("compare", []);
    this.comparison.failure = reason;
    setText(find("compare-said"), reason);
    this.drawScores();
  }

  /** Cards whose place and scores stay are the same elements, so that no click on them is lost. */
  drawScores() {
    if (find("compare-order").value) return this.drawCards();
    for (const card of find("cards").children) {
      const was = card.lastElementChild.lastElementChild, scores = scoresOf(card.dataset.method, this.comparison, was.open);
      if (!was.isEqualNode(scores)) was.replaceWith(scores);
    }
  }

  drawCards() {
    const { packs = {}, scores = null } = this.comparison ?? {}, order = find("compare-order").value;
    const metric = scores?.metrics.find((/** @type {any} */ { name }) => name === order), better = metric?.lower_is_better ? 1 : -1;
    const areaOf = Object.fromEntries((scores?.maps ?? []).map((/** @type {any} */ { method, areas }) => [method, areas[order]]));
    const methods = Object.keys(METHODS).filter((method) => packs[method]);
    // Those without a score yet come last.
    if (metric) methods.sort((one, other) => better * ((areaOf[one] ?? better * Infinity) - (areaOf[other] ?? better * Infinity)));
    const unfolded = [...find("cards").children].filter((card) => card.querySelector("details[open]")).map(({ dataset }) => dataset.method);
    find("cards").replaceChildren(...methods.map((method) => this.card(method, unfolded.includes(method))));
  }

  /**
   * @param {string} method
   * @param {boolean} isUnfolded
   */
  card(method, isUnfolded) {
    const { packs, pane, question, byMethod } = this.comparison, { title, interpretation } = METHODS[method];
    const drawnOf = (/** @type {any} */ { values, metadata: { self } }) => withoutToken(values, self && Number(self)),
      visibleValues = drawnOf(packs[method]);
    const isShared = find("compare-scale").checked, isSigned = packs[method].metadata.signed === "true";
    const patchesOf = (/** @type {any} */ values) => values.subarray(pane.attention.prefix),
      sharesOf = (/** @type {string} */ name) => shares(patchesOf(drawnOf(packs[name])));
    const { table, fittedScale, look } = lookOfPanels(), patches = isShared ? sharesOf(method) : patchesOf(visibleValues);
    const scale = isShared
      ? fittedScale(
          Object.keys(packs).map((name) => withoutNaN(sharesOf(name))),
          { low: 0 },
        )
      : fittedScale([withoutNaN(patches)], { signed: isSigned });
    const canvas = createCanvas(320, Math.round(320 * pane.painter.ratio));
    pane.painter.paint(canvas, patches, scale, table, look);
    const open = createButton({
      className: "vx-button",
      textContent: "Show",
      onclick: () => chooseMap(pane.index, method, byMethod[method]),
      "aria-label": `Show ${title} on the picture`,
    });
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${title}: strongest at ${nameOf(queryOf(pane.attention.strongest(visibleValues), pane.facts))}`);
    const caption = create(
      "figcaption",
      {},
      create("b", { textContent: title }),
      create("p", { className: "vx-asked", textContent: differenceOfMethod(method, question, pane.facts, pane.model) }),
      create("p", { textContent: interpretation }),
      open,
      scoresOf(method, this.comparison, isUnfolded),
    );
    return create("figure", { className: "vx-compared", dataset: { method } }, canvas, caption);
  }

  // ---- switching off ----

  /**
   * What the last ranking says of a head.
   * @param {number} layer
   * @param {number} head
   */
  changeWithout(layer, head) {
    return this.ranking ? signed(UNIT_TEXTS[this.ranking.unit].change(-this.ranking.drops[layer][head])) : "";
  }

  rank() {
    const { uid } = activePane().facts, target = activeTarget();
    runInPanel(
      "rank",
      JSON.stringify([uid, target]),
      { kind: "rank", uid, target },
      (/** @type {any} */ reply) => this.showRanking(reply),
      sayOfSwitches,
    );
  }

  /** @param {any} reply of the request; null takes the ranking away */
  showRanking(reply) {
    this.ranking = reply;
    sayOfSwitches(reply ? this.rankingSentence(reply) : "");
    store.refresh();
  }

  /** @param {any} reply */
  rankingSentence(reply) {
    const best = reply.drops
      .flatMap((/** @type {number[]} */ row, /** @type {number} */ layer) =>
        row.map((/** @type {any} */ drop, /** @type {number} */ head) => ({ layer, head, drop })),
      )
      .sort((/** @type {any} */ a, /** @type {any} */ b) => b.drop - a.drop);
    const { change } = UNIT_TEXTS[reply.unit];
    const named = best
      .slice(0, 5)
      .map((/** @type {any} */ { layer, head, drop }) => `layer ${layer}, head ${head} (${signed(change(-drop))})`);
    return `The ${reply.unit} of ${reply.target_name} with one head off at a time and all others on: ` +
      `orange where it falls, blue where it rises, of the whole picture. Most needed: ${named.join("; ")}.`;
  }

  /** Request the predictions without the heads and patches that are off. */
  requestChanges() {
    const view = activeView(), pane = activePane();
    if (!pane.facts || pane.key !== analysisKey(view)) return;
    const { heads_off: heads, patches_off: patches } = view, target = activeTarget(), { uid } = pane.facts, { index } = pane;
    const names = namesOfHidden(view), key = names ? JSON.stringify([uid, index, heads, patches, target]) : "";
    if (key === this.requested) return;
    this.requested = key;
    const known = key && knownChanges(view, pane.facts, target), about = { uid, index, names, heads, patches };
    if (known || !key || !backend.computes) {
      requests.drop("switch");
      return this.showChanges(known ? { ...known, ...about } : null);
    }
    // Of another picture or map, it says nothing of this one.
    if (page.changes?.uid !== uid || page.changes.index !== index) this.showChanges(null);
    const body = { kind: "switch", uid, heads, patches, target };
    // What is hidden may be other squares by then, or none.
    const show = (/** @type {any} */ reply) => this.requested === key && this.showChanges({ ...reply, ...about });
    runInPanel("switch", key, body, show, (/** @type {string} */ text) => {
      this.showChanges(null);
      sayOfSwitches(text);
    });
  }

  /**
   * @param {any} reply of the request, or null if everything is on
   */
  showChanges(reply) {
    page.changes = reply;
    find("changes").hidden = !reply;
    if (activePane().facts) {
      showAnswer();
      showPredictions();
    }
    if (!reply) return;
    const { level, change } = UNIT_TEXTS[reply.unit];
    find("changes").querySelector("tbody").replaceChildren(...reply.rows.map((/** @type {any} */ { name, before, after }) => {
      const difference = after - before;
      return tableRow([name, level(before), level(after), Math.abs(difference) < 1e-9 ? "no change" : signed(change(difference))]);
    }));
  }
}

/**
 * What is known already of what is hidden: of the squares that were searched for, and in a saved page of what was hidden there.
 * @param {View} view
 * @param {Facts} facts
 * @param {any} target
 */
function knownChanges({ heads_off: heads, patches_off: patches }, { flip }, target) {
  if (flip && target === null && isEqual([heads, patches], [[], flip.patches])) return flip.changes;
  return START.changes && isEqual([heads, patches], [START.changes.heads, START.changes.patches]) ? START.changes : null;
}

/**
 * How faithful a map is, as far as it is known, folded below one line.
 * @param {string} method
 * @param {any} comparison
 * @param {boolean} isUnfolded
 */
function scoresOf(method, { scores, failure }, isUnfolded) {
  const found = scores?.maps.find((/** @type {any} */ map) => map.method === method);
  if (!found) return create("p", { textContent: failure ? "" : "Its scores follow …" });
  const { areas, beats, correlation } = found, { metrics, chance } = scores, [first] = metrics, known = Object.keys(areas).length;
  const wins = Object.values(beats).filter(Boolean).length, isWhole = Object.keys(beats).length === metrics.length;
  const summary = create("summary", {
    className: "vx-bar",
    style: `--part: ${(100 * wins) / Math.max(1, metrics.length)}%`,
    textContent: isWhole ? `better than chance by ${wins} of ${metrics.length} measures`
      : `${first.title} ${digits(areas[first.name])}; ${known} of ${metrics.length} measures, without chance, so far`,
  });
  const rows = metrics.filter((/** @type {any} */ metric) => metric.name in areas).map((/** @type {any} */ metric) => {
    const { name } = metric, beside = name in beats ? `, ${beats[name] ? "better" : "worse"} than chance (${digits(chance[name])})` : "";
    return [`${metric.title} ${metric.lower_is_better ? "↓" : "↑"}`, digits(areas[name]) + beside, metric.interpretation];
  });
  if (known === metrics.length) rows.push([
    "Weights shuffled",
    correlation === null
      ? "no rank correlation: one of the two maps is the same everywhere"
      : `rank correlation ${signed(digits(correlation))}`,
    "Rank correlation with the map of the same model with all weights shuffled (Adebayo et al. 2018): " +
      "near 1, the map does not depend on what was learnt",
  ]);
  const table = create("table", {}, ...rows.map((/** @type {string[]} */ [name, value, title]) => tableRow([name, value], title)));
  return create("details", { open: isUnfolded }, summary, table);
}
