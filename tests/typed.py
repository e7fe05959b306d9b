"""Read by mypy, and never run: what has to type-check, and typos, each of which must be an error on its line.

An ignored line without an error is an error itself, since mypy warns of ignores that are not needed.
"""

# ruff: noqa: B018

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import torch

import vitviz


def legal(model: vitviz.Model, image: Path) -> None:
    analysis = vitviz.analyze(image, model, "crop", storage="float16")
    heatmap: vitviz.Heatmap = analysis.rollout(head_fusion="max", discard_ratio=0.9, reference="vit-explain")
    analysis.relevance("cat", start_layer=2, query=(3, 4)).overlay("viridis")
    analysis.attention(3, 0, "cls", exclude=["cls", (0, 1), 7])
    analysis.map("grad_cam", target=vitviz.margin("cat"), layer=-2)
    maps = {name: analysis.map(name) for name in vitviz.METHODS}
    maps["rollout"].overlay(vitviz.Style(matplotlib.colormaps["jet"], scale="log"))
    _: np.ndarray = np.asarray(heatmap)
    model.network(torch.zeros(1, 3, 112, 112)).shape
    logits, weights = model.network(torch.zeros(1, 3, 112, 112), need_weights=True)
    logits.shape, weights[0].shape
    vitviz.METHODS["rollout"].title
    vitviz.evaluation.probes.PROBES
    vitviz.datasets.BatchRequest(model, maps=(vitviz.datasets.MapRequest("rollout"),))


def typos(model: vitviz.Model, analysis: vitviz.Analysis, image: Path) -> None:
    analysis.map("rolout")  # type: ignore[arg-type]
    analysis.map("rollout", discard=0.1)  # type: ignore[call-arg]
    analysis.rollout(head_fusion="maximum")  # type: ignore[arg-type]
    analysis.rollout(fusion="max")  # type: ignore[call-arg]
    analysis.rollout(exclude="sink")  # type: ignore[arg-type]
    analysis.rollout(reference="vit_explain")  # type: ignore[arg-type]
    analysis.attention(head="all")  # type: ignore[arg-type]
    analysis.attention(direction="col")  # type: ignore[arg-type]
    analysis.relevance(layer=3)  # type: ignore[call-arg]
    analysis.faithfulness({}, metrics=["deletions"])  # type: ignore[list-item]
    analysis.gradcam()  # type: ignore[attr-defined]
    analysis.overlay()  # type: ignore[attr-defined]
    model.eval()  # type: ignore[attr-defined]
    model(torch.zeros(1, 3, 112, 112))  # type: ignore[operator]
    model.network(torch.zeros(1, 3, 112, 112), weights=True)  # type: ignore[call-arg]
    analysis.rollout().plot()  # type: ignore[attr-defined]
    vitviz.rollout(image)  # type: ignore[attr-defined]
    vitviz.Style(colormap="jet")  # type: ignore[arg-type]
    vitviz.Style("viridis", scale="logarithmic")  # type: ignore[arg-type]
    vitviz.load(precision="bf16")  # type: ignore[call-overload]
    vitviz.load(normalisation="clips")  # type: ignore[call-overload]
    vitviz.load(pooling="avg")  # type: ignore[call-overload]
    vitviz.load(engine="timm")  # type: ignore[call-overload]
    vitviz.analyze(image, model, fit="resize")  # type: ignore[arg-type]
    vitviz.analyze(image, model, color_profile="srgb")  # type: ignore[arg-type]
    vitviz.analyze_batch([image], model, on_error="ignore")  # type: ignore[call-overload]
    vitviz.explore(image, model, storage="half")  # type: ignore[arg-type]
    vitviz.METHODS.rollout  # type: ignore[attr-defined]
