"""An atlas as figures, numbers and one page."""

from __future__ import annotations

import base64
import html
import io
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from vitviz.datasets.atlas import CONFIDENCE, Atlas, MeanMap, Means, Standout
from vitviz.errors.kinds import ConfigError
from vitviz.evaluation.probes import PROBES
from vitviz.visualization.templates import fill_template
from vitviz.weights.formats.atomic import atomic_write

PAGE, NUMBERS, FIGURES = "atlas.html", "atlas.json", "figures"
HEADS = matplotlib.colormaps["tab10"]
IN_A_ROW = 4
DPI = 110


def write_atlas(atlas: Atlas, output: Path) -> Path:
    """Write a page with everything inside, each figure as PNG and SVG, and the numbers as JSON.

    Args:
        atlas: of a model.
        output: the folder, which may be new.

    Returns:
        The path of the page.

    Raises:
        ConfigError: the folder cannot be written.
    """
    try:
        (output / FIGURES).mkdir(parents=True, exist_ok=True)
        drawn = {}
        for name, figure in _figures(atlas):
            stem = re.sub(r"[^\w.=,-]", "_", name)
            figure.savefig(output / FIGURES / f"{stem}.svg")
            figure.savefig(output / FIGURES / f"{stem}.png", dpi=DPI)
            drawn[name] = base64.b64encode((output / FIGURES / f"{stem}.png").read_bytes()).decode()
        with atomic_write(output / NUMBERS) as file:
            file.write(json.dumps(_numbers(atlas), indent=1, ensure_ascii=False).encode())
        page = output / PAGE
        with atomic_write(page) as file:
            file.write(_page(atlas, drawn).encode())
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror or error})") from None
    return page


def _figures(atlas: Atlas) -> Iterator[tuple[str, Figure]]:
    for name, means in atlas.heads.items():
        yield name, _heads(means)
    for name, means in atlas.pairs.items():
        yield name, _pairs(means)
    for name, whole in atlas.maps.items():
        by_class = atlas.classes.get(name, {})
        titled = {f"all {whole.count:,}": whole}
        titled |= {f"{label}, {each.count:,}": each for label, each in by_class.items()}
        yield name, _mean_maps(titled)


