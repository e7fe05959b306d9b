"""The commands that measure methods, heads and attention over a folder of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitviz.attribution.methods import MethodName
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.printing import bar, check_output, print_error, show, write_whole
from vitviz.weights import Model


def run_evaluate_methods(
    images: Path,
    count: int,
    resolution: int | None,
    output: Path | None,
    methods: list[MethodName] | None,
    **load_options: Any,
) -> None:
    from vitviz.evaluation.method_table import areas, table

    model, paths, method_areas = _measured(
        images, count, output, areas, load_options, methods=methods, resolution=resolution
    )
    _write(output, model, images, paths, resolution=resolution, areas=method_areas)
    show(table(method_areas))


def run_check_methods(
    images: Path,
    count: int,
    resolution: int | None,
    output: Path | None,
    methods: list[MethodName] | None,
    **load_options: Any,
) -> None:
    from vitviz.evaluation.method_table import cascade_table, cascades
    from vitviz.evaluation.randomization import INTERPRETATION, steps

    model, paths, correlations = _measured(
        images, count, output, cascades, load_options, methods=methods, resolution=resolution
    )
    _write(
        output,
        model,
        images,
        paths,
        resolution=resolution,
        steps=steps(model.network.config.depth),
        correlations=correlations,
    )
    show(f"{cascade_table(correlations)}\n\n{INTERPRETATION}")


def run_describe_heads(
    images: Path, count: int, resolution: int | None, output: Path | None, picture: Path | None, **load_options: Any
) -> None:
    from vitviz.evaluation.head_picture import heads_picture
    from vitviz.evaluation.head_table import head_tables, measure_heads_over

    check_output(picture, "", ".png", ".svg", ".pdf")
    model, paths, heads = _measured(images, count, output, measure_heads_over, load_options, resolution=resolution)
    _write(output, model, images, paths, resolution=resolution, heads=heads)
    if picture is not None:
        write_whole(picture, partial(heads_picture(heads).savefig, format=picture.suffix[1:] or "png"))
    show(head_tables(heads))


def run_evaluate_attention(
    images: Path, count: int, resolution: int | None, output: Path | None, **load_options: Any
) -> None:
    from vitviz.evaluation.objects import attention_on_objects

    model, paths, result = _measured(images, count, output, attention_on_objects, load_options, resolution=resolution)
    _write(
        output,
        model,
        images,
        result.paths,
        resolution=resolution,
        areas=result.areas,
        heads=result.heads,
        rollout=result.rollout,
    )
    show(f"{len(result.paths)} of {len(paths)} images show one object against a plain background.\n\n{result.table()}")


def _measured(
    images: Path,
    count: int,
    output: Path | None,
    measure: Callable[..., Any],
    load_options: dict[str, Any],
    **options: Any,
) -> tuple[Model, list[Path], Any]:
    """The model, some images of a folder, and what a function measures of them by its options, with a bar."""
    from vitviz.evaluation.method_table import find_images

    check_output(output, "", ".json")
    # The standard output is the table.
    paths = find_images(images, count, report=lambda sentence: print_error(f"{images}: {sentence}"))
    model = load_with_bar(**load_options)
    with bar(total=len(paths), unit="image") as progress:
        return model, paths, measure(model, paths, report=lambda done: progress.update(1) and None, **options)


def _write(output: Path | None, model: Model, images: Path, paths: Sequence[Path], **values: Any) -> None:
    """Write what was measured, if there is a file for it."""
    from vitviz.evaluation.method_table import record

    if output is not None:
        content = record(model, images, paths, **values).encode(errors="backslashreplace")
        write_whole(output, lambda file: file.write(content))
