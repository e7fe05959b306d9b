"""One attention among the operations of a pass, and the operations of which it can consist."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.program import Result, Step

FUSED = (
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
    "_scaled_dot_product_fused_attention_overrideable",
)
# Operations that code behind an attention kernel of a package would have in its name.
KERNELS = ("attention", "flash", "attn")
# Products, with the places of their operands.
PRODUCTS = {"bmm": (0, 1), "mm": (0, 1), "baddbmm": (1, 2), "addmm": (1, 2)}
LINEAR = ("addmm", "mm", "linear", "mkldnn_linear", "_int_mm")
# Operations that keep the numbers of a tensor, and their order.
COPIES = (
    *("view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "expand", "clone", "contiguous", "_to_copy"),
    *("detach", "alias", "dropout", "native_dropout", "lift_fresh", "_reshape_alias"),
)
TRANSPOSES = ("transpose", "permute", "t")
# The least weight whose logarithm is exact.
MIN_WEIGHT = 1e-30
# The most by which a weight may differ from the softmax of its scores, and a sum of weights from 1, in each type.
ROUNDING = {torch.float64: 1e-6, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


Operands = dict[int, Sequence[Any]]
"""The arguments of products, by number of the step."""


@dataclass(frozen=True)
class Attention:
    """One attention of a program.

    Args:
        step: number of the fused kernel, or of the product with values.
        is_fused: whether it is a kernel.
        is_flipped: whether the product has the values first: valuesᵀ · weightsᵀ.
        scores: number of the product of queries and keys; None if there is none.
        scale: factor of the scores; what it does not explain of the weights is a bias.
        factor: part of it that queries and keys both have in their product, as in torch's own kernel of plain products.
        leading: leading dimensions of the weights before queries and keys, from pictures to heads.
        is_swapped: whether the heads come before windows, as in Hiera.
        shared: number of heads that share their keys and values, and whose queries stand in one matrix.
    """

    step: int
    is_fused: bool
    is_flipped: bool = False
    scores: int | None = None
    scale: float = 1.0
    factor: float = 1.0
    leading: tuple[int, ...] = ()
    is_swapped: bool = False
    shared: int = 1

    def values_of(self, steps: Sequence[Step]) -> Any:
        """The reference to its values."""
        step = steps[self.step]
        return step.args[2 if self.is_fused else PRODUCTS[step.name][not self.is_flipped]]


def origin(steps: Sequence[Step], reference: Any, names: Collection[str] = (*COPIES, *TRANSPOSES)) -> Any:
    """The reference to a tensor before views and copies of all of it, as far back as it is known what steps read."""
    while (
        type(reference) is Result
        and reference.item < 0
        and steps[reference.step].name in names
        and steps[reference.step].args
    ):
        reference = steps[reference.step].args[0]
    return reference


def is_split(steps: Sequence[Step], parts: Sequence[Attention]) -> bool:
    """Whether parts have the same values, so that they are slices of the queries of one attention."""
    return len(parts) > 1 and len({origin(steps, part.values_of(steps)) for part in parts}) == 1


def check_kernel(step: Step) -> None:
    """Refuse an attention kernel that is not read.

    Raises:
        ConfigError: the step is one.
    """
    if step.name not in FUSED and any(word in step.name for word in KERNELS):
        raise ConfigError(f"its attention is computed by the kernel {step.name}, which is not read")


def arguments_of(step: Step, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a step by their names."""
    names = [each.name for each in step.operator._schema.arguments]
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def operands_of(step: Step, args: Sequence[Any]) -> tuple[Any, Any]:
    """Both operands of a product."""
    first, second = PRODUCTS[step.name]
    return args[first], args[second]


def shared_factor(steps: Sequence[Step], product: Step) -> float:
    """The number by which both operands of a product were multiplied before views of them; 1 if there is none."""
    sources = [steps[origin(steps, each).step] for each in operands_of(product, product.args)]
    factors = [each.args[1] for each in sources if each.name == "mul" and [*map(type, each.args[1:])] == [float]]
    return factors[0] if len(factors) == 2 and factors[0] == factors[1] > 0 else 1.0


def queries_and_keys(step: Step, args: Sequence[Any], is_flipped: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The queries ``"… query dim"`` and keys ``"… key dim"`` of a product of them, keys first if it is flipped."""
    first, second = operands_of(step, args)
    return (second.mT, first) if is_flipped else (first, second.mT)
