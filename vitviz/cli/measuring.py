"""The commands that measure methods, heads and attention over a folder of images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from vitviz.attribution.methods import MethodName
from vitviz.cli.checkpoints import load_with_bar
from vitviz.cli.output import bar, write_whole
from vitviz.errors.kinds import ConfigError
from vitviz.weights import Model


def run_evaluate_methods(
    images: Path,
    count: int,
    resolution: int | None,
    output: Path | None,
    methods: list[MethodName] | None,
    **load_options: Any,
) -> None:
    from vitviz.evaluation.method_table import areas, find_images, methods_for, table

    model = load_with_bar(**load_options)
    names = methods_for(model, methods)
    paths = find_images(images, count)
    method_areas = _with_bar(partial(areas, methods=names), model, paths, resolution)
    _write(output, model, images, paths, resolution=resolution, areas=method_areas)
    print(table(method_areas))


def run_check_methods(
    images: Path,
    count: int,
    resolution: int | None,
    output: Path | None,
    methods: list[MethodName] | None,
    **load_options: Any,
) -> None:
    from vitviz.evaluation.method_table import cascade_table, cascades, find_images
    from vitviz.evaluation.randomization import INTERPRETATION, steps

    model = load_with_bar(**load_options)
    paths = find_images(images, count)
    correlations = _with_bar(partial(cascades, methods=methods), model, paths, resolution)
    step_names = steps(model.network.config.depth)
    _write(output, model, images, paths, resolution=resolution, steps=step_names, correlations=correlations)
    print(f"{cascade_table(correlations)}\n\n{INTERPRETATION}")


def run_describe_heads(
    images: Path, count: int, resolution: int | None, output: Path | None, picture: Path | None, **load_options: Any
) -> None:
    from vitviz.evaluation.head_picture import heads_picture
    from vitviz.evaluation.head_table import head_tables, measure_heads_over
    from vitviz.evaluation.method_table import find_images
    from vitviz.visualization.drawing import save_figure

    model = load_with_bar(**load_options)
    paths = find_images(images, count)
    heads = _with_bar(measure_heads_over, model, paths, resolution)
    _write(output, model, images, paths, resolution=resolution, heads=heads)
    if picture is not None:
        try:
            write_whole(picture, partial(save_figure, heads_picture(heads), format=picture.suffix[1:] or "png"))
        # An unknown format.
        except ValueError as error:
            raise ConfigError(f"{picture}: cannot be written ({error})") from None
    print(head_tables(heads))


def run_evaluate_attention(
    images: Path, count: int, resolution: int | None, output: Path | None, **load_options: Any
) -> None:
    from vitviz.evaluation.method_table import find_images
    from vitviz.evaluation.objects import attention_on_objects

    model = load_with_bar(**load_options)
    paths = find_images(images, count)
    result = _with_bar(attention_on_objects, model, paths, resolution)
    values = {"areas": result.areas, "heads": result.heads, "rollout": result.rollout}
    _write(output, model, images, result.paths, resolution=resolution, **values)
    print(f"{len(result.paths)} of {len(paths)} images show one object against a plain background.\n\n{result.table()}")


def _with_bar(measure: Callable[..., Any], model: Model, images: Sequence[Path], resolution: int | None) -> Any:
    with bar(total=len(images), unit="image") as progress:
        return measure(model, images, report=lambda done: progress.update(1) and None, resolution=resolution)


def _write(output: Path | None, model: Model, images: Path, paths: Sequence[Path], **values: Any) -> None:
    """Write what was measured, if there is a file for it."""
    from vitviz.evaluation.method_table import record

    if output is not None:
        write_whole(output, lambda file: file.write(record(model, images, paths, **values).encode()))
