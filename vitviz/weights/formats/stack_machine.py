"""The stack machine of a pickle: it builds lists, tuples and dicts; a handler has names, storages and calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from vitviz.errors.messages import quote
from vitviz.weights.formats.opcodes import CODES, READERS, Buffer, Data, opcodes

# Opcodes whose argument is a value.
CONSTANTS = {
    CODES[name]
    for name in READERS
    if name in ("INT", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "BYTEARRAY8")
    or name.startswith("BININT")
    or any(kind in name for kind in ("STRING", "UNICODE", "BINBYTES"))
}
MISSING = object()


class Handler(Protocol):
    """Resolves the names, storages and calls of a pickle."""

    def count(self, steps: int) -> None: ...

    def name(self, module: object, attribute: object, rest: Callable[[], Data]) -> object: ...

    def storage(self, identity: object) -> object: ...

    def call(self, function: object, arguments: object) -> object: ...

    def build(self, value: object, attributes: object) -> None: ...


class NonTextKey:
    """A dict key that is not text, and is never looked up.

    It is hashed by identity. A file could choose numbers with equal hashes, for which a dict takes quadratic time.
    """

    def __init__(self, value: object) -> None:
        self.value = value

    def __str__(self) -> str:
        return quote(self.value)


class StackMachine:
    """Reads one pickle.

    Args:
        handler: of names, storages and calls.
        content: bytes that include the pickle.
        position: of its beginning; after :meth:`run`, of its end.
    """

    def __init__(self, handler: Handler, content: Buffer, position: int) -> None:
        self.handler, self.content, self.position = handler, content, position
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        # Not a dict, for which the file could choose keys with equal hashes.
        self.memo: list[Any] = []

    def run(self) -> object:
        """The value of the pickle.

        Raises:
            ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, struct.error: the pickle
                is damaged, or is not one of torch.
        """
        count = self.handler.count
        for code, argument, position in opcodes(self.content, self.position):
            count(1)
            if code in CONSTANTS:
                self.stack.append(argument)
            else:
                self.position = position
                OPERATIONS[code](self, argument)
        if self.marks:
            raise ValueError
        return self.stack.pop()

    def rest(self) -> Data:
        return self.content[self.position :]

    def ignore(self, argument: object) -> None:
        """Handle opcodes that only describe how the pickle is written."""

    def put(self, index: int) -> None:
        # Picklers number the memo consecutively.
        missing = index + 1 - len(self.memo)
        if missing > MAX_MEMO_GAP:
            raise ValueError
        self.memo += [MISSING] * missing
        self.memo[index] = self.stack[-1]

    def memoize(self, argument: None) -> None:
        self.memo.append(self.stack[-1])

    def get(self, index: int) -> None:
        value = self.memo[index]
        if index < 0 or value is MISSING:
            raise ValueError
        self.stack.append(value)

    def mark(self, argument: None) -> None:
        self.marks.append(self.stack)
        self.stack = []

    def pop_to_mark(self) -> list[Any]:
        """Remove the last mark, and the values pushed since; returns these."""
        items, self.stack = self.stack, self.marks.pop()
        return items

    def pop(self, argument: None) -> None:
        if self.stack:
            self.stack.pop()
        else:
            self.pop_to_mark()

    def pop_marked(self, argument: None) -> None:
        self.pop_to_mark()

    def duplicate(self, argument: None) -> None:
        self.stack.append(self.stack[-1])

    def empty_list(self, argument: None) -> None:
        self.stack.append([])

    def make_list(self, argument: None) -> None:
        items = self.pop_to_mark()
        self.stack.append(items)

    def append(self, argument: None) -> None:
        value = self.stack.pop()
        _list(self.stack[-1]).append(value)

    def appends(self, argument: None) -> None:
        items = self.pop_to_mark()
        _list(self.stack[-1]).extend(items)

    def empty_dict(self, argument: None) -> None:
        self.stack.append({})

    def make_dict(self, argument: None) -> None:
        items = self.pop_to_mark()
        self.stack.append(update_dict({}, items))

    def set_item(self, argument: None) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        update_dict(self.stack[-1], [key, value])

    def set_items(self, argument: None) -> None:
        items = self.pop_to_mark()
        update_dict(self.stack[-1], items)

    def make_tuple(self, argument: None) -> None:
        items = self.pop_to_mark()
        self.stack.append(tuple(items))

    def make_tuple_1(self, argument: None) -> None:
        self.stack[-1] = (self.stack[-1],)

    def make_tuple_2(self, argument: None) -> None:
        second, first = self.stack.pop(), self.stack.pop()
        self.stack.append((first, second))

    def make_tuple_3(self, argument: None) -> None:
        third, second, first = self.stack.pop(), self.stack.pop(), self.stack.pop()
        self.stack.append((first, second, third))

    def name(self, argument: tuple[str, str]) -> None:
        self.stack.append(self.handler.name(*argument, self.rest))

    def stack_name(self, argument: None) -> None:
        attribute, module = self.stack.pop(), self.stack.pop()
        self.stack.append(self.handler.name(module, attribute, self.rest))

    def storage(self, argument: None) -> None:
        self.stack.append(self.handler.storage(self.stack.pop()))

    def reduce(self, argument: None) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(self.handler.call(function, arguments))

    def new_with_keywords(self, argument: None) -> None:
        self.stack.pop()
        self.reduce(None)

    def instance(self, argument: tuple[str, str]) -> None:
        items = self.pop_to_mark()
        self.stack.append(self.handler.call(self.handler.name(*argument, self.rest), tuple(items)))

    def make_object(self, argument: None) -> None:
        items = self.pop_to_mark()
        self.stack.append(self.handler.call(items[0], tuple(items[1:])))

    def build(self, argument: None) -> None:
        attributes = self.stack.pop()
        self.handler.build(self.stack[-1], attributes)


# Limit of skipped memo indices: one pickler of Python 2 starts at 1.
MAX_MEMO_GAP = 1000
_BY_NAME: dict[str, Callable[[StackMachine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), StackMachine.ignore),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), StackMachine.put),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), StackMachine.get),
    "MEMOIZE": StackMachine.memoize,
    "MARK": StackMachine.mark,
    "POP": StackMachine.pop,
    "POP_MARK": StackMachine.pop_marked,
    "DUP": StackMachine.duplicate,
    "NONE": lambda machine, argument: machine.stack.append(None),
    "NEWTRUE": lambda machine, argument: machine.stack.append(True),
    "NEWFALSE": lambda machine, argument: machine.stack.append(False),
    **dict.fromkeys(("EMPTY_LIST", "EMPTY_SET"), StackMachine.empty_list),
    **dict.fromkeys(("LIST", "FROZENSET"), StackMachine.make_list),
    "APPEND": StackMachine.append,
    **dict.fromkeys(("APPENDS", "ADDITEMS"), StackMachine.appends),
    "EMPTY_DICT": StackMachine.empty_dict,
    "DICT": StackMachine.make_dict,
    "SETITEM": StackMachine.set_item,
    "SETITEMS": StackMachine.set_items,
    "EMPTY_TUPLE": lambda machine, argument: machine.stack.append(()),
    "TUPLE": StackMachine.make_tuple,
    "TUPLE1": StackMachine.make_tuple_1,
    "TUPLE2": StackMachine.make_tuple_2,
    "TUPLE3": StackMachine.make_tuple_3,
    "GLOBAL": StackMachine.name,
    "STACK_GLOBAL": StackMachine.stack_name,
    "BINPERSID": StackMachine.storage,
    **dict.fromkeys(("REDUCE", "NEWOBJ"), StackMachine.reduce),
    "NEWOBJ_EX": StackMachine.new_with_keywords,
    "INST": StackMachine.instance,
    "OBJ": StackMachine.make_object,
    "BUILD": StackMachine.build,
}
OPERATIONS = {CODES[name]: operation for name, operation in _BY_NAME.items()}
assert OPERATIONS.keys() | CONSTANTS == set(CODES.values())


def update_dict(mapping: object, items: Sequence[object]) -> dict[object, object]:
    """Add alternating keys and values to a dict, and return it."""
    if not isinstance(mapping, dict) or len(items) % 2:
        raise ValueError
    for key, value in zip(items[::2], items[1::2], strict=True):
        mapping[key if isinstance(key, str) else NonTextKey(key)] = value
    return mapping


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError
    return value
