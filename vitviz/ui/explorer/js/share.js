// What is shown as a link, and as lines of Python.

const LOOKS = { colormap: String, opacity: Number, smooth: Boolean, grid: Boolean, shared: Boolean, divider: Number };

// Layer, head and map of the second pane have names of their own.
const SECOND = "second.";

/**
 * The part of a link behind #: choices of the shown panes, the first one's token, and the look where it is another
 * than the `plain` one.
 */
function writeLink(panes, token, look, plain) {
  const words = new URLSearchParams();
  panes.forEach(({ choice: { layer, head, direction } }, index) => {
    const before = index ? SECOND : "";
    words.set(`${before}layer`, layer);
    words.set(`${before}head`, head);
    words.set(`${before}map`, direction);
  });
  words.set("token", tokenWord(panes[0], token));
  for (const name of ["view", ...Object.keys(LOOKS)]) if (look[name] !== plain[name]) words.set(name, look[name]);
  return words.toString();
}

/** The choices of a pane in a link; what is no legal value is left out. */
function readChoice(words, before, facts) {
  const choice = {}, [layer, head, direction] = ["layer", "head", "map"].map((name) => words.get(before + name));
  if (/^\d+$/.test(layer ?? "") && Number(layer) < facts.layers) choice.layer = Number(layer);
  if (head in FUSIONS) choice.head = head;
  else if (/^\d+$/.test(head ?? "") && Number(head) < facts.heads) choice.head = Number(head);
  if (direction && offers(facts, direction)) choice.direction = direction;
  return choice;
}

/** A link, read: choices of both panes, the token and the look. `second` has the facts of the second pane. */
function readLink(text, facts, second, look, colours) {
  const words = new URLSearchParams(text), shown = {};
  if (["one", "slide", "two", "difference"].includes(words.get("view"))) shown.view = words.get("view");
  for (const [name, type] of Object.entries(LOOKS)) {
    const said = words.get(name);
    if (said === null) continue;
    if (type === Boolean) shown[name] = said === "true";
    else if (type === String ? said in colours : Number(said) >= 0 && Number(said) <= 1) shown[name] = type(said);
  }
  const choices = [readChoice(words, "", facts), readChoice(words, SECOND, second)];
  return { choices, look: { ...look, ...shown }, token: tokenOf(words.get("token"), facts) };
}

/** A token in a link: the name of a prefix token, or row and column of a patch. */
function tokenWord(pane, token) {
  return token < pane.attention.prefix ? pane.facts.prefix[token] : pane.attention.cell(token).join(",");
}

function tokenOf(word, facts) {
  const index = facts.prefix.indexOf(word), cell = /^(\d{1,4}),(\d{1,4})$/.exec(word ?? "");
  if (index >= 0) return index;
  if (!cell || Number(cell[1]) >= facts.rows || Number(cell[2]) >= facts.columns) return null;
  return facts.prefix.length + Number(cell[1]) * facts.columns + Number(cell[2]);
}

/** The lines that make the shown picture with the library. */
function asPython(pane, token, look) {
  const { facts, attention, choice } = pane, text = (value) => JSON.stringify(value);
  const query = token < attention.prefix ? text(facts.prefix[token]) : `(${attention.cell(token).join(", ")})`;
  const head = typeof choice.head === "number" ? choice.head : text(choice.head);
  const column = choice.direction === "column" ? ', direction="column"' : "";
  const live = `attention(layer=${choice.layer}, head=${head}, query=${query}${column})`;
  const other = choice.direction === "rollout" ? `rollout(query=${query})` : `map(${text(choice.direction.slice(4))})`;
  const map = LIVE.includes(choice.direction) ? live : other;
  const words = (flag) => (flag ? "True" : "False");
  const style = `Style(${text(look.colormap)}, opacity=${look.opacity}, smooth=${words(look.smooth)}, grid=${words(look.grid)})`;
  const mark = token < attention.prefix ? "" : `, mark=${query}`;
  const sight = [`fit=${text(facts.fit)}`, ...(facts.resolution ? [`resolution=${facts.resolution}`] : [])].join(", ");
  return [
    "import vitviz",
    "from vitviz import Style",
    "",
    `model = vitviz.load(${facts.source ? text(facts.source) : ""})`,
    `analysis = vitviz.analyze(${text(facts.name)}, model, ${sight})`,
    `heatmap = analysis.${map}`,
    `heatmap.overlay(${style}${mark}).save("attention.png")`,
    "",
  ].join("\n");
}
