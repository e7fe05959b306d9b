"""One row of the parity table: a model of the real package with random weights, written as its checkpoints are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tests.parity.package_answers import Answer
from tests.support.reading import read_any
from vitviz.models.network import Network
from vitviz.models.watched.watched_network import WatchedNetwork
from vitviz.weights.read import Reading

Size = tuple[int, int]


@dataclass(frozen=True, eq=False)
class Reference:
    """A checkpoint of the real package on disk, and the package's own answer to pixels.

    Args:
        path: what vitviz opens.
        answer: of the package, to ``"batch channel height width"``.
        module: of the package, with these weights; None where none takes a picture alone.
    """

    path: Path
    answer: Callable[[torch.Tensor], Answer]
    module: nn.Module | None = None


@dataclass(frozen=True, eq=False)
class Case:
    """One way of writing a checkpoint.

    Args:
        row: the row of the table in ``docs/checked.md``; several cases may share one.
        name: what is particular about it.
        family: of ours that it opens in, or the package that opens it: ``"watched by timm"``.
        make: writes the checkpoint into an empty folder.
        sizes: images that the package itself takes, height and width, the trained one first.
        overrides: what the file leaves open.
        channels: of its images.
    """

    row: str
    name: str
    family: str
    make: Callable[[Path], Reference]
    sizes: tuple[Size, ...]
    overrides: dict[str, Any] = field(default_factory=dict)
    channels: int = 3

    @property
    def is_watched(self) -> bool:
        """Whether it opens in the package's network."""
        return self.family.startswith("watched by ")


@dataclass(frozen=True)
class Difference:
    """The largest absolute difference of a case, over all its sizes."""

    output: float
    attention: float


def compare(case: Case, folder: Path) -> tuple[Reading, Difference]:
    """vitviz's answers against the package's, in float32, at every size of the case."""
    torch.manual_seed(0)
    reference = case.make(folder)
    reading = read_any(reference.path, report=lambda _: None, **case.overrides)
    network = reading.model.network
    output = attention = 0.0
    for size in case.sizes:
        pixels = torch.randn(2, case.channels, *size)
        with torch.inference_mode():
            theirs = reference.answer(pixels)
            found, weights = answer_of_vitviz(network, pixels)
        expected = theirs.tokens if theirs.output is None else theirs.output
        expected_weights = theirs.attention
        assert expected is not None
        assert found.shape == expected.shape, f"{case.row}, {case.name}: {found.shape}, expected {expected.shape}"
        assert [layer.shape for layer in weights] == [layer.shape for layer in expected_weights]
        assert all(layer.isfinite().all() for layer in (found, *weights)), "no maximum is larger than a NaN"
        assert expected.std() > 0.01, "an output without variation proves nothing"
        output = max(output, float((found - expected).abs().max()))
        pairs = zip(weights, expected_weights, strict=True)
        attention = max([attention, *(float((ours - theirs).abs().max()) for ours, theirs in pairs)])
    return reading, Difference(output, attention)


def answer_of_vitviz(network: Network, pixels: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The output, and the attention weights of every layer, each ``"batch head query key"``."""
    if not isinstance(network, WatchedNetwork):
        return network(pixels, need_weights=True)
    traces, layers = network.encode(pixels).traces, range(network.config.depth)
    # A network that pools nothing returns its tokens.
    with network.running(pixels) as inputs:
        output = network.run(inputs)
    return output, [torch.stack([trace.weights(layer) for trace in traces]) for layer in layers]


def randomised(module: nn.Module) -> nn.Module:
    """The module in evaluation mode, all its weights random, so that no mistake goes unseen behind zeros and ones."""
    for name, parameter in module.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 1 and name.endswith("weight"):
                parameter.normal_(1, 0.2)
            else:
                # Wide maps get smaller weights: scores in the hundreds would make rounding the largest difference.
                inputs = parameter[0].numel() if parameter.ndim in (2, 4) and len(parameter) else 1
                parameter.normal_(0, min(0.15, 1.2 * inputs**-0.5))
    return module.eval().requires_grad_(False)
