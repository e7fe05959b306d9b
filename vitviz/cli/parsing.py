"""From the words of the command line to a command and its options."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import vitviz
from vitviz.cli.grammar import ACTIONS, TYPES, Command, stored
from vitviz.errors.messages import did_you_mean

WHOLE_OPTIONS = ("-h", "--help", "--version")
DESCRIPTION = "See what a Vision Transformer attends to, on your own image."


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, which suggests the command, option or choice closest to a misspelt one."""

    def error(self, message: str) -> NoReturn:
        match = re.search(r"invalid choice: '(.*)' \(choose from (.*)\)$", message)
        hint = did_you_mean(match[1], [name.strip(" '") for name in match[2].split(",")]) if match else ""
        usage = self.format_usage() if "arguments are required" in message else ""
        self.exit(2, f"{usage}{self.prog}: {message}{hint}\n")


def parse(words: Sequence[str]) -> tuple[Command, dict[str, Any]]:
    """The command, and its options by the names of its function's arguments.

    Raises:
        SystemExit: help or the version is wanted, or the words are no command.
    """
    name, *rest = words or ["--help"]
    commands = {command.name: command for command in stored()}
    # The parsers of all commands take longer than most of what is parsed.
    whole, parsers = build([commands[name]] if name in commands else stored())
    if name not in commands and name not in WHOLE_OPTIONS:
        kind, legal = ("option", WHOLE_OPTIONS) if name.startswith("-") else ("command", commands)
        whole.error(f"no {kind} {name}{did_you_mean(name, legal) or '; vitviz --help lists all'}")
    if name in commands and not rest and commands[name].needs_arguments:
        parsers[name].print_help(sys.stderr)
        whole.exit(2)
    namespace, others = whole.parse_known_args([name, *rest])
    options = vars(namespace)
    command = commands[options.pop("command")]
    unknown = [word for word in others if word.startswith("-") and word != "-"]
    if unknown:
        flag = unknown[0].partition("=")[0]
        more = did_you_mean(flag, command.options.values()) or f"; vitviz {command.name} --help lists all"
        parsers[command.name].error(f"no option {flag}{more}")
    # argparse takes pictures before the first option alone.
    if others and "images" in options and isinstance(options["images"], list):
        options["images"] += others
    elif others:
        parsers[command.name].error(
            f"{others[0]!r} is one argument too many; expected {parsers[command.name].usage}"
            + ", and a pattern such as 'photos/*.jpg' in quotes" * ("source" in options)
        )
    return command, options


def build(offered: Sequence[Command] | None = None) -> tuple[Parser, dict[str, Parser]]:
    """The parser of the whole command, and those of some commands by name; by default, of all."""
    whole = Parser("vitviz", description=DESCRIPTION, allow_abbrev=False, usage="vitviz COMMAND [OPTIONS] …")
    whole.add_argument("--version", action="version", version=f"vitviz {vitviz.__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", required=True)
    parsers = {command.name: _add(commands, command) for command in (stored() if offered is None else offered)}
    return whole, parsers


def _add(commands: Any, command: Command) -> Parser:
    form = argparse.RawDescriptionHelpFormatter if "\n" in command.epilog else argparse.HelpFormatter
    parser = commands.add_parser(
        command.name,
        prog=f"vitviz {command.name}",
        # argparse lists a command with any text, an empty one, too.
        **({"help": command.help} if command.help else {}),
        epilog=command.epilog,
        formatter_class=form,
        allow_abbrev=False,
    )
    names, groups = [], {"": parser}
    for flags, settings in command.arguments:
        group = settings.get("group", "")
        if group not in groups:
            groups[group] = parser.add_argument_group(group)
        action = groups[group].add_argument(*flags, **_as_argparse(settings))
        if not action.option_strings:
            name = f"{action.metavar or action.dest.upper()}{' …' * (action.nargs in ('+', '*'))}"
            names.append(name if action.default is None else f"[{name}]")
    parser.usage = " ".join(["vitviz", command.name, *names, "[OPTIONS]"])
    parser.set_defaults(**command.fixed)
    return parser


def _as_argparse(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of an option with functions in place of their names."""
    named = {name: value for name, value in settings.items() if name != "group"}
    if "type" in named:
        named["type"] = TYPES[named["type"]]
    if "action" in named:
        named["action"] = ACTIONS.get(named["action"], named["action"])
    # JSON has no tuples.
    if isinstance(named.get("metavar"), list):
        named["metavar"] = tuple(named["metavar"])
    return named
