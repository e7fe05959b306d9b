"""Writes the tables of docs/ that the code can make: ``python -m docs.site.tables``. A test holds the pages to them."""

from __future__ import annotations

import inspect
import itertools
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ByteSize

import vitviz
from vitviz import METHODS
from vitviz.evaluation.probes import AXES, PROBES
from vitviz.system import strangers
from vitviz.ui.holdings import STORES
from vitviz.ui.server.settings import PREFIX, ServerSettings
from vitviz.visualization import SCALES
from vitviz.visualization.scales import AUTOMATIC

DOCS = Path(__file__).resolve().parents[1]


def names() -> str:
    """The public names of vitviz, each with the first sentence of its docstring."""
    rows = []
    for name in vitviz.__all__:
        value = getattr(vitviz, name)
        if name == "METHODS":
            continue
        first = (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")
        plain = re.sub(r":\w+:`[~.]?(?:vitviz\.)?([^`]+)`", r"`\1`", first).replace("``", "`").replace("|", "\\|")
        rows.append((f"`{name}`", plain))
    return _table(("name", "what it is"), rows)


def methods() -> str:
    """The methods, with their parameters, sources and how to read their maps."""
    rows = [
        (f"{each.title} (`{each.name}`)", _names(each.parameters), each.citation, each.interpretation)
        for each in METHODS.values()
    ]
    return _table(("method", "parameters", "source", "how to read it"), rows)


def scales() -> str:
    """The scales, and what each does."""
    rows = [(f"{each.title} (`{each.name}`)", each.help) for each in SCALES.values()]
    return _table(("scale", "what it does"), [("Automatic", AUTOMATIC), *rows])


def probes() -> str:
    """The probes, with what they need, their sources and how to read them."""
    needs = {"trace": "the trace", "tokens": "one more forward pass", "model": "the weights alone"}
    rows = [
        (
            f"{each.title} (`{each.name}`)",
            _names(each.parameters),
            needs[each.requires],
            each.citation,
            each.interpretation,
        )
        for each in PROBES.values()
    ]
    return _table(("probe", "parameters", "computed from", "source", "how to read it"), rows)


def axes() -> str:
    """The axes of measurements, and what each counts."""
    return _table(("axis", "what it counts"), [(f"`{name}`", counts) for name, counts in AXES.items()])


def settings() -> str:
    """The variables of the app, with their defaults."""
    rows = []
    for name, field in ServerSettings.model_fields.items():
        default = field.default if field.default_factory is None else None
        if isinstance(default, ByteSize):
            default = default.human_readable(separator=" ")
        shown = "" if default is None else f"`{int(default) if isinstance(default, bool) else default}`"
        rows.append((f"`{PREFIX}{name.upper()}`", shown, str(field.description)))
    return _table(("variable", "default", "what it sets"), rows)


def kept() -> str:
    """What the app keeps for visitors, and what counts how much."""
    rows = [(name, store.bound, store.counts) for name, store in STORES.items()]
    return _table(("kept", "bound", "each counts"), rows)


def limits() -> str:
    """What a stranger may do: each limit, and the attack that it stops, from the comments beside them."""
    rows = []
    lines = inspect.getsource(strangers).splitlines()
    for comment, line in itertools.pairwise(lines):
        if found := re.match(r"([A-Z_]+) = ", line):
            what, _, stops = comment.removeprefix("# ").partition("; ")
            value = getattr(strangers, found[1])
            rows.append((what, _size(value) if "Bytes" in what else f"{value:,.10g}", stops))
    return _table(("limit", "value", "stops"), rows)


def _size(count: int) -> str:
    """A number of bytes in the largest unit that gives a short number."""
    names = ("GiB", "MiB", "KiB", "bytes")
    unit, name = next(pair for pair in zip((2**30, 2**20, 2**10, 1), names, strict=True) if count >= pair[0])
    return f"{count / unit:g} {name}"


def _names(parameters: Iterable[Any]) -> str:
    return ", ".join(f"`{each.name}`" for each in parameters) or "–"


def _table(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))


# A page, the name of the marks in it, and what makes the table between them.
TABLES = (
    ("python.md", "names", names),
    ("methods.md", "methods", methods),
    ("methods.md", "scales", scales),
    ("methods.md", "probes", probes),
    ("methods.md", "axes", axes),
    ("hosting.md", "settings", settings),
    ("hosting.md", "kept", kept),
    ("hosting.md", "limits", limits),
)


def with_table(text: str, name: str, table: str) -> str:
    """A document with another table between its marks."""
    start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = text.partition(start)
    return f"{before}{start}{table}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write all tables into their pages."""
    for file, name, make in TABLES:
        path = DOCS / file
        path.write_text(with_table(path.read_text(), name, make()))


if __name__ == "__main__":
    main()