def _heads(means: Means) -> Figure:
    layers, heads = means.mean.shape
    figure = Figure(figsize=(max(4.5, 0.75 * layers), 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for head in range(heads):
        places = np.arange(layers) + 0.7 * ((head + 0.5) / heads - 0.5)
        bars = np.nan_to_num([means.mean - means.low, means.high - means.mean])[:, :, head]
        axes.errorbar(
            places,
            means.mean[:, head],
            bars,
            fmt="o",
            markersize=3.5,
            elinewidth=1,
            color=HEADS(head % HEADS.N),
            label=str(head),
        )
    axes.legend(title="head", fontsize=7, title_fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set(xlabel="layer", ylabel=means.unit, xticks=range(layers))
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _pairs(means: Means) -> Figure:
    figure, places = _sheet(len(means.mean))
    highest = float(np.nanmax(means.mean)) or 1.0
    for layer, (axes, values) in enumerate(zip(places, means.mean, strict=True)):
        picture = axes.imshow(values, "viridis", vmin=0, vmax=highest)
        axes.set(title=f"layer {layer}", xticks=range(len(values)), yticks=range(len(values)))
    figure.colorbar(picture, ax=places, label=means.unit, shrink=0.7)
    return figure


def _mean_maps(maps: Mapping[str, MeanMap]) -> Figure:
    figure, places = _sheet(len(maps))
    for axes, (title, each) in zip(places, maps.items(), strict=True):
        picture = axes.imshow(each.values, "inferno")
        axes.set(title=title if len(title) < 26 else f"{title[:16]}…{title[-8:]}", xticks=[], yticks=[])
        figure.colorbar(picture, ax=axes, shrink=0.7)
    return figure


def _sheet(count: int) -> tuple[Figure, list[Axes]]:
    columns = min(IN_A_ROW, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(2.6 * columns + 0.6, 2.3 * rows + 0.3), layout="constrained")
    FigureCanvasAgg(figure)
    places = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in places[count:]:
        empty.remove()
    return figure, places[:count]


def _page(atlas: Atlas, drawn: Mapping[str, str]) -> str:
    rows, columns = atlas.grid
    about = [f"{atlas.pictures:,} pictures"]
    about += [f"{atlas.failed:,} more could not be analysed"] * bool(atlas.failed)
    if atlas.left_out:
        grid = f"mean maps are of the {rows}×{columns} patches that most pictures have"
        about.append(f"{grid}: {atlas.left_out:,} pictures of other shapes are in none")
    sections: list[str] = []
    for name, means in atlas.heads.items():
        record = PROBES[name.partition(".")[0]]
        text = (
            f"{record.interpretation} A dot is a head's mean over {int(means.count.max()):,} pictures, its bar the "
            f"{CONFIDENCE:.0%} confidence interval of that mean: how well these pictures tell it for others like them, "
            "not how much pictures differ."
        )
        sections += [_heading(f"{record.title}", text), _figure(drawn[name], record.title), _table(means)]
        sections.append(_standouts(atlas, name))
    for name, means in atlas.pairs.items():
        record = PROBES[name.partition(".")[0]]
        sections += [
            _heading(record.title, f"{record.interpretation} The mean over {int(means.count.max()):,} pictures.")
        ]
        sections += [_figure(drawn[name], record.title), _table(means)]
    for name in atlas.maps:
        text = (
            "The mean of this map over all pictures says where it lies whatever the picture shows. The others "
            "are means over the pictures that the model takes for each of its most frequent classes. Each mean has a "
            "scale of its own."
        )
        sections += [_heading(f"Mean maps: {name}", text), _figure(drawn[name], f"Mean maps of {name}")]
    parts = {
        "title": html.escape(f"Atlas of {atlas.model}"),
        "about": html.escape("; ".join(about) + ". Made by vitviz."),
        "sections": "\n".join(sections),
    }
    folder = files("vitviz.datasets")
    parts["look"] = (folder / "page.css").read_text(encoding="utf-8")
    return fill_template((folder / "atlas.html").read_text(encoding="utf-8"), parts)


def _heading(title: str, text: str) -> str:
    return f"<h2>{html.escape(title)}</h2>\n<p>{html.escape(text)}</p>"


def _figure(content: str, title: str) -> str:
    image = f'<img alt="{html.escape(title)}" src="data:image/png;base64,{content}">'
    return f"<figure>{image}</figure>"


def _table(means: Means) -> str:
    """Every mean with its interval."""
    axes = ["layer", "head", "other head"][: means.mean.ndim]
    lines = []
    for place in np.ndindex(means.mean.shape):
        if means.mean.ndim == 3 and place[2] <= place[1]:
            continue
        interval = f"{means.low[place]:.4g} to {means.high[place]:.4g}" if means.count[place] > 1 else "–"
        mean = f"{means.mean[place]:.4g}" if means.count[place] else "–"
        lines.append([*map(str, place), mean, interval, f"{int(means.count[place]):,}"])
    header = [*axes, f"mean, {means.unit}", f"{CONFIDENCE:.0%} interval", "pictures"]
    return _details("All numbers", header, [[html.escape(cell) for cell in line] for line in lines])


def _standouts(atlas: Atlas, name: str) -> str:
    lines = []
    for layer, heads in enumerate(atlas.standouts[name]):
        for head, each in enumerate(heads):
            if _differ(each):
                sides = [_pictures(atlas, side) for side in (each.highest, each.lowest)]
                lines.append([str(layer), str(head), *sides])
    return _details("Pictures that stand out in each head", ["layer", "head", "highest", "lowest"], lines)


def _differ(each: Standout) -> bool:
    """Whether pictures differ at all in this head: where they do not, none stands out."""
    return bool(each.highest) and each.highest[0][1] > each.lowest[0][1]


def _pictures(atlas: Atlas, side: tuple[tuple[str, float], ...]) -> str:
    found = []
    for path, value in side:
        content = atlas.thumbnails.get(path)
        image = f'<img alt="" src="data:image/jpeg;base64,{_small(content)}">' if content else ""
        found.append(f"<span>{image}{html.escape(path)}<br>{value:.4g}</span>")
    return f'<div class="pictures">{"".join(found)}</div>'


def _small(content: bytes) -> str:
    """A thumbnail at the height at which the page shows it, times two for fine screens."""
    stream = io.BytesIO()
    with Image.open(io.BytesIO(content)) as image:
        image.thumbnail((112, 112))
        image.convert("RGB").save(stream, "JPEG", quality=75)
    return base64.b64encode(stream.getvalue()).decode()


def _details(title: str, header: list[str], lines: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in header)
    body = "\n".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in lines)
    table = (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
    )
    return f"<details><summary>{html.escape(title)}</summary>\n{table}\n</details>"


def _numbers(atlas: Atlas) -> dict[str, Any]:
    """Everything but the pictures as JSON; null where there is no number."""

    def means(each: Means) -> dict[str, Any]:
        parts = {name: _listed(getattr(each, name)) for name in ("mean", "low", "high", "count")}
        return {"unit": each.unit, "confidence": CONFIDENCE, **parts}

    def mean_map(each: MeanMap) -> dict[str, Any]:
        return {"pictures": each.count, "values": _listed(each.values)}

    return {
        "model": atlas.model,
        "pictures": atlas.pictures,
        "failed": atlas.failed,
        "grid": list(atlas.grid),
        "pictures_of_other_grids": atlas.left_out,
        "heads": {name: means(each) for name, each in atlas.heads.items()},
        "pairs": {name: means(each) for name, each in atlas.pairs.items()},
        "maps": {name: mean_map(each) for name, each in atlas.maps.items()},
        "classes": {
            name: {label: mean_map(each) for label, each in found.items()} for name, found in atlas.classes.items()
        },
        "standouts": {
            name: [[{"highest": each.highest, "lowest": each.lowest} for each in heads] for heads in layers]
            for name, layers in atlas.standouts.items()
        },
    }


def _listed(values: np.ndarray) -> Any:
    if values.ndim:
        return [_listed(each) for each in values]
    return values.item() if np.isfinite(values) else None
