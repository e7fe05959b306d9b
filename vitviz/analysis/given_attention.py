"""An analysis of attention that exists already, without the network that computed it."""

from __future__ import annotations

import warnings
from dataclasses import replace

from vitviz.attention.trace import AttentionTrace
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import PreparedImage, Preprocessing
from vitviz.images.sources import COLUMN, ImageSource, origin
from vitviz.models.given import GivenConfig, GivenNetwork
from vitviz.weights import Model

NAME = "attention weights"
NO_GRADIENT = (
    "the trace requires grad, and the maps of an analysis are numbers without a gradient; "
    "vitviz.attribution.rollout(trace).values has it. If none is wanted, compute the weights under torch.no_grad()"
)


def model_and_picture(trace: AttentionTrace, image: ImageSource) -> tuple[Model, PreparedImage]:
    """A stand-in for the model of a trace, and the whole picture as its input, one pixel for each patch.

    Raises:
        ConfigError: this is no trace.
        ImageError: the image cannot be opened.
    """
    layout = AttentionTrace.checked(trace).layout
    if any(tensor.requires_grad for tensor in (trace.queries, trace.keys, *trace.stored_weights)):
        # At the line that called Analysis.of, through the check of its arguments.
        warnings.warn(NO_GRADIENT, UserWarning, stacklevel=4)
    plain: tuple[float, ...] = (0.0, 0.0, 0.0)
    preprocessing = Preprocessing(layout.grid_height, layout.grid_width, plain, (1.0, 1.0, 1.0), fit="squash")
    prepared = preprocessing.prepare(open_image(image), 1, 1)
    model = Model(
        NAME,
        GivenNetwork(GivenConfig(layout.grid_height, layout.grid_width, layout.prefix, trace.layers, trace.heads)),
        preprocessing,
        (),
    )
    return model, replace(prepared, source=origin(image, COLUMN, None))
