"""Whatever the app keeps for visitors is in one table and counts against its bound; the rest ends with requests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.example import ROOT
from vitviz.ui.holdings import STORES, Bound, Holdings

CONTAINERS = {"dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter"}
CONTAINERS |= {"WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "Holdings"}
# Attributes that hold several values and are no rows of the table, with what bounds them.
OTHERS = {
    "the app's own, from its start on": [
        "Handlers.kinds",
        "LentGPU._networks",
        "LentGPU._numbers",
        "Models._operators",
        "Models._sources",
        "Models.named",
        "PageRoutes.routes",
    ],
    "requests under way": [
        "Line._served",
        "Line._waiting",
        "Once._locks",
        "PageRuns._runs",
        "UnderWay._places",
        "UnderWay.counts",
    ],
    "a few calls of each visitor, for a while": ["UnreadReplies._readers", "UnreadReplies._unread"],
    "a link that is being read": ["_Reader.notes"],
    "goes with its analysis": ["AnalysisService.origins", "ExplorerFiles._paths"],
    "is the table": ["Bound.held", "Bound.order", "Holdings._entries"],
}
# Functions that remember what they return: of the app's own files and models, and the key of an address.
REMEMBERING = {"class_names", "colours", "examples", "forward", "script", "static_files", "static_version", "style"}
REMEMBERING |= {"template", "_visitor_key"}


def called(node: ast.expr) -> str:
    """The name of what an expression calls."""
    while isinstance(node, ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each single assignment of a tree: its target and its value."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        for target in targets:
            value: Any = node.value  # type: ignore[attr-defined]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(target.elts, value.elts, strict=True)
            else:
                yield target, value


def stores(source: str) -> Iterator[tuple[str, ast.expr]]:
    """The attributes of a module's classes that hold several values, and what makes them."""
    for owner in ast.walk(ast.parse(source)):
        if isinstance(owner, ast.ClassDef):
            for target, value in assignments(owner):
                is_own = isinstance(target, ast.Attribute) and getattr(target.value, "id", "") == "self"
                is_literal = isinstance(value, ast.Dict | ast.List | ast.Set)
                if is_own and (is_literal or (isinstance(value, ast.Call) and called(value) in CONTAINERS)):
                    yield f"{owner.name}.{target.attr}", value  # type: ignore[attr-defined]


def test_every_store_of_the_app_is_in_the_table() -> None:
    sources = [path.read_text() for path in sorted((ROOT / "vitviz" / "ui").rglob("*.py"))]
    found = dict(each for source in sources for each in stores(source))
    kept = {name for name, value in found.items() if called(value) == "Holdings"}
    assert set(found) - kept == {name for names in OTHERS.values() for name in names}
    remembering = {
        node.name
        for source in sources
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and {called(each) for each in node.decorator_list} & {"cache", "lru_cache"}
    }
    assert remembering == REMEMBERING
    # Each row of the table is made somewhere, by its name.
    calls = [node for source in sources for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    names = [call.args[1].value for call in calls if called(call) == "Holdings" and len(call.args) > 1]  # type: ignore
    assert sorted(names) == sorted(STORES)


def test_no_store_is_made_that_is_not_in_the_table() -> None:
    with pytest.raises(KeyError):
        Holdings[str](Bound(1), "secrets")
    assert dict(stores("class A:\n    def __init__(self):\n        self.a, self.b = {}, 1\n")).keys() == {"A.a"}
