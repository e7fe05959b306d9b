"""A few numbers by which changed weights are noticed, such as those of a module that is trained further."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from vitviz.models.network import Network
from vitviz.models.vit import VisionTransformer

CHANGED_WEIGHTS = "its weights have changed since this analysis was made"
AFTER_TRAINING = "analyse the picture again, or load copy.deepcopy(module), which keeps its weights, before training"
# Entries of each tensor at least, spread over all of it.
SAMPLES = 8


def weight_samples(tensors: Iterable[torch.Tensor]) -> bytes:
    """A few entries of each tensor, the same for a copy of it.

    torch's own count of changes leaves out those through ``.data``, and starts anew in a copy.
    """
    samples = [
        tensor.detach().reshape(-1)[:: max(1, tensor.numel() // SAMPLES)].float()
        for tensor in tensors
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided and tensor.numel()
    ]
    return torch.cat(samples).cpu().numpy().tobytes() if samples else b""


def network_samples(network: Network) -> bytes:
    """:func:`weight_samples` of a network; empty for frozen weights of vitviz's own network, which nobody trains."""
    parameters = list(network.parameters())
    if isinstance(network, VisionTransformer) and not any(parameter.requires_grad for parameter in parameters):
        return b""
    return weight_samples(parameters)
