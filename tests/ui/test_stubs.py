"""Gradio is imported without the stubs that it would write."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.example import ROOT

pytestmark = pytest.mark.process

# How many pieces of source are cut out for stubs while the app is imported, and then by Gradio's own function.
COUNTED = """import ast, importlib
real, calls = ast.get_source_segment, []
ast.get_source_segment = lambda *given, **options: calls.append(1) or real(*given, **options)
import vitviz.ui
print(len(calls))
import gradio
stubs = importlib.reload(gradio.component_meta)
stubs.create_or_modify_pyi(gradio.Textbox, "Textbox", gradio.Textbox.EVENTS)
print(len(calls))"""


def test_no_stub_is_written_while_the_app_is_imported() -> None:
    command = [sys.executable, "-c", COUNTED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported, otherwise = map(int, done.stdout.split())
    assert imported == 0 < otherwise
    assert not list((ROOT / "vitviz").rglob("*.pyi"))
