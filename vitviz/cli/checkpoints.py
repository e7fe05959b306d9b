"""How the command opens checkpoints, and the commands that list, describe and verify them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from vitviz.cli.printing import LINE_CHARS, STREAMS, print_json, spelled
from vitviz.errors.messages import listing
from vitviz.weights import Model, list_models, resources
from vitviz.weights.checkpoint_sources import read_source
from vitviz.weights.hub import is_cached
from vitviz.weights.overrides import Stated, parse_overrides
from vitviz.weights.read import Reading
from vitviz.weights.verify import PHOTO, verify

# What --json prints of a checkpoint that has a name.
FIELDS = ("name", "family", "title", "repository", "megabytes", "licence", "input_size", "known_for")


def read_with_bar(checkpoint: str, family: str | None, overrides: list[str], **options: Any) -> Reading:
    """Read a checkpoint, with the bars of the hub's client while it is downloaded, unless the command is quiet."""
    report = (lambda _: None) if STREAMS.quiet else None
    return read_source(checkpoint, Stated.of(family, **parse_overrides(overrides)), report=report, **options)


def load_with_bar(checkpoint: str, family: str | None, overrides: list[str], device: str, precision: str) -> Model:
    """Load the model of a checkpoint, with a progress bar while it is downloaded."""
    return read_with_bar(checkpoint, family, overrides, device=device, precision=precision).model


def run_models(json: bool) -> None:
    """List the checkpoints that have a name."""
    models = list_models()
    there = {each.name for each in models if not each.repository or is_cached(each.repository)}
    if json:
        print_json(
            [{name: getattr(each, name) for name in FIELDS} | {"downloaded": each.name in there} for each in models]
        )
        return
    family = known_for = ""
    for model in models:
        if model.family != family:
            print(f"\n{model.family}")
        # Print a description that several models of a family share only once.
        if (model.family, model.known_for) != (family, known_for):
            print(textwrap.fill(model.known_for, LINE_CHARS, initial_indent="  ", subsequent_indent="  "))
        family, known_for = model.family, model.known_for
        cost = "downloaded" if model.name in there else f"{model.megabytes:,.0f} MB to download"
        download = f", {cost}\n  {'':<24} hf:{model.repository}" if model.repository else ""
        print(f"  {model.name:<24} {model.title}, {model.input_size} pixels, {model.licence}{download}")


def run_inspect(checkpoint: str, family: str | None, overrides: list[str]) -> None:
    """Print what a checkpoint is, and how that is known."""
    reading = read_with_bar(checkpoint, family, overrides)
    # Group the keys, since hundreds may be ignored for few reasons.
    ignored_keys: dict[str, list[str]] = {}
    for key, reason in reading.ignored.items():
        ignored_keys.setdefault(reason, []).append(key)
    facts = [
        (check.fact, check.value, f"{'assumed: ' * check.assumed}{spelled(check.source)}") for check in reading.checks
    ]
    print(f"{reading.model.name}: {reading.model.parameters:,} parameters\n")
    _print_table(
        [
            ("fact", "value", "how it is known"),
            *facts,
            *(("not needed", listing(keys, 2), reason) for reason, keys in ignored_keys.items()),
        ]
    )
    print(
        f"\nEvery {'other ' * bool(ignored_keys)}tensor of the file has its place, and the right shape."
        if reading.model.engine == "own"
        else "\nIts package built it, and each call of its attention was verified against what it computes."
    )
    if reading.model.assumptions:
        print("No file states what is assumed; an option of its name corrects it.")


def run_verify(
    checkpoint: str, family: str | None, overrides: list[str], image: Path | None, sizes: list[tuple[int, int]]
) -> int:
    """Compare a checkpoint with its package; the exit status says whether all numbers match."""
    verification = verify(read_with_bar(checkpoint, family, overrides), image or resources("assets") / PHOTO, sizes)
    if not verification.comparisons:
        print(f"{verification.name}: nothing to compare: {'; '.join(verification.not_compared)}")
        return 0
    print(f"{verification.name} beside {verification.reference}\n")
    _print_table(verification.rows)
    print(
        *(f"not compared: {each}" for each in verification.not_compared),
        "",
        f"{'Every' if verification.exact else 'Not every'} number matches the package's.",
        sep="\n",
    )
    return 0 if verification.exact else 1


def _print_table(rows: Sequence[tuple[str, str, str]]) -> None:
    """Print three columns; long cells are wrapped."""
    first = max(len(row[0]) for row in rows)
    second = min(max(len(row[1]) for row in rows), 41)
    widths = (first, second, LINE_CHARS - first - second - 4)
    for row in rows:
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for fact, value, source in zip_longest(*cells, fillvalue=""):
            print(f"{fact:<{first}}  {value:<{second}}  {source}".rstrip())
