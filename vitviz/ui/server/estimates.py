"""How many bytes what the app does takes at most, beside the models and what is kept.

By formula, before it begins; tests hold each against measured peaks.
"""

from __future__ import annotations

from vitviz.analysis.analysis import Analysis
from vitviz.analysis.costs import NUMBER_BYTES, cost_of
from vitviz.attention.layout import TokenLayout
from vitviz.attribution import METHODS
from vitviz.attribution.pixels import BATCH_SIZE
from vitviz.evaluation.probes import PROBES
from vitviz.evaluation.probes.lens import CHUNK_TOKENS
from vitviz.metrics.faithfulness import BATCH_SIZE as SCORED_AT_ONCE
from vitviz.models.network import NetworkConfig
from vitviz.weights import Model
from vitviz.weights.formats.files import SUFFIXES

# What the C library keeps of freed blocks, and small things.
SLACK_BYTES = 64 * 2**20
# Features of a token that a layer holds for its gradient, in widths of the stream.
HELD_WIDTHS = 24
# Matrices of a layer's attention, all heads, at once where the gradient of the attention is taken.
GRADIENT_MATRICES = 5
# Of what a probe finds, as numbers, in the file that the page gets, and on the way there.
FOUND_COPIES = 4
# Of weights that are multiplied with one another in double precision.
WEIGHT_COPIES = 5
# Of a file of weights in half precision, which become single, and the file itself where it is read whole.
TOWER_COPIES = 3
# What the packages that open it take once they run.
PACKAGE_BYTES = 256 * 2**20
# Of a page in HTML: the files, as text, and the whole.
PAGE_COPIES = 4
PAGE_BYTES_PER_FEATURE = 2.7


def map_bytes(analysis: Analysis, method: str) -> int:
    """What one map takes."""
    config, layout = analysis.model.network.config, analysis.trace.layout
    about = METHODS[method]
    if method in ("integrated_gradients", "occlusion"):
        return forward_bytes(config, layout, BATCH_SIZE, has_gradient=method == "integrated_gradients")
    if about.class_specific:
        return gradient_bytes(config, layout)
    return cost_of(config, layout).working_bytes + SLACK_BYTES


def gradient_bytes(config: NetworkConfig, layout: TokenLayout) -> int:
    """What the gradients of a class with respect to the attention of all layers take."""
    matrix = NUMBER_BYTES * config.heads * layout.token_count**2
    return 6 * cost_of(config, layout).trace_bytes + GRADIENT_MATRICES * matrix + SLACK_BYTES


def forward_bytes(config: NetworkConfig, layout: TokenLayout, batch: int, has_gradient: bool = False) -> int:
    """What a forward pass of so many inputs at once takes, and where it is asked for the gradient of the pixels."""
    layers = config.depth if has_gradient else 2
    held = NUMBER_BYTES * batch * layers * layout.token_count * HELD_WIDTHS * config.width
    return held + cost_of(config, layout).working_bytes + SLACK_BYTES


def comparison_bytes(analysis: Analysis) -> int:
    """What comparing all methods takes: the hungriest of them, or the pictures without patches that score them."""
    config, layout = analysis.model.network.config, analysis.trace.layout
    maps = [
        map_bytes(analysis, name) for name, method in METHODS.items() if method.refusal(config, has_target=True) is None
    ]
    return max(*maps, forward_bytes(config, layout, SCORED_AT_ONCE))


def probe_bytes(analysis: Analysis, name: str) -> int:
    """What a probe takes: what it computes from, and what it finds."""
    config, layout = analysis.model.network.config, analysis.trace.layout
    record = PROBES[name]
    if record.requires == "tokens":
        logits = NUMBER_BYTES * (2 * CHUNK_TOKENS + config.depth + 1) * config.classes
        found = NUMBER_BYTES * FOUND_COPIES * layout.token_count * config.width
        return forward_bytes(config, layout, 1) + logits + found
    if record.requires == "model":
        positions = config.image_height // config.patch_height * (config.image_width // config.patch_width)
        weight = config.width * config.patch_height * config.patch_width * config.channels
        return WEIGHT_COPIES * 2 * NUMBER_BYTES * (positions**2 + weight) + SLACK_BYTES
    found = 2 * NUMBER_BYTES * config.depth * config.heads * layout.token_count
    return FOUND_COPIES * found + cost_of(config, layout).working_bytes + SLACK_BYTES


def tower_bytes(model: Model) -> int:
    """What the process of a text tower may take: the weights of both towers, in single precision."""
    # That the folder is gone is said where the tower is opened.
    if model.origin is None or not model.origin.folder.is_dir():
        return PACKAGE_BYTES
    sizes = [file.stat().st_size for file in model.origin.folder.iterdir() if file.name.endswith(SUFFIXES)]
    return TOWER_COPIES * sum(sizes) + PACKAGE_BYTES


def page_bytes(analysis: Analysis) -> int:
    """What the explorer as one page takes while it is written."""
    trace = analysis.trace
    features = 2 * trace.layers * trace.heads * trace.layout.token_count * analysis.model.network.config.head_width
    rollout = 2 * trace.layout.token_count**2
    return int(PAGE_COPIES * (PAGE_BYTES_PER_FEATURE * features + rollout)) + SLACK_BYTES


def layer_bytes(analysis: Analysis) -> int:
    """What the explorer's file of a layer takes while it is written."""
    trace = analysis.trace
    features = 2 * trace.heads * trace.layout.token_count * analysis.model.network.config.head_width
    return 4 * NUMBER_BYTES * features + cost_of(analysis.model.network.config, trace.layout).working_bytes
