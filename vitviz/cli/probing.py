"""The command ``vitviz probe``, which prints tables, and optionally writes pictures and numbers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitviz.analysis.analysis import Analysis
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.picture_files import analysis_of, find_picture, take_settings
from vitviz.cli.printing import LINE_CHARS, check_output, make_folder, note, print_json, show, write_whole
from vitviz.errors.kinds import ConfigError
from vitviz.errors.messages import choices
from vitviz.errors.tables import text_table
from vitviz.evaluation.probes import PROBES, Findings, Probe, probe

PARAMETERS = {each.name: each for record in PROBES.values() for each in record.parameters}
"""The parameters of all probes, by name; probes share those of one name."""


def run(
    image: str,
    names: Sequence[str] | None,
    output: Path | None,
    pictures: Path | None,
    json: bool,
    **options: Any,
) -> None:
    """Print the findings of probes, and write them with ``--output``.

    Raises:
        MethodError: the model does not support a probe that is requested by name.
        QueryError: it has no such layer or token.
        ConfigError: a file cannot be written, or a parameter is of other probes than those by name.
    """
    picture = find_picture(image)
    check_output(output, image, ".npz")
    parameters = {name: options.pop(name) for name in PARAMETERS}
    legal = dict.fromkeys(f"--{each.name}" for name in names or PROBES for each in PROBES[name].parameters)
    for name, value in parameters.items():
        if f"--{name}" not in legal and value != PARAMETERS[name].default:
            raise ConfigError(f"--{name}: no option of --probe {' or '.join(names or ())}; expected {choices(legal)}")
    settings = take_settings(options)
    analysis = analysis_of(picture, load_with_bar(**options), **settings)
    results, refusals = [], {}
    for name in dict.fromkeys(names or PROBES):
        record = PROBES[name]
        refusal = record.refusal(analysis.model.network.config)
        if names is None and refusal is not None:
            refusals[name] = refusal
            if not json:
                show(f"{record.title}: {refusal}.\n")
            continue
        results.append(probe(analysis, name, **{each.name: parameters[each.name] for each in record.parameters}))
        if not json:
            _print_findings(record, results[-1])
    if json:
        probes = {findings.probe: _record(findings) for findings in results}
        print_json({"image": image, "model": analysis.model.name, "probes": probes, "not_applicable": refusals})
    if output is not None:
        _write_numbers(results, output)
    if pictures is not None:
        _write_pictures(results, analysis, pictures)


def _record(findings: Findings) -> dict[str, Any]:
    """What ``--json`` prints of a probe."""
    return {
        "summary": findings.summary,
        "measurements": {
            name: {"axes": list(each.axes), "quantity": each.quantity, "names": each.names, "values": each.values}
            for name, each in findings.measurements.items()
        },
    }


def _print_findings(record: Probe, findings: Findings) -> None:
    texts = (textwrap.fill(text, LINE_CHARS) for text in (record.interpretation, findings.summary))
    table = [f"\n{textwrap.indent(text_table((findings.heading, *findings.rows)), '  ')}"] * bool(findings.rows)
    show("\n".join([f"{record.title} ({record.name})", *texts, *table, ""]))


def _write_numbers(results: Sequence[Findings], output: Path) -> None:
    arrays: dict[str, Any] = {name: array for findings in results for name, array in findings.arrays().items()}
    write_whole(output, lambda file: np.savez_compressed(file, **arrays))
    note(f"{len(arrays)} measurement{'s' * (len(arrays) != 1)} written to {output}")


def _write_pictures(results: Sequence[Findings], analysis: Analysis, folder: Path) -> None:
    # Imported here, since matplotlib takes long to import and most commands draw nothing.
    from vitviz.evaluation.probes.probe_figures import pictures

    make_folder(folder)
    figures = {
        f"{findings.probe}.{name}.png": figure
        for findings in results
        for name, figure in pictures(findings, analysis.trace.layout).items()
    }
    for name, figure in figures.items():
        write_whole(folder / name, partial(figure.savefig, dpi=150, format="png"))
    note(f"{len(figures)} picture{'s' * (len(figures) != 1)} written to {folder}")
