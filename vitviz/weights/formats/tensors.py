"""What every format of weights is read as: tensors that stay in their file until they are read, one by one."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import listing, quote

EXPECTED = "safetensors, a file of torch.save or npz"
READABLE = (
    *(torch.float32, torch.float16, torch.bfloat16, torch.float64),
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
)


@dataclass(frozen=True, eq=False)
class WeightFile:
    """The tensors in a checkpoint file.

    Args:
        name: of the file or folder in messages.
        groups: the dicts of tensors by their path: "" at the top, "model", "state_dict.teacher", …. Those of
            safetensors and of torch are mapped from the file.
        path: of the file, or of the index.
        beside: the paths of all other entries, such as "optimizer", "epoch" and "args".
        metadata: the texts in the header of a safetensors file.
        skipped: names of classes whose objects in the file were skipped.
        entries: all that torch saved in the file; objects that it does not know are stand-ins.
    """

    name: str
    groups: Mapping[str, Mapping[str, torch.Tensor]]
    path: Path
    beside: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    entries: Mapping[Any, Any] = field(default_factory=dict)

    def without(self, patterns: Sequence[str]) -> tuple[WeightFile, list[str]]:
        """The file without the tensors whose keys match one of the patterns, and these keys.

        Args:
            patterns: of keys, with or without the path of their group: ``"head.*"``, ``"model_ema.*"``.

        Raises:
            CheckpointError: a pattern matches no key.
        """
        names = {f"{group}.{key}".lstrip("."): key for group, keys in self.groups.items() for key in keys}
        unmatched = [each for each in patterns if not fnmatch.filter([*names, *names.values()], each)]
        if unmatched:
            expected = f"one of {listing(get_close_matches(unmatched[0], names, 3) or names)}"
            refuse(self.name, f"no key like {quote(unmatched[0])}, which is to be left out", expected)
        left_out = [
            name
            for name, key in names.items()
            for each in patterns
            if fnmatch.fnmatchcase(name, each) or fnmatch.fnmatchcase(key, each)
        ]
        groups = {
            group: {key: tensor for key, tensor in keys.items() if f"{group}.{key}".lstrip(".") not in left_out}
            for group, keys in self.groups.items()
        }
        return replace(self, groups=groups), [*dict.fromkeys(left_out)]

    def read(self, group: str, key: str) -> torch.Tensor:
        """Read one tensor from the file.

        Returns:
            A contiguous float32 tensor of the shape in ``groups``, in memory of its own, with finite values.

        Raises:
            CheckpointError: it is no dense tensor of plain numbers (for example sparse, quantised or complex), or it
                has values that are not finite.
        """
        tensor = self.groups[group][key].detach()
        if tensor.dtype not in READABLE or tensor.layout != torch.strided or tensor.is_meta:
            kind = f"{tensor.dtype}, {tensor.layout}, on the device {tensor.device}"
            refuse(self.name, f"{quote(key)} is {kind}", "a dense tensor of float32, float16, bfloat16 or integers")
        tensor = tensor.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        if not tensor.isfinite().all():
            refuse(self.name, f"values that are not finite in {quote(key)}", "finite ones")
        return tensor


def refuse(name: str, problem: str, expected: str) -> NoReturn:
    """Raise the error about a file."""
    raise CheckpointError(f"{name}: {problem}; expected {expected}")
