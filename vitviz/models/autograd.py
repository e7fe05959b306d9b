"""Gradients of a score that arrive, or a refusal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from vitviz.errors.kinds import MethodError
from vitviz.models.network import Network

NO_GRADIENTS = (
    "the module computes without gradients, such as under torch.no_grad: its score has none; if lower layers alone do, "
    "start_layer=… begins above them"
)
INFERENCE = (
    "weights or features are from torch.inference_mode, through which no gradient arrives: make them under "
    "torch.no_grad instead, or load copy.deepcopy(module)"
)
# Parts of torch's messages, and what they mean.
MEANINGS = {
    "inference tensor": INFERENCE,
    "modified by an inplace operation": ("the module overwrites in place what its gradients need: its score has none"),
    "does not require grad": NO_GRADIENTS,
    "appears to not have been used": NO_GRADIENTS,
    "use_reentrant": "gradients of pixels do not pass torch.utils.checkpoint with use_reentrant=True; expected False",
}


@contextmanager
def arriving_gradients(network: Network) -> Iterator[None]:
    """Refuse a network whose gradients do not arrive, in the words of one sentence.

    Raises:
        MethodError: its weights are from inference mode, or it computes without gradients or overwrites what they need.
    """
    if any(parameter.is_inference() for parameter in network.parameters()):
        raise MethodError(INFERENCE)
    try:
        yield
    except RuntimeError as error:
        meaning = next((meaning for part, meaning in MEANINGS.items() if part in str(error).lower()), None)
        if meaning is None:
            raise
        raise MethodError(meaning) from None
