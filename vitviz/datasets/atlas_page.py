"""An atlas as figures, numbers and one page."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from vitviz.datasets.atlas import CONFIDENCE, Atlas, MeanMap, Means
from vitviz.errors.kinds import ConfigError
from vitviz.evaluation.head_picture import draw_heads
from vitviz.evaluation.probes import PROBES
from vitviz.evaluation.probes.probe_figures import cells_of, maps_figure
from vitviz.system.atomic import atomic_write
from vitviz.system.jsonable import jsonable
from vitviz.visualization.drawing import OwnFigure, own_settings
from vitviz.visualization.templates import fill_template

PAGE, NUMBERS, FIGURES_FOLDER = "atlas.html", "atlas.json", "figures"
MAPS_PER_ROW, CELL_INCHES = 4, 2.3
DPI = 110


def write_atlas(atlas: Atlas, output: Path) -> Path:
    """Write a self-contained page, each figure as PNG and SVG, and the numbers as JSON.

    Args:
        atlas: the atlas.
        output: the folder, which may be new.

    Returns:
        The path of the page.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        (output / FIGURES_FOLDER).mkdir(parents=True, exist_ok=True)
        images = {}
        with own_settings("".join(label for by_class in atlas.classes.values() for label in by_class)):
            for name, figure in _figures(atlas):
                stem = re.sub(r"[^\w.=,-]", "_", name)
                figure.savefig(output / FIGURES_FOLDER / f"{stem}.svg")
                figure.savefig(output / FIGURES_FOLDER / f"{stem}.png", dpi=DPI)
                images[name] = base64.b64encode((output / FIGURES_FOLDER / f"{stem}.png").read_bytes()).decode()
        with atomic_write(output / NUMBERS) as file:
            numbers = {"confidence": CONFIDENCE, **asdict(replace(atlas, thumbnails={}))}
            file.write(json.dumps(jsonable(numbers), indent=1, ensure_ascii=False).encode())
        page = output / PAGE
        with atomic_write(page) as file:
            file.write(_page(atlas, images).encode())
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror or error})") from None
    return page


def _figures(atlas: Atlas) -> Iterator[tuple[str, Figure]]:
    for name, means in atlas.heads.items():
        yield name, _heads(means)
    for name, means in atlas.pairs.items():
        layers = [f"layer {layer}" for layer in range(len(means.mean))]
        yield name, maps_figure(torch.from_numpy(means.mean), layers, means.unit)
    for name, mean_map in atlas.maps.items():
        by_class = atlas.classes.get(name, {})
        mean_maps = {f"all {mean_map.count:,}": mean_map}
        mean_maps |= {f"{label}, {each.count:,}": each for label, each in by_class.items()}
        yield name, _mean_maps(mean_maps)


def _heads(means: Means) -> Figure:
    figure = OwnFigure(figsize=(max(4.5, 0.75 * len(means.mean)), 3.2), layout="constrained")
    axes = figure.subplots()
    errors = np.nan_to_num([means.mean - means.low, means.high - means.mean])
    draw_heads(axes, means.mean, errors, means.unit)
    axes.legend(title="head", fontsize=7, title_fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    return figure


def _mean_maps(maps: Mapping[str, MeanMap]) -> Figure:
    figure, panels = cells_of(len(maps), columns=MAPS_PER_ROW, inches=CELL_INCHES)
    for axes, (title, mean_map) in zip(panels, maps.items(), strict=True):
        image = axes.imshow(mean_map.values, "inferno")
        axes.set(title=title if len(title) < 26 else f"{title[:16]}…{title[-8:]}")
        figure.colorbar(image, ax=axes, shrink=0.7)
    return figure


def _page(atlas: Atlas, images: Mapping[str, str]) -> str:
    rows, columns = atlas.grid
    facts = [f"{atlas.pictures:,} pictures"]
    facts += [f"{atlas.failed:,} more could not be analysed"] * bool(atlas.failed)
    if atlas.pictures_of_other_grids:
        grid = f"mean maps are of the {rows}×{columns} patches that most pictures have"
        facts.append(f"{grid}: {atlas.pictures_of_other_grids:,} pictures of other shapes are in none")
    sections: list[str] = []
    for name, means in {**atlas.heads, **atlas.pairs}.items():
        record, count = PROBES[name.partition(".")[0]], int(means.count.max())
        text = f"{record.interpretation} The mean over {count:,} pictures."
        if name in atlas.heads:
            text = (
                f"{record.interpretation} A dot is a head's mean over {count:,} pictures, its bar the "
                f"{CONFIDENCE:.0%} confidence interval of that mean: how well these pictures tell it for others like "
                "them, not how much pictures differ."
            )
        standouts = [_standouts(atlas, name)] if name in atlas.heads else []
        sections += [_figure(record.title, text, images[name], record.title), _table(means), *standouts]
    text = (
        "The mean of this map over all pictures says where it lies whatever the picture shows. The others are means "
        "over the pictures that the model takes for each of its most frequent classes. Each mean has its own scale."
    )
    sections += [_figure(f"Mean maps: {name}", text, images[name], f"Mean maps of {name}") for name in atlas.maps]
    fields = {
        "title": html.escape(f"Atlas of {atlas.model}"),
        "about": html.escape("; ".join(facts) + ". Made by vitviz."),
        "sections": "\n".join(sections),
    }
    folder = files("vitviz.datasets")
    fields["look"] = (folder / "page.css").read_text(encoding="utf-8")
    return fill_template((folder / "atlas.html").read_text(encoding="utf-8"), fields)


def _figure(title: str, text: str, content: str, alt: str) -> str:
    image = f'<figure><img alt="{html.escape(alt)}" src="data:image/png;base64,{content}"></figure>'
    return f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(text)}</p>\n{image}"


def _table(means: Means) -> str:
    """A table of every mean with its interval."""
    axes = ["layer", "head", "other head"][: means.mean.ndim]
    lines = []
    for index in np.ndindex(means.mean.shape):
        if means.mean.ndim == 3 and index[2] <= index[1]:
            continue
        interval = f"{means.low[index]:.4g} to {means.high[index]:.4g}" if means.count[index] > 1 else "–"
        mean = f"{means.mean[index]:.4g}" if means.count[index] else "–"
        lines.append([*map(str, index), mean, interval, f"{int(means.count[index]):,}"])
    header = [*axes, f"mean, {means.unit}", f"{CONFIDENCE:.0%} interval", "pictures"]
    return _details("All numbers", header, [[html.escape(cell) for cell in line] for line in lines])


def _standouts(atlas: Atlas, name: str) -> str:
    lines = [
        [str(layer), str(head), _pictures(atlas, each.highest), _pictures(atlas, each.lowest)]
        for layer, heads in enumerate(atlas.standouts[name])
        for head, each in enumerate(heads)
        # Otherwise none of the pictures stands out in this head.
        if each.highest and each.highest[0][1] > each.lowest[0][1]
    ]
    return _details("Pictures that stand out in each head", ["layer", "head", "highest", "lowest"], lines)


def _pictures(atlas: Atlas, side: tuple[tuple[str, float], ...]) -> str:
    cells = []
    for path, value in side:
        content = base64.b64encode(atlas.thumbnails.get(path, b"")).decode()
        image = f'<img alt="" src="data:image/jpeg;base64,{content}">' * bool(content)
        cells.append(f"<span>{image}{html.escape(path)}<br>{value:.4g}</span>")
    return f'<div class="pictures">{"".join(cells)}</div>'


def _details(title: str, header: list[str], lines: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    table = (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )
    return f"<details><summary>{html.escape(title)}</summary>\n{table}\n</details>"
