"""Gradio is imported without the stubs that it would write."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.driver import ROOT

pytestmark = pytest.mark.process

COUNTED = """import ast
real, calls = ast.get_source_segment, []
ast.get_source_segment = lambda *given, **options: calls.append(1) or real(*given, **options)
import {module}
print(len(calls))"""


def segments(module: str) -> int:
    """How many pieces of source are cut out for stubs while a module is imported."""
    command = [sys.executable, "-c", COUNTED.format(module=module)]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_no_stub_is_written_while_the_app_is_imported() -> None:
    assert segments("vitviz.ui") == 0
    # So it would be otherwise.
    assert segments("gradio") > 50
    assert not list((ROOT / "vitviz").rglob("*.pyi"))
