"""The command ``vitviz probe``, which prints tables, and optionally writes pictures and numbers."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.analysis.analysis import Analysis
from vitviz.cli.options import add_image, add_parameter
from vitviz.cli.output import LINE_CHARS, write_whole
from vitviz.errors.kinds import ConfigError
from vitviz.errors.tables import text_table
from vitviz.evaluation.probes import PROBES, Findings, Probe, probe

PARAMETERS = {each.name: each for record in PROBES.values() for each in record.parameters}
"""The parameters of all probes, by name; probes share those of one name."""


def add_probe(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``vitviz probe``."""
    add_image(parser)
    parser.add_argument(
        "--probe",
        dest="names",
        action="append",
        choices=PROBES,
        default=None,
        help="one of the probes, by name; may be repeated (default: all that the model can have)",
    )
    for parameter in PARAMETERS.values():
        add_parameter(parser, parameter)
    numbers = "NPZ file to write, with every measurement"
    parser.add_argument("-o", "--output", type=Path, default=None, help=numbers)
    folder = "folder to write pictures into, one for each measurement that has one"
    parser.add_argument("--pictures", type=Path, default=None, metavar="FOLDER", help=folder)
    lines = [f"  {record.name:<20} {record.interpretation}" for record in PROBES.values()]
    parser.epilog = "probes:\n" + "\n".join(lines)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter


def run_probes(
    analysis: Analysis, names: Sequence[str] | None, output: Path | None, folder: Path | None, **parameters: Any
) -> None:
    """Print the findings of probes, and optionally write them.

    Args:
        analysis: of one image.
        names: of the probes; by default all that the model supports.
        output: file for the numbers, if any.
        folder: folder for the pictures, if any.
        parameters: of all probes; each uses only its own.

    Raises:
        MethodError: the model does not support a probe that is requested by name.
        QueryError: it has no such layer or token.
        ConfigError: a file cannot be written.
    """
    config = analysis.model.network.config
    results = []
    for name in dict.fromkeys(names or PROBES):
        record = PROBES[name]
        refusal = record.refusal(config)
        if names is None and refusal is not None:
            print(f"{record.title}: {refusal}.\n")
            continue
        arguments = {each.name: parameters[each.name] for each in record.parameters}
        results.append(probe(analysis, name, **arguments))
        _print_findings(record, results[-1])
    if output is not None:
        _write_numbers(results, output)
    if folder is not None:
        _write_pictures(results, analysis, folder)


def _print_findings(record: Probe, findings: Findings) -> None:
    print(f"{record.title} ({record.name})")
    print(textwrap.fill(record.interpretation, LINE_CHARS))
    print(textwrap.fill(findings.summary, LINE_CHARS))
    if findings.rows:
        print()
        print(textwrap.indent(text_table((findings.heading, *findings.rows)), "  "))
    print()


def _write_numbers(results: Sequence[Findings], output: Path) -> None:
    arrays: dict[str, Any] = {name: array for findings in results for name, array in findings.arrays().items()}
    write_whole(output, lambda file: np.savez_compressed(file, **arrays))
    print(f"{len(arrays)} measurement{'s' * (len(arrays) != 1)} written to {output}")


def _write_pictures(results: Sequence[Findings], analysis: Analysis, folder: Path) -> None:
    # Imported here, since matplotlib takes long to import and most commands draw nothing.
    from vitviz.evaluation.probes.pictures import pictures
    from vitviz.visualization.drawing import save_figure

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be written ({error.strerror})") from None
    count = 0
    for findings in results:
        for name, figure in pictures(findings, analysis.trace.layout).items():
            save = partial(save_figure, figure, dpi=150, format="png")
            write_whole(folder / f"{findings.probe}.{name}.png", save)
            count += 1
    print(f"{count} picture{'s' * (count != 1)} written to {folder}")
