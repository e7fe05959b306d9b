"""No room of the house grows unnoticed."""

from __future__ import annotations

import ast
import re
from collections import Counter

from tests.support.example import ROOT

# Python statements, without docstrings and imports, rounded up to tens. A room that becomes lighter takes its number
# down with it.
MOST = {
    "analysis": 490,
    "attention": 590,
    "attribution": 860,
    "cli": 830,
    "datasets": 1200,
    "errors": 260,
    "evaluation": 700,
    "features": 260,
    "images": 990,
    "language": 580,
    "metrics": 220,
    "models": 2520,
    "system": 140,
    "training": 430,
    "ui": 3230,
    "video": 600,
    "visualization": 860,
    "vitviz": 200,
    "weights": 2480,
    "worker": 220,
}
# Statements of the page's modules, by folder: semicolons, and braces that open a block; imports and comments apart.
MOST_SCRIPT = {"page": 4160, "device": 2140}


def statements(text: str) -> int:
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)]
    texts = [node for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
    left_out = sum(isinstance(node.value.value, str) for node in texts)
    return len(nodes) - left_out - sum(isinstance(node, ast.Import | ast.ImportFrom) for node in nodes)


def script_statements(text: str) -> int:
    text = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*import\b[^;]*;", "", text, flags=re.MULTILINE)
    return text.count(";") + len(re.findall(r"[)>]\s*\{", text))


def test_rooms_weigh_no_more_than_they_did() -> None:
    weights = Counter[str]()
    for path in (ROOT / "vitviz").rglob("*.py"):
        parts = path.relative_to(ROOT / "vitviz").parts
        weights[parts[0] if len(parts) > 1 else "vitviz"] += statements(path.read_text(encoding="utf-8"))
    assert weights.keys() == MOST.keys()
    heavier = {room: weight for room, weight in weights.items() if weight > MOST[room]}
    assert not heavier, f"more than {[MOST[room] for room in heavier]}: take out what the new replaces, or say here why"


def test_the_page_weighs_no_more_than_it_did() -> None:
    weights = Counter[str]()
    for path in (ROOT / "vitviz" / "ui" / "page").rglob("*.js"):
        weights[path.parent.name] += script_statements(path.read_text(encoding="utf-8"))
    assert weights.keys() == MOST_SCRIPT.keys()
    heavier = {folder: weight for folder, weight in weights.items() if weight > MOST_SCRIPT[folder]}
    assert not heavier, f"more than {[MOST_SCRIPT[folder] for folder in heavier]}: simplify, or say here why"
