"""A JSON object whose every entry must be used, skipped as harmless, or refused by name."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeGuard

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices, several

# Far above any real side, and small enough to divide by.
MAX_SIDE = 1_000_000


class Settings(Mapping[str, Any]):
    """A JSON object that records which entries were read, and whose errors name the place, the value and legal ones.

    An unread entry may be one that changes numbers, so :meth:`check_unread` refuses it.

    Args:
        values: the entries.
        place: where the object stands, as messages name it: ``"config.json"``.
    """

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values, self.place = values, place
        self._read: set[str] = set()
        self._inner: dict[str, Settings] = {}

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        return name in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Settings({reprlib.repr(dict(self._values))}, {self.place!r})"

    @property
    def was_read(self) -> bool:
        """Whether any entry was read."""
        return bool(self._read or self._inner)

    def get(self, name: str, default: Any = None) -> Any:
        """A value; null counts as a missing entry."""
        value = self[name] if name in self._values else None
        return default if value is None else value

    def with_defaults(self, defaults: Mapping[str, Any]) -> Settings:
        """The same object with these entries where it has none; what is read from it counts as read here, too."""
        return Settings({}, self.place).share(self, defaults)

    def share(self, other: Settings, defaults: Mapping[str, Any] | None = None) -> Settings:
        """Become another object with defaults; what is read here counts as read there, too."""
        stated = {name: value for name, value in other._values.items() if value is not None}
        self._values, self._read, self._inner = {**(defaults or {}), **stated}, other._read, other._inner
        return self

    def inner(self, name: str) -> Settings | None:
        """The object under a name, whose own entries must then be read, too; None if there is no such entry.

        Raises:
            CheckpointError: the entry is not an object.
        """
        if name not in self._inner:
            value = self._values.get(name)
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise self.refuse(name, "a JSON object")
            self._inner[name] = Settings(value, f"{name} in {self.place}")
        return self._inner[name]

    def inner_or_empty(self, name: str) -> Settings:
        """The same as :meth:`inner`, with an empty object in place of None."""
        return self.inner(name) or Settings({}, f"{name} in {self.place}")

    def skip(self, names: Collection[str]) -> None:
        """Mark entries that change no number as read; names may contain ``*``."""
        patterns = [name for name in names if "*" in name]
        for name in self._values:
            if name in names or any(fnmatchcase(name, pattern) for pattern in patterns):
                self._read.add(name)

    def unread(self) -> dict[str, Any]:
        """The entries that were not read, those of inner objects as ``"outer.inner"``, except null ones."""
        unread: dict[str, Any] = {}
        for name, value in self._values.items():
            if name in self._inner:
                unread |= {f"{name}.{rest}": value for rest, value in self._inner[name].unread().items()}
            elif value is not None and name not in self._read:
                unread[name] = value
        return unread

    def check_unread(self, ignore: Collection[str] = ()) -> list[str]:
        """Refuse entries that were not read, except those that the user ignores.

        Args:
            ignore: patterns, ``"config.json:model_args.*"``.

        Returns:
            The ignored entries, written like such a pattern.

        Raises:
            CheckpointError: an entry was neither used nor skipped.
        """
        unread = {f"{self.place}:{name}": f"{name} = {reprlib.repr(value)}" for name, value in self.unread().items()}
        left_out = [name for name in unread if any(fnmatchcase(name, pattern) for pattern in ignore)]
        surplus = {name: entry for name, entry in unread.items() if name not in left_out}
        if surplus:
            changes = "these change" if len(surplus) > 1 else "this changes"
            raise CheckpointError(
                f"{self.place}: {several(list(surplus.values()))}: vitviz does not know what {changes}; where it is "
                f"nothing, say ignore={list(surplus) if len(surplus) <= 4 else [f'{self.place}:*']}"
            )
        return left_out

    def refuse(self, name: str, expected: str) -> CheckpointError:
        value = reprlib.repr(self.get(name, "nothing"))
        return CheckpointError(f"{self.place}: {name} = {value}: expected {expected}")

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.refuse(name, "true or false")
        return value

    def choice(self, name: str, options: Mapping[str, str], default: str) -> str:
        value = self.get(name, default)
        if not isinstance(value, str) or value not in options:
            raise self.refuse(name, choices(options))
        return options[value]

    def only(self, name: str, *legal: Any) -> Any:
        """An entry that must have one of these values; the first is the default of a missing entry."""
        value = self.get(name, legal[0])
        if not any(type(value) is type(option) and value == option for option in legal):
            raise self.refuse(name, choices(legal))
        return value

    def require(self, name: str, value: object, default: object = None) -> None:
        """Refuse an entry that the weights contradict.

        Args:
            name: of the entry.
            value: that the weights have.
            default: of a missing entry.

        Raises:
            CheckpointError: the entry has another value.
        """
        stated = self.get(name, default)
        if stated != value or isinstance(stated, bool) != isinstance(value, bool):
            raise self.refuse(name, f"{value!r}, as its weights are")

    def count(self, name: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number of at least ``minimum``.

        Raises:
            CheckpointError: the entry is something else, or missing without a default.
        """
        value = self.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and minimum <= value < 2**63:
            return value
        raise self.refuse(name, f"a whole number of at least {minimum}")

    def positive(self, name: str, default: float | None = None) -> float:
        """A number above 0."""
        value = self.get(name, default)
        if not is_number(value) or value <= 0:
            raise self.refuse(name, "a number above 0")
        return float(value)

    def size(self, name: str) -> tuple[int, int] | None:
        """A number or a pair, as height and width."""
        value = self.get(name)
        sides = both_sides(value)
        if value is not None and sides is None:
            raise self.refuse(name, "one or two whole numbers above 0")
        return sides

    def numbers(self, name: str, default: tuple[float, ...], count: int) -> tuple[float, ...]:
        """One number for each channel; a single number is repeated."""
        value = self.get(name, list(default))
        if is_number(value):
            value = [value] * count
        if not isinstance(value, list | tuple) or len(value) != count or not all(map(is_number, value)):
            raise self.refuse(name, "a number" if count == 1 else f"{count} numbers")
        return tuple(value)

    def texts(self, name: str) -> dict[int, str]:
        """Texts by number, from a list or from an object whose names are numbers; empty if the entry is missing."""
        value = self.get(name, [])
        if isinstance(value, list):
            value = dict(enumerate(value))
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise self.refuse(name, "a text for every class")
        if not all(re.fullmatch(r"\d{1,9}", str(number)) for number in value):
            raise self.refuse(name, "texts by the number of their class")
        return {int(number): text for number, text in value.items()}


def is_number(value: object) -> bool:
    """Whether a JSON value is a number that fits into a float."""
    # math.isfinite fails for whole numbers that are too large for a float.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e9


def is_side(value: object) -> TypeGuard[int]:
    """Whether a JSON value can be a side of an image in pixels."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_SIDE


def are_sides(value: object, count: int) -> TypeGuard[Sequence[int]]:
    """Whether a JSON value is a list of as many sides of an image in pixels."""
    return isinstance(value, list | tuple) and len(value) == count and all(map(is_side, value))


def both_sides(value: object) -> tuple[int, int] | None:
    """Height and width from one number or a pair; None for another value."""
    if is_side(value):
        return value, value
    return (value[0], value[1]) if are_sides(value, 2) else None
