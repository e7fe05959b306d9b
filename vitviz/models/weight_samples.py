"""A few numbers by which changed weights are noticed, such as those of a module that is trained further."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

from vitviz.models.network import Network
from vitviz.models.vit import VisionTransformer

CHANGED_WEIGHTS = "its weights have changed since this analysis was made"
AFTER_TRAINING = "analyse the picture again, or load copy.deepcopy(module), which keeps its weights, before training"
# Entries of each tensor at least, spread over all of it.
SAMPLES = 8
# So many that a head whose weights are set to zero is among them.
NETWORK_SAMPLES = 1024


def weight_samples(tensors: Iterable[torch.Tensor], count: int = SAMPLES) -> bytes:
    """At least ``count`` entries of each tensor, or all, the same for a copy of it.

    torch's own count of changes leaves out those through ``.data``, and starts anew in a copy. Numbers of 64 bits may
    count the passes of a module, and are no weights; quantised ones have eight.

    >>> weight_samples([torch.tensor([3])])
    b''
    """
    samples = [
        tensor.detach().reshape(-1)[:: max(1, tensor.numel() // count)].float()
        for tensor in tensors
        if type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.layout == torch.strided
        and tensor.numel()
        and tensor.dtype != torch.int64
    ]
    return torch.cat(samples).cpu().numpy().tobytes() if samples else b""


def network_samples(network: Network) -> bytes:
    """A hash of :func:`weight_samples` of a network's parameters and persistent buffers.

    Empty for frozen weights of vitviz's own network, which nobody trains.
    """
    if isinstance(network, VisionTransformer) and not any(each.requires_grad for each in network.parameters()):
        return b""
    return hashlib.sha256(weight_samples(network.state_dict().values(), NETWORK_SAMPLES)).digest()
