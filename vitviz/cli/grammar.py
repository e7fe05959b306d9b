"""The commands and their options, stored in ``grammar.json`` so that they are known without importing torch.

``python -m vitviz.cli.declarations`` writes the file from the tables of methods, probes, families and settings.
"""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from vitviz.errors.arguments import no_parameter, word
from vitviz.errors.kinds import MethodError
from vitviz.system.paths import user_path

FILE = Path(__file__).with_name("grammar.json")
# A comma separates parameters only before NAME=, since commas also separate the row and column of a patch.
NEXT_PARAMETER = re.compile(r",(?=\w+=)")
AUTO = "auto"
# How help writes a height and width.
SIDES = "HxW"
# A height and width in pixels, or one number; the widest sides are far beyond any real ones.
SIZE = re.compile(r"([1-9]\d{,5})(?:[x×]([1-9]\d{,5}))?")

Option: TypeAlias = tuple[list[str], dict[str, Any]]
"""The flags and settings of an option, as :meth:`argparse.ArgumentParser.add_argument` takes them, but that ``type``
and ``action`` are names in :data:`TYPES` and :data:`ACTIONS`."""


@dataclass
class Command:
    """A command.

    Args:
        name: what is typed.
        help: its line in the list of commands; empty for one that is not listed.
        run: the function that runs it, ``"MODULE:FUNCTION"`` in this package. It takes the options by name.
        fixed: arguments of the function that are no options, such as the method.
        epilog: the end of its help.
        parameters: the options that are parameters of its method.
        arguments: arguments of :meth:`argparse.ArgumentParser.add_argument`, for every option.
    """

    name: str
    help: str
    run: str
    fixed: dict[str, Any] = field(default_factory=dict)
    epilog: str = ""
    parameters: list[str] = field(default_factory=list)
    arguments: list[Option] = field(default_factory=list)

    @property
    def options(self) -> dict[str, str]:
        """The options by the names that they have in Python: ``head_fusion`` is ``--head-fusion``."""
        flags = [flag for flags, _ in self.arguments for flag in flags if flag.startswith("--")]
        return {flag.removeprefix("--").replace("-", "_"): flag for flag in flags}

    @property
    def needs_arguments(self) -> bool:
        """Whether it does nothing without further words."""
        return any(
            not flags[0].startswith("-") and settings.get("default") is None for flags, settings in self.arguments
        )

    def separator(self, parameter: str) -> str:
        """What stands between the two numbers of a pair."""
        settings = self.settings(parameter)
        return " " if settings.get("nargs") == 2 else "x" if settings.get("metavar") == SIDES else ","

    def settings(self, parameter: str) -> dict[str, Any]:
        """The settings of a parameter's option."""
        return next(settings for flags, settings in self.arguments if self.options[parameter] in flags)


# Kinds of values.


def file(text: str) -> str:
    """The path of a file that is read, or ``-`` for the standard input."""
    return os.path.expanduser(text)


def head(text: str) -> int | str:
    """A head by number, or a fusion of all."""
    return int(text) if text.removeprefix("-").isdecimal() else text


def query(text: str) -> str | int | tuple[int, int]:
    """A token by name or number, or a patch."""
    if "," in text:
        return patch(text)
    return int(text) if text.strip().isdecimal() else text


def patch(text: str) -> tuple[int, int]:
    """The row and column of a patch."""
    row, _, column = (part.strip() for part in text.partition(","))
    if not (row.isdecimal() and column.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r}: expected ROW,COLUMN, both whole numbers")
    return int(row), int(column)


def size(text: str) -> tuple[int, int]:
    """A height and width in pixels, or one number for both."""
    match = SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r}: expected HEIGHTxWIDTH or one number, in pixels")
    return int(match[1]), int(match[2] or match[1])


def box_corners(text: str) -> tuple[float, ...]:
    """The corners of a box in pixels: left, top, right and bottom."""
    try:
        left, top, right, bottom = map(float, text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: expected LEFT,TOP,RIGHT,BOTTOM, in pixels") from None
    return left, top, right, bottom


def batch_size(text: str) -> int | None:
    """A number of pictures; None for :data:`AUTO`."""
    return None if text == AUTO else int(text)


def map_request(text: str) -> tuple[str, dict[str, Any]]:
    """A method and its parameters, written as ``METHOD[:NAME=VALUE,…]``.

    Raises:
        argparse.ArgumentTypeError: there is no such method or parameter, or a value is not legal for it.
    """
    name, _, assignments = text.partition(":")
    methods = {command.fixed["method"]: command for command in stored() if "method" in command.fixed}
    try:
        command = methods[word("method", name, methods)]
        assigned = NEXT_PARAMETER.split(assignments) if assignments else []
        return name, dict(_assignment(name, command, each) for each in assigned)
    except MethodError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _assignment(method: str, command: Command, text: str) -> tuple[str, Any]:
    """A parameter of a method and its value."""
    name, sign, value = text.partition("=")
    if not sign:
        example = f"{method}:{command.parameters[0]}=…"
        raise MethodError(f"{text!r} found; expected NAME=VALUE, such as {example}")
    if name not in command.parameters:
        raise MethodError(no_parameter(method, name, command.parameters))
    settings = command.settings(name)
    is_switch = "action" in settings
    try:
        typed = (
            {"true": True, "false": False}[value.casefold()] if is_switch else TYPES[settings.get("type", "str")](value)
        )
    except (KeyError, ValueError, argparse.ArgumentTypeError):
        raise MethodError(
            f"{name} = {value!r}: expected {'true or false' if is_switch else settings['help']}"
        ) from None
    return name, word(name, typed, settings["choices"]) if "choices" in settings else typed


class Fact(argparse.Action):
    """Adds a fact about the checkpoint to those that the user states."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, value: Any, flag: str | None = None) -> None:
        name = (flag or "").removeprefix("--").replace("-", "_")
        setattr(namespace, self.dest, [*getattr(namespace, self.dest), f"{name}={value}"])


TYPES: dict[str, Callable[[str], Any]] = {
    **{
        "str": str,
        "int": int,
        "float": float,
        "path": user_path,
        "file": file,
        "head": head,
        "query": query,
        "patch": patch,
    },
    **{"size": size, "batch_size": batch_size, "map_request": map_request, "box_corners": box_corners},
}
"""Functions that read a value, by the names that options have for them."""
ACTIONS: dict[str, Any] = {"fact": Fact, "boolean": argparse.BooleanOptionalAction}
"""Actions that argparse has no name for."""


# The file.


def stored_text(commands: Iterable[Command]) -> str:
    """What is stored of commands: JSON with one command a line."""
    lines = [json.dumps(asdict(command), ensure_ascii=False) for command in commands]
    return "[\n" + ",\n".join(lines) + "\n]\n"


@cache
def stored() -> tuple[Command, ...]:
    """The commands of the file."""
    return tuple(Command(**record) for record in json.loads(FILE.read_text(encoding="utf-8")))
