"""Every command and every option says what it does."""

from __future__ import annotations

import argparse
import re

import pytest

from tests.support.commands import Capture, command_of
from vitviz import METHODS
from vitviz.attention.precision import PRECISIONS
from vitviz.cli.batching import map_request
from vitviz.cli.command import _parser, main
from vitviz.weights import BUNDLED, FAMILIES

# Help.


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of every command by its name, and the whole one as ``""``."""
    whole = _parser()
    action = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    return {"": whole, **action.choices}


COMMANDS = list(parsers())


def test_there_is_a_command_for_every_method() -> None:
    assert set(COMMANDS) == {
        "",
        *map(command_of, METHODS),
        "video",
        "models",
        "inspect",
        "verify",
        "app",
        "explore",
        "probe",
        "batch",
        "atlas",
        "evaluate",
        "evaluate-methods",
        "evaluate-attention",
        "check-methods",
        "describe-heads",
        "train",
    }


@pytest.mark.parametrize(
    "command",
    [*map(command_of, METHODS), "inspect", "app", "evaluate", "evaluate-attention", "check-methods", "describe-heads"],
)
def test_every_command_that_opens_a_checkpoint_takes_any(command: str) -> None:
    actions = {action.dest: action for action in parsers()[command]._actions}
    assert {"checkpoint", "family", "overrides"} <= actions.keys()
    assert all(family.name in str(actions["family"].help) for family in FAMILIES)
    assert ({"device", "precision"} <= actions.keys()) == (command != "inspect"), "to be looked at, it computes nothing"
    if command != "inspect":
        assert actions["checkpoint"].default == BUNDLED[0]
        assert actions["precision"].choices == PRECISIONS


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
        assert map_request(example).parameters


def test_the_list_of_commands_says_what_each_does(capsys: Capture) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    whole = parsers()[""]
    action = next(action for action in whole._actions if isinstance(action, argparse._SubParsersAction))
    explained = {part.dest: part.help for part in action._choices_actions}
    assert set(explained) == set(action.choices)
    assert all(f"{name} {text}" in shown for name, text in explained.items())
