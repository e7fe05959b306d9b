"""What vitviz says when something is wrong: the errors, how a message shows a value, and checks of arguments.

Every error that a user can cause is a :class:`VitvizError`. What a particular argument means is checked where it is
used.
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
