"""How large a network may become while a package builds it from a stranger's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from vitviz.errors.kinds import CheckpointError, LimitError
from vitviz.errors.messages import quote

# The largest whole number of a configuration: of a side, a width, a vocabulary, a number of classes. A package makes
# lists and tables of such lengths before a tensor is there.
MAX_NUMBER = 2**20
# Calls of torch while a network is built; the largest published ones take some 6,000.
MAX_CALLS = 50_000


def check_numbers(config: Mapping[str, Any], name: str, file: str) -> None:
    """Refuse a configuration with numbers that no network has.

    Args:
        config: of a folder.
        name: of the checkpoint, for the message.
        file: the configuration's.

    Raises:
        CheckpointError: a whole number is beyond :data:`MAX_NUMBER`.
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
    """Ends the building of a network on the meta device, where no number is stored, once it is too large.

    Args:
        name: of the checkpoint, for the message.
        most: bytes that its tensors may take, each and all that are made new together.
    """

    def __init__(self, name: str, most: int) -> None:
        super().__init__()
        self._name, self._most = name, most
        self._calls = self._made = 0

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._calls += 1
        result = function(*args, **(kwargs or {}))
        sizes = [each.numel() * each.element_size() for each in _tensors(result)]
        if not _tensors(args) and not any(_tensors(each) for each in args):
            self._made += sum(sizes)
        if self._calls > MAX_CALLS or max([self._made, *sizes]) > self._most:
            found = f"a network of more than {self._most:,} bytes or {MAX_CALLS:,} steps"
            raise LimitError(f"{self._name}: its configuration makes {found}; allow more by max_bytes=…")
        return result


def _tensors(value: Any) -> list[torch.Tensor]:
    found = value if isinstance(value, list | tuple) else [value]
    return [each for each in found if isinstance(each, torch.Tensor)]
