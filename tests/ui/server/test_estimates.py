"""What the app takes is estimated before it begins; no measured peak is above the estimate."""

from __future__ import annotations

import json
import multiprocessing
import re
import subprocess
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import vitviz
from tests.support.example import ROOT
from vitviz import METHODS, Analysis, Model, Preprocessing, VisionTransformer, ViTConfig
from vitviz.evaluation.probes import PROBES, probe
from vitviz.ui.explorer.page import whole_page
from vitviz.ui.packs import findings_pack, pack
from vitviz.ui.server.estimates import (
    comparison_bytes,
    forward_bytes,
    layer_bytes,
    map_bytes,
    page_bytes,
    probe_bytes,
)

pytestmark = pytest.mark.process

# Width, heads, layers and pixels: narrow with many tokens, and wide with few.
SHAPES = {
    "many tokens": (96, 3, 3, 480),
    "wide": (768, 12, 4, 112),
    "many layers": (128, 4, 24, 160),
    "few tokens": (384, 6, 4, 80),
}
# One forward pass for each patch.
MAX_OCCLUDED = 40
# The shapes that bound the others; these are measured in every run.
BOUNDS = ("many tokens", "wide")
# Where integrated gradients take a second, and a fifth of the estimate: measured in a long run.
LONG = ("wide",)


def model_of(shape: str) -> Model:
    width, heads, depth, side = SHAPES[shape]
    torch.manual_seed(0)
    config = ViTConfig(side, side, 16, 16, width, depth, heads, width // heads, 4 * width, classes=4)
    network = VisionTransformer(config).eval().requires_grad_(False)
    return Model(shape, network, Preprocessing(side, side, (0.5,) * 3, (0.5,) * 3, "squash"), tuple("abcd"))


def held(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def measure_all(whole: bool) -> None:
    """Print the answers of :func:`measure` by shape, each from a process of its own; they import once.

    Args:
        whole: of all :data:`SHAPES`, not of :data:`BOUNDS` alone.
    """
    torch.set_num_threads(1)
    found = {}
    for shape in SHAPES if whole else BOUNDS:
        with multiprocessing.get_context("fork").Pool(1) as process:
            found[shape] = process.apply(measure, (shape, whole))
    print(json.dumps(found))


def measure(shape: str, whole: bool) -> dict[str, tuple[int, int]]:
    """For each thing that the app does with an analysis, its measured peak and its estimate.

    Args:
        shape: in :data:`SHAPES`.
        whole: measure what takes seconds as well, and compare two maps in place of one.
    """
    model = model_of(shape)
    analysis = vitviz.analyze(Image.radial_gradient("L").convert("RGB"), model)
    tasks: dict[str, tuple[Any, int]] = {
        "page": (lambda: whole_page(analysis), page_bytes(analysis)),
        "layer": (lambda: pack(analysis.trace, "layer 1"), layer_bytes(analysis)),
    }
    for name, method in METHODS.items():
        about: dict[str, Any] = {"target": 1} if method.class_specific else {}
        # One batch takes the memory, all of them the time.
        about |= {"steps": 16} if name == "integrated_gradients" else {}
        takes_long = name == "attention_flow" or (
            name == "occlusion" and analysis.trace.layout.patch_count > MAX_OCCLUDED
        )
        takes_long |= name == "integrated_gradients" and shape in LONG and not whole
        if method.refusal(model.network.config) is None and not takes_long:
            tasks[name] = (partial(analysis.map, name, **about), map_bytes(analysis, name))
    for name in PROBES:
        tasks[f"probe {name}"] = (partial(_found, analysis, name), probe_bytes(analysis, name))
    if analysis.trace.layout.patch_count <= MAX_OCCLUDED:
        maps = {"rollout": analysis.rollout(), **({"attention": analysis.attention()} if whole else {})}
        tasks["comparison"] = (partial(analysis.faithfulness, maps), comparison_bytes(analysis))
        ranking = forward_bytes(model.network.config, analysis.trace.layout, model.network.config.heads)
        tasks["heads switched off"] = (analysis.head_effects, ranking)
    found = {}
    for name, (task, estimate) in tasks.items():
        Path("/proc/self/clear_refs").write_text("5")
        before = held("VmRSS")
        task()
        found[name] = (held("VmHWM") - before, estimate)
    return found


def _found(analysis: Analysis, name: str) -> bytes:
    return findings_pack(probe(analysis, name))


@cache
def measured(whole: bool) -> dict[str, dict[str, tuple[int, int]]]:
    command = [sys.executable, "-c", f"from {__name__} import measure_all; measure_all({whole})"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="this system does not tell")
@pytest.mark.parametrize(
    ("shape", "whole"),
    [
        *((shape, False) for shape in BOUNDS),
        *(pytest.param(shape, True, marks=pytest.mark.long) for shape in SHAPES),
    ],
)
def test_no_measured_peak_is_above_its_estimate(shape: str, whole: bool) -> None:
    found = measured(whole)[shape]
    assert {name: pair for name, pair in found.items() if pair[0] > pair[1]} == {}
    assert max(peak for peak, _ in found.values()) > 2**25, "nothing was measured"
