"""The exceptions of vitviz, how their messages show values, and checks of arguments.

Every error that a user can cause is a :class:`VitvizError`. Checks that depend on the meaning of an argument stand
where the argument is used.
"""

from vitviz.errors.kinds import (
    CheckpointError,
    ConfigError,
    DataError,
    ImageError,
    LimitError,
    MethodError,
    QueryError,
    VitvizError,
)

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "ImageError",
    "LimitError",
    "MethodError",
    "QueryError",
    "VitvizError",
]
