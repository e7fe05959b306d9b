"""The page's modules become one, which a browser reads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.node import NODE
from vitviz.ui.explorer import assets

MAX_LINE = 140


def test_all_modules_are_one_without_a_name_twice(tmp_path: Path) -> None:
    """Two modules with the same name at the top would be no program; node says so without running it."""
    for entry in assets.ENTRIES:
        bundle = tmp_path / "bundle.mjs"
        bundle.write_text(assets.script(entry))
        checked = subprocess.run([str(NODE), "--check", str(bundle)], capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    files = {str(path.relative_to(assets.FOLDER)) for path in assets.FOLDER.rglob("*.js")}
    assert files == {name for entry in assets.ENTRIES for name in assets.modules(entry)}


def test_lines_are_short_enough_to_read() -> None:
    long = [
        f"{module.name}:{number}"
        for module in assets.FOLDER.rglob("*")
        if module.suffix in {".js", ".ts", ".css", ".html"}
        for number, line in enumerate(module.read_text().splitlines(), 1)
        if len(line) > MAX_LINE
    ]
    assert long == []


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"a.js": 'import { b } from "./b.js";\n', "b.js": 'import { a } from "./a.js";\n'}, "in a circle: a.js, b.js"),
        ({"a.js": 'import * as b from "./b.js";\n'}, "a.js: expected imports as"),
        ({"a.js": "const a = 1;\nexport { a };\n"}, "a.js: expected imports as"),
    ],
)
def test_other_forms_are_refused(
    files: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(assets, "FOLDER", tmp_path)
    assets.template.cache_clear()
    with pytest.raises(ValueError, match=message):
        assets.script("a.js")
    assets.template.cache_clear()
