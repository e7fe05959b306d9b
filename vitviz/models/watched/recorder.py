"""Records the operations of a module's pass below autograd, or compares them with those of a program.

torch's dispatch modes report every operation in this thread, however a module writes it: einsum, vmap, scripts and
kernels arrive as the same few operations. Nothing is hooked, replaced or set.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from fractions import Fraction
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vitviz.errors.kinds import ConfigError
from vitviz.models.watched.program import PICTURE, Constant, Hook, Program, Result, Step, first_tensor

Run = Callable[[torch.Tensor], torch.Tensor]
"""A forward pass: pixels of one image, ``"1 channel height width"``, to the module's output."""
Observer = Callable[[int, Step, Sequence[Any], Mapping[str, Any], Any], None]
# Tensors whose operations are of their own kind.
UNSUPPORTED = ("NestedTensor", "DTensor", "FakeTensor")
# The difference of a pass that takes elements in another order.
ORDER = "another order of elements"
# Operations that take elements in an order, and the argument that says which.
INDEXED = {"index": 1, "gather": 2, "index_select": 2, "take": 1, "take_along_dim": 1, "masked_select": 1}


class ChangedPass(ConfigError):
    """A pass differs from the program with which it is compared."""


class _Recorder(TorchDispatchMode):
    """Records the operations of a pass as steps, and knows of each tensor which one made it.

    Args:
        pixels: of the pass; None for a pass that needs none.
        observe: receives each step with the values of its arguments and result.
    """

    # Such as flex_attention: they come here as well, to be refused.
    supports_higher_order_operators = True

    def __init__(self, pixels: torch.Tensor | None, observe: Observer | None) -> None:
        super().__init__()
        self.observe = observe
        self.steps = [Step(None, shape=_shape(pixels))]
        self.constants: list[torch.Tensor] = []
        self._numbers: dict[int, int] = {}
        self._sources: dict[int, tuple[weakref.ref[torch.Tensor], Result]] = {}
        # A weak reference keeps the address of a storage from being used again.
        self._writers: dict[int, tuple[StorageWeakRef, int]] = {}
        if pixels is not None:
            self._sources[id(pixels)] = (weakref.ref(pixels), Result(PICTURE))

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        names = [kind.__name__ for kind in types or () if kind.__name__ in UNSUPPORTED]
        if isinstance(operator, HigherOrderOperator):
            names = [operator.name()]
        if names:
            raise ConfigError(
                f"it computes with {names[0]}, whose operations are not reported one by one; expected plain tensors, "
                "and attention by torch.nn.functional.scaled_dot_product_attention"
            )
        if torch.is_inference_mode_enabled():
            # There, torch reports an operation before it is taken apart.
            with self:
                parts = operator.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        number, result = len(self.steps), self._record(operator, args, kwargs)
        items = enumerate(result) if isinstance(result, tuple | list) else ((-1, result),)
        for item, each in items:
            if isinstance(each, torch.Tensor):
                self._sources[id(each)] = (weakref.ref(each), Result(number, item))
        return result

    def source(self, tensor: Any) -> Result | None:
        """The reference to a tensor; None if no operation made it."""
        known = self._sources.get(id(tensor))
        # The address of a tensor is used again after it.
        return known[1] if known is not None and known[0]() is tensor else None

    def _record(self, operator: Any, args: Any, kwargs: Any) -> Any:
        reads, hidden, number = set[int](), set[int](), len(self.steps)
        step_args = tuple(self._reference(each, reads, hidden) for each in args)
        step_kwargs = {name: self._reference(each, reads, hidden) for name, each in kwargs.items()}
        result = operator(*args, **kwargs)
        step = Step(operator, step_args, step_kwargs, frozenset(reads | hidden), frozenset(hidden), _shape(result))
        place = INDEXED.get(step.name)
        if place is not None and place < len(args):
            step.index = _hash(args[place])
        self.steps.append(step)
        for place, name in _written(operator):
            written = args[place] if place < len(args) else kwargs.get(name)
            for tensor in written if isinstance(written, tuple | list) else (written,):
                if isinstance(tensor, torch.Tensor):
                    self._writers[_storage(tensor)] = (StorageWeakRef(tensor.untyped_storage()), number)
        if self.observe is not None:
            self.observe(number, step, args, kwargs, result)
        return result

    def _reference(self, argument: Any, reads: set[int], hidden: set[int]) -> Any:
        """A reference in place of a tensor, after a note of the steps that made and changed it."""
        # A method: a nested function that calls itself would keep a pass and its traces until garbage is collected.
        kind = type(argument)
        if not isinstance(argument, torch.Tensor):
            is_row = kind in (tuple, list)
            return kind(self._reference(each, reads, hidden) for each in argument) if is_row else argument
        source = self.source(argument)
        writer = self._writers.get(_storage(argument))
        if writer is not None and (source is None or source.step < writer[1]):
            hidden.add(writer[1])
        if source is None:
            return self._constant(argument)
        reads.add(source.step)
        return source

    def _constant(self, tensor: torch.Tensor) -> Constant:
        number = self._numbers.setdefault(id(tensor), len(self.constants))
        if number == len(self.constants):
            self.constants.append(tensor)
        return Constant(number)


