"""What a module does not state, gathered into one message with the call that states it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitviz.errors.kinds import ConfigError

Question = tuple[str, str]
"""What an argument is, in words, and code for it."""
IMAGE_SIZE: Question = ("the height and width of its images in pixels, such as 224", "224")
PATCH_SIZE: Question = ("the height and width of its patches in pixels, such as 16", "16")


def not_stated(name: str, stated: Mapping[str, Any], missing: Mapping[str, Question]) -> ConfigError:
    """One error that asks for all that is missing.

    Args:
        name: of the module.
        stated: arguments of :func:`vitviz.load` from the user, which the call in the message repeats.
        missing: questions by argument.
    """
    meanings = "; ".join(f"{argument} = {expected}" for argument, (expected, _) in missing.items())
    arguments = [f"{argument}={_code(value)}" for argument, value in stated.items() if value is not None]
    arguments += [f"{argument}={example}" for argument, (_, example) in missing.items()]
    call = f"vitviz.load(module, {', '.join(arguments)})"
    return ConfigError(f"{name}: the module does not say its {', '.join(missing)}; expected {meanings}; such as {call}")


def _code(value: Any) -> str:
    """Code for an argument; an ellipsis for an object."""
    return repr(value) if isinstance(value, int | str | tuple | list) and len(repr(value)) <= 60 else "…"


def labels_question(width: int) -> Question:
    """Of a module with this many outputs."""
    example = f"[f'class {{number}}' for number in range({width})]"
    return f"{width} names where its {width} outputs are classes, or () where they are features", example


def prefix_question(extra: int) -> Question:
    """Of a module with this many tokens that are no patches."""
    names = ["cls", *(f"register {number}" for number in range(1, extra))]
    return f"{extra} name{'s' * (extra != 1)}, of its tokens that are no patches", repr(names)
