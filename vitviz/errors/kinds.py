"""The exceptions that vitviz raises.

VitvizError
├── ImageError        a file, array or picture that cannot be used as an image
├── ConfigError       a model or run configuration that contradicts itself
├── CheckpointError   a file that is not a checkpoint vitviz can load exactly
│   └── UnknownFamilyError   a checkpoint of a network that vitviz does not implement
├── QueryError        a layer, head or token that the model does not have
├── MethodError       a method or parameter that does not exist or does not apply to the model
├── DataError         a training set that cannot be trained on
└── LimitError        an analysis that would need more memory than it may take

Every message names the input, what was found, what was expected and, where there is a choice, the legal ones.
"""

from __future__ import annotations


class VitvizError(Exception):
    """Base of every error that vitviz raises on purpose."""


class ImageError(VitvizError):
    """A file, array or picture cannot be used as an image."""


class ConfigError(VitvizError):
    """A model or run configuration contradicts itself."""


class CheckpointError(VitvizError):
    """A file is not a checkpoint that vitviz can load exactly."""


class UnknownFamilyError(CheckpointError):
    """A checkpoint is of a family that vitviz does not implement; the package that it comes from may open it."""


class QueryError(VitvizError):
    """The model does not have the requested layer, head or token."""


class MethodError(VitvizError):
    """A method or a parameter of one does not exist, or does not apply to this model."""


class DataError(VitvizError):
    """A folder of images cannot be trained or evaluated on."""


class LimitError(VitvizError):
    """An analysis or a network would need more memory than it may take."""
