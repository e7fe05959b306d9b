"""A forward pass as a program: the operations below autograd that a module ran for a picture, in order.

It can be run again on another picture, in parts, and with other results of some operations. A module's own pass on a
picture is compared with it operation by operation (:mod:`vitviz.models.watched.recorder`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from vitviz.caching import cached_property

PICTURE = 0
"""Number of the step that stands for the pixels."""
# Operations that tell Python numbers of a tensor, or how many there are of a kind.
CONDITIONS = (
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
)
Values = dict[int, Any]
"""Results of steps by their numbers."""
Hook = Callable[[int, Sequence[Any], Mapping[str, Any], Any, Values], Any]
"""Receives a step's number, arguments and result, and the results so far; returns the result in its place."""


def first_tensor(result: Any) -> Any:
    """The result of an operation, or the first one of several, such as that of a norm beside its mean and deviation."""
    return result[0] if isinstance(result, tuple | list) and result else result


class Result(NamedTuple):
    """A reference to the result of a step, or to one of its several tensors."""

    step: int
    item: int = -1


class Constant(NamedTuple):
    """A reference to a tensor that no step made, such as a weight."""

    number: int


@dataclass(eq=False, slots=True)
class Step:
    """One operation.

    Args:
        operator: of torch's ``aten``, or of a package's own library; None for the picture.
        args, kwargs: with references in place of tensors.
        reads: numbers of the steps on which it depends.
        hidden: those of them that it reads as storage that they changed in place, without a reference.
        shape: of its result, or of the first one of several; None if there is no tensor.
        index: a hash of the whole numbers by which it takes elements in an order; None if there are none.
    """

    operator: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    reads: frozenset[int] = frozenset()
    hidden: frozenset[int] = frozenset()
    shape: tuple[int, ...] | None = None
    index: int | None = None

    @property
    def name(self) -> str:
        """The operation's name, such as ``"bmm"``; empty for the picture."""
        return "" if self.operator is None else self.operator._schema.name.rpartition("::")[2]


@dataclass(eq=False)
class Program:
    """The steps of one pass.

    Args:
        steps: in order; the first is the picture.
        constants: tensors that no step made.
        output: reference to the module's output.
        order: numbers of the steps in an order in which they can be run.
        on_run: called before each run, for a progress bar.
    """

    steps: list[Step]
    constants: list[torch.Tensor]
    output: Result
    order: list[int]
    on_run: Callable[[], Any] = field(default=lambda: None, repr=False)

    def needed(self, steps: Collection[int], given: Collection[int] = ()) -> set[int]:
        """The steps on which some depend, with these, and without those behind given results."""
        found, rest = set[int](), [*steps]
        while rest:
            number = rest.pop()
            if number not in found and number not in given:
                found.add(number)
                rest += self.steps[number].reads
        return found

    def dependent(self, source: int) -> set[int]:
        """The steps that depend on one, with it."""
        found = {source}
        for number, step in enumerate(self.steps):
            if not found.isdisjoint(step.reads):
                found.add(number)
        return found

    @property
    def live(self) -> list[int]:
        """The steps between the picture and the output, in order."""
        needed = self.needed([self.output.step])
        return [number for number in sorted(self.dependent(PICTURE)) if number in needed]

    @cached_property
    def has_conditions(self) -> bool:
        """Whether Python reads numbers of the picture, so that it may run other operations for another one."""
        return any(self.steps[number].name in CONDITIONS for number in self.dependent(PICTURE))

    def run(
        self,
        given: Mapping[int, Any],
        results: Sequence[Result],
        hooks: Mapping[int, Hook] | None = None,
        also: Collection[int] = (),
    ) -> list[Any]:
        """Some results, by running the steps on which they depend.

        Args:
            given: results by number of the step, such as the pixels.
            results: references to them.
            hooks: functions that may replace results, by number of the step.
            also: numbers of other steps to run, whose results are not kept.
        """
        self.on_run()
        hooks, keep = hooks or {}, {each.step for each in results}
        needed = self.needed([*also, *keep], given)
        order = [number for number in self.order if number in needed]
        # After which step each result is of no use any more.
        last = {read: number for number in order for read in self.steps[number].reads if read not in keep}
        values: Values = dict(given)
        for number in order:
            step = self.steps[number]
            args = self._value(step.args, values)
            kwargs = {name: self._value(each, values) for name, each in step.kwargs.items()}
            result = step.operator(*args, **kwargs)
            hook = hooks.get(number)
            values[number] = result if hook is None else hook(number, args, kwargs, result, values)
            for read in step.reads:
                if last.get(read) == number:
                    values.pop(read, None)
        return [_item(values, each) for each in results]

    def _value(self, argument: Any, values: Values) -> Any:
        """An argument of a step, with tensors in place of references."""
        kind = type(argument)
        if kind is Result:
            return _item(values, argument)
        if kind is Constant:
            # No gradient is wanted of weights.
            return self.constants[argument.number].detach()
        return kind(self._value(each, values) for each in argument) if kind in (tuple, list) else argument

    def cuts(self) -> Iterator[int]:
        """The steps through which everything passes that the output reads of the picture, in order."""
        live, reach = self.live, -1
        users = {read: number for number in live for read in self.steps[number].reads}
        # More than one result is no one tensor.
        several = {
            each.step
            for number in live
            for each in _references(self.steps[number])
            if isinstance(each, Result) and each.item > 0
        }
        hidden = several.union(*(self.steps[number].hidden for number in live))
        for number in live:
            if reach <= number and number not in hidden:
                yield number
            reach = max(reach, users.get(number, -1))

    def constants_before(self, step: int) -> set[int]:
        """The constants on which a step depends, by their ``id``."""
        found = (each for number in self.needed([step]) for each in _references(self.steps[number]))
        return {id(self.constants[each.number]) for each in found if isinstance(each, Constant)}

    def with_constants(self, others: Mapping[int, torch.Tensor]) -> Program:
        """The same program with other tensors in place of constants, by their ``id``."""
        constants = [others.get(id(tensor), tensor) for tensor in self.constants]
        return Program(self.steps, constants, self.output, self.order)

    def delay(self, parts: Sequence[int]) -> None:
        """Let no step that depends on one of these steps run before the last of them."""
        first, last = min(parts), max(parts)
        behind = set[int]().union(*(self.dependent(part) for part in parts)) - set(parts)
        middle = [number for number in self.order if first <= number <= last]
        start = self.order.index(middle[0])
        self.order[start : start + len(middle)] = sorted(middle, key=lambda number: number in behind)


def _item(values: Values, reference: Result) -> Any:
    value = values[reference.step]
    return value if reference.item < 0 else value[reference.item]


def _references(step: Step) -> Iterator[Result | Constant]:
    rest: list[Any] = [*step.args, *step.kwargs.values()]
    while rest:
        each = rest.pop()
        if type(each) in (Result, Constant):
            yield each
        elif type(each) in (tuple, list):
            rest += each
