"""Limits of a network that a package builds from an untrusted configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.errors.messages import quote

# Largest whole number in a configuration, such as a side, a width, a vocabulary or a number of classes. Packages
# create lists of such lengths before any tensor.
MAX_NUMBER = 2**20
# Calls of torch while a network is built; the largest published ones need some 6,000.
MAX_CALLS = 50_000


def check_numbers(config: Mapping[str, Any], name: str, file: str) -> None:
    """Refuse a configuration with numbers that are too large for any network.

    Args:
        config: of a folder.
        name: of the checkpoint, for the message.
        file: name of the configuration's file, for the message.

    Raises:
        CheckpointError: a whole number exceeds :data:`MAX_NUMBER`.
    """
    places: list[tuple[str, Any]] = [("", config)]
    while places:
        place, value = places.pop()
        if isinstance(value, Mapping):
            places += [(f"{place}.{key}".lstrip("."), each) for key, each in value.items()]
        elif isinstance(value, list):
            places += [(place, each) for each in value]
        elif isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise CheckpointError(f"{name}: {quote(place)} = {quote(value)} in {file}: expected at most {MAX_NUMBER:,}")


class BuildingAllowance(TorchFunctionMode):
    """Stops the building of a network on the meta device once it is too large.

    Args:
        name: of the checkpoint, for the message.
        max_bytes: limit for each tensor, and for all new tensors together.
    """

    def __init__(self, name: str, max_bytes: int) -> None:
        super().__init__()
        self._name, self._max_bytes = name, max_bytes
        self._calls = self._new_bytes = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls += 1
        result = function(*args, **(kwargs or {}))
        sizes = [each.numel() * each.element_size() for each in _tensors(result)]
        if not _tensors(args) and not any(_tensors(each) for each in args):
            self._new_bytes += sum(sizes)
        if self._calls > MAX_CALLS or max([self._new_bytes, *sizes]) > self._max_bytes:
            problem = f"a network of more than {self._max_bytes:,} bytes or {MAX_CALLS:,} steps"
            raise LimitError(f"{self._name}: its configuration makes {problem}; allow more by max_bytes=…")
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    values = value if isinstance(value, list | tuple) else [value]
    return [each for each in values if isinstance(each, torch.Tensor)]
