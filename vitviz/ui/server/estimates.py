"""Upper bounds of the memory that the app's work takes, beside models and caches.

Each is a formula, evaluated before the work begins; tests compare it with measured peaks.
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
from vitviz.weights.formats.names import is_weight_file

# Freed blocks that the C library keeps, and small objects.
SLACK_BYTES = 64 * 2**20
# Features of a token that a layer keeps for its gradient, in multiples of the width.
KEPT_WIDTHS = 24
# Attention matrices of a layer, all heads, at a time while the gradient of the attention is taken.
GRADIENT_MATRICES = 5
# Copies of a probe's findings, as tensors and in the file for the page.
FINDINGS_COPIES = 4
# Copies of weights that are multiplied with each other in double precision.
WEIGHT_COPIES = 5
# A file of weights in half precision: twice as large in single precision, and once more if it is read whole.
TOWER_COPIES = 3
# The packages of a text tower, once imported.
PACKAGE_BYTES = 256 * 2**20
# Copies of an HTML page: the files, their text, and the page.
PAGE_COPIES = 4
PAGE_BYTES_PER_FEATURE = 2.7


def map_bytes(analysis: Analysis, method: str) -> int:
    """The memory of one map."""
    config, layout, record = analysis.model.network.config, analysis.trace.layout, METHODS[method]
    if record.image_passes:
        return forward_bytes(config, layout, BATCH_SIZE, has_gradient=record.image_passes == "backward")
    if record.class_specific:
        return gradient_bytes(config, layout)
    return cost_of(config, layout).working_bytes + SLACK_BYTES


def gradient_bytes(config: NetworkConfig, layout: TokenLayout) -> int:
    """The memory of a class's gradient with respect to the attention of all layers."""
    matrix = NUMBER_BYTES * config.heads * layout.token_count**2
    return 6 * cost_of(config, layout).trace_bytes + GRADIENT_MATRICES * matrix + SLACK_BYTES


def forward_bytes(config: NetworkConfig, layout: TokenLayout, batch: int, has_gradient: bool = False) -> int:
    """The memory of a forward pass of a batch, with or without the gradient of the pixels."""
    layers = config.depth if has_gradient else 2
    activations = NUMBER_BYTES * batch * layers * layout.token_count * KEPT_WIDTHS * config.width
    return activations + cost_of(config, layout).working_bytes + SLACK_BYTES


def comparison_bytes(analysis: Analysis) -> int:
    """The memory of comparing all methods: that of the largest map, or of the batch that scores the maps."""
    config, layout = analysis.model.network.config, analysis.trace.layout
    maps = [
        map_bytes(analysis, name) for name, method in METHODS.items() if method.refusal(config, has_target=True) is None
    ]
    return max(*maps, forward_bytes(config, layout, SCORED_AT_ONCE))


def probe_bytes(analysis: Analysis, name: str) -> int:
    """The memory of a probe: its inputs and its findings."""
    config, layout = analysis.model.network.config, analysis.trace.layout
    record = PROBES[name]
    if record.requires == "tokens":
        logits = NUMBER_BYTES * (2 * CHUNK_TOKENS + config.depth + 1) * config.classes
        findings = NUMBER_BYTES * FINDINGS_COPIES * layout.token_count * config.width
        return forward_bytes(config, layout, 1) + logits + findings
    if record.requires == "model":
        positions = config.image_height // config.patch_height * (config.image_width // config.patch_width)
        weight = config.width * config.patch_height * config.patch_width * config.channels
        return WEIGHT_COPIES * 2 * NUMBER_BYTES * (positions**2 + weight) + SLACK_BYTES
    findings = 2 * NUMBER_BYTES * config.depth * config.heads * layout.token_count
    return FINDINGS_COPIES * findings + cost_of(config, layout).working_bytes + SLACK_BYTES


def tower_bytes(model: Model) -> int:
    """The memory of a text tower's process: the weights of both towers, in single precision."""
    # A missing folder is reported where the tower is opened.
    if model.origin is None or not model.origin.folder.is_dir():
        return PACKAGE_BYTES
    sizes = [file.stat().st_size for file in model.origin.folder.iterdir() if is_weight_file(file)]
    return TOWER_COPIES * sum(sizes) + PACKAGE_BYTES


def page_bytes(analysis: Analysis) -> int:
    """The memory of writing the explorer as one page."""
    trace = analysis.trace
    features = 2 * trace.layers * trace.heads * trace.layout.token_count * analysis.model.network.config.head_width
    rollout = 2 * trace.layout.token_count**2
    return int(PAGE_COPIES * (PAGE_BYTES_PER_FEATURE * features + rollout)) + SLACK_BYTES


def layer_bytes(analysis: Analysis) -> int:
    """The memory of writing the explorer's file of a layer."""
    trace = analysis.trace
    features = 2 * trace.heads * trace.layout.token_count * analysis.model.network.config.head_width
    return 4 * NUMBER_BYTES * features + cost_of(analysis.model.network.config, trace.layout).working_bytes