@contextmanager
def recording(pixels: torch.Tensor | None, observe: Observer | None) -> Iterator[_Recorder]:
    """Record what runs inside."""
    recorder = _Recorder(pixels, observe)
    # In the presence of a function mode, torch computes whole encoder layers with the operations of its modules.
    with BaseTorchFunctionMode(), recorder:
        yield recorder


def record(run: Run, pixels: torch.Tensor, observe: Observer | None = None) -> tuple[Program, torch.Tensor]:
    """A module's program for one picture, and its output.

    Raises:
        ConfigError: its output does not depend on the picture by operations that torch reports.
    """
    with recording(pixels, observe) as recorder:
        output = run(pixels)
    source, order = recorder.source(output), list(range(1, len(recorder.steps)))
    if source is None or not (program := Program(recorder.steps, recorder.constants, source, order)).live:
        raise ConfigError(
            "its output is no result of operations on the picture that torch reports: expected tensors all the way, "
            "none through numpy(), tolist() or another thread"
        )
    return program, output


def follow(run: Run, pixels: torch.Tensor, program: Program, hooks: Mapping[int, Hook]) -> torch.Tensor:
    """The output of a module's own pass, whose operations are compared with a program.

    Args:
        run: the module's forward pass.
        pixels: ``"picture channel height width"``.
        program: of another picture of the same size; or of two, for any number of pictures.
        hooks: receive results, by number of the step; what they return is not used.

    Raises:
        ChangedPass: an operation differs.
    """
    change, values = "", dict[int, Any]()
    ratio = Fraction(len(pixels), (program.steps[PICTURE].shape or (1,))[0])

    def observe(number: int, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        nonlocal change
        change = change or _difference(number, step, program, ratio)
        if not change and number in hooks:
            hooks[number](number, args, kwargs, result, values)

    with recording(pixels, observe) as recorder:
        output = run(pixels)
    if not change and (len(recorder.steps) < len(program.steps) or recorder.source(output) != program.output):
        change = "another output"
    if not change and not all(map(_same, recorder.constants, program.constants)):
        change = "another tensor that no operation made"
    if change:
        raise ChangedPass(
            f"its pass is another one each time, at {change}: expected a module that runs the same operations with the "
            "same numbers again"
        )
    return output


def _difference(number: int, step: Step, program: Program, ratio: Fraction) -> str:
    """How an operation differs from that of a program on fewer pictures by this ratio; empty for the same."""
    if number >= len(program.steps):
        return "more operations"
    expected = program.steps[number]
    # Packed weights of quantised layers cannot be compared.
    with suppress(NotImplementedError):
        if step.operator != expected.operator or not _is_like(
            (step.args, [*step.kwargs.items()]), (expected.args, [*expected.kwargs.items()]), ratio
        ):
            return f"operation {number}, {expected.name}"
    if step.index != expected.index:
        return ORDER
    shape, before = step.shape or (), expected.shape or ()
    # One of its sizes may be in proportion.
    if shape == before or (_is_like(shape, before, ratio) and math.prod(shape) == ratio * math.prod(before)):
        return ""
    return f"the shape of operation {number}, {expected.name}"


def _is_like(argument: Any, expected: Any, ratio: Fraction) -> bool:
    """Whether an argument is the expected one, with whole numbers of more pictures in places."""
    if argument == expected:
        return True
    if type(argument) in (tuple, list) and type(argument) is type(expected) and len(argument) == len(expected):
        return all(_is_like(*each, ratio) for each in zip(argument, expected, strict=True))
    return type(argument) is type(expected) is int and argument == ratio * expected


def _shape(result: Any) -> tuple[int, ...] | None:
    first = first_tensor(result)
    return tuple(first.shape) if isinstance(first, torch.Tensor) else None


def _same(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor is other or (
        tensor.shape == other.shape and tensor.dtype == other.dtype and torch.equal(tensor, other)
    )


def _storage(tensor: torch.Tensor) -> int:
    # Sparse and quantised tensors of packages may have none.
    try:
        return int(tensor.untyped_storage()._cdata)
    except (NotImplementedError, RuntimeError):
        return 0


@cache
def _written(operator: Any) -> tuple[tuple[int, str], ...]:
    """Places and names of the arguments that an operation changes."""
    arguments = operator._schema.arguments
    return tuple(
        (place, each.name)
        for place, each in enumerate(arguments)
        if each.alias_info is not None and each.alias_info.is_write
    )


def _hash(index: Any) -> int:
    tensors = index if isinstance(index, tuple | list) else (index,)
    return hash(tuple(_bytes(each) for each in tensors if isinstance(each, torch.Tensor)))


def _bytes(index: torch.Tensor) -> bytes:
    # Of a number for all features, once.
    once = tuple(slice(0, 1 if stride == 0 else None) for stride in index.stride())
    return index.detach()[once].cpu().numpy().tobytes()
