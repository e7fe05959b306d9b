"""Every command and every option says what it does."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys

import pytest

from tests.support.commands import Capture, command_of
from tests.support.example import ROOT
from vitviz import METHODS
from vitviz.attention.precision import PRECISIONS
from vitviz.cli.command import main
from vitviz.cli.declarations import commands
from vitviz.cli.grammar import FILE, map_request, stored_text
from vitviz.cli.parsing import build
from vitviz.weights import BUNDLED
from vitviz.weights.families import FAMILIES
from vitviz.weights.overrides import OVERRIDES

# Help.


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command by its name, and the whole one as ``""``."""
    whole, parsers = build()
    return {"": whole, **parsers}


COMMANDS = list(parsers())


def test_the_stored_options_are_those_of_the_tables() -> None:
    assert FILE.read_text(encoding="utf-8") == stored_text(commands()), "python -m vitviz.cli.declarations"


WITHOUT_TORCH = """
import sys
from vitviz.cli import main
statuses = []
for line in ("--help", "--version", "rollout --help", "rollout a.png --colour x", "batch a b --map rolout", ""):
    try:
        main(line.split())
    except SystemExit as end:
        statuses.append(end.code)
import vitviz.cli.starting  # It sets what torch reads when it is imported.
print(statuses, sorted({"torch", "numpy", "scipy", "matplotlib", "PIL"} & sys.modules.keys()))
"""


@pytest.mark.process
def test_help_and_wrong_options_import_no_torch() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 2, 2, 0] []"


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained(command: str, capsys: Capture) -> None:
    for action in parsers()[command]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{command} {action.dest} has no help"
            assert len(action.help) > 10
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"] if command else ["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: vitviz {command}".rstrip())
    for action in parsers()[command]._actions:
        assert all(option in shown for option in action.option_strings)


@pytest.mark.parametrize("command", ["batch", "video"])
def test_the_examples_in_the_help_of_map_are_legal(command: str) -> None:
    action = next(action for action in parsers()[command]._actions if action.dest in ("maps", "map"))
    examples = re.findall(r"\w+:\w+=[\w.,=]+", str(action.help))
    assert examples
    for example in examples:
        assert map_request(example)[1]


@pytest.mark.parametrize(
    "command",
    [*map(command_of, METHODS), "inspect", "app", "evaluate", "evaluate-attention", "check-methods", "describe-heads"],
)
def test_every_command_that_opens_a_checkpoint_takes_any(command: str) -> None:
    actions = {(action.option_strings or [action.dest])[0]: action for action in parsers()[command]._actions}
    actions = {flag.removeprefix("--").replace("-", "_"): action for flag, action in actions.items()}
    assert {"checkpoint", "family", "ignore", *OVERRIDES} <= actions.keys()
    assert all(family.name in str(actions["family"].help) for family in FAMILIES)
    assert ({"device", "precision"} <= actions.keys()) == (command != "inspect"), "to be looked at, it computes nothing"
    if command != "inspect":
        assert actions["checkpoint"].default == BUNDLED[0]
        assert actions["precision"].choices == list(PRECISIONS)


def test_the_list_of_commands_says_what_each_does(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    whole = parsers()[""]
    action = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    explained = {part.dest: part.help for part in action._choices_actions}
    assert set(explained) == set(action.choices) - {"verify"}
    assert all(f"{name} {text}" in shown for name, text in explained.items())
