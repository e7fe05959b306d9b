"""The page's modules become one, which a browser reads."""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path

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


def test_modules_import_and_export_in_the_forms_that_are_taken_out_and_in_no_circle() -> None:
    for entry in assets.ENTRIES:
        assert re.findall(r"^(?:import|export)\b.*", assets.script(entry), re.MULTILINE) == []
        order = assets.modules(entry)
        for place, name in enumerate(order):
            imports = assets.IMPORT.findall(assets.template(name))
            before = {posixpath.relpath(each, posixpath.dirname(name)) for each in order[:place]}
            assert {posixpath.normpath(each) for each in imports} <= before, name
