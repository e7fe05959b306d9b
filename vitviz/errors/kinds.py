"""The exceptions that vitviz raises.

VitvizError
├── ImageError        a file, array or picture that cannot be used as an image
├── ConfigError       a model or run configuration that contradicts itself
├── CheckpointError   a file that is not a checkpoint vitviz can load exactly
│   └── UnknownFamilyError   a checkpoint of a layout that vitviz has no network for
├── QueryError        a layer, head or token that the model does not have
├── MethodError       a method or parameter that does not exist or does not apply to the model
├── DataError         a training set that cannot be trained on
└── LimitError        an analysis that would need more memory than it may take

Every message names the input, what was found, what was expected and, where there is a choice, the legal ones.
"""

from __future__ import annotations


class VitvizError(Exception):
    """Base of every error that vitviz raises on purpose.

    Attributes:
        is_over_limit: whether a file was given up because opening it takes too much, in the app.

    >>> try:
    ...     vitviz.analyze("missing.jpg", model)
    ... except vitviz.VitvizError as error:
    ...     print(error)
    missing.jpg: no such file in ...; expected a JPEG, PNG, WEBP, GIF, TIFF, BMP, PPM or AVIF file
    """

    is_over_limit = False


class ImageError(VitvizError):
    """A file, array or picture cannot be used as an image.

    >>> vitviz.open_image(None)
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.ImageError: the image: None found; expected a path, bytes, a PIL image, a NumPy array ...
    """


class ConfigError(VitvizError):
    """A model or run configuration contradicts itself.

    >>> vitviz.analyze("cat.jpg", model, "resize")
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.ConfigError: fit 'resize': expected 'crop', 'squash' or 'native'
    """


class CheckpointError(VitvizError):
    """A file is not a checkpoint that vitviz can load exactly.

    >>> vitviz.load("missing.pth")
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.CheckpointError: 'missing.pth': neither a checkpoint's name nor a file or folder ...

    Attributes:
        architectures: timm's names that fit a file that states none; ``architecture=…`` with one of them opens it.
    """

    architectures: tuple[str, ...] = ()


class UnknownFamilyError(CheckpointError):
    """A checkpoint is of a layout that vitviz has no network for; the package that it comes from may open it.

    >>> vitviz.load("other.pth")
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.UnknownFamilyError: other.pth: no layout that vitviz has a network for: its keys are ...
    """


class QueryError(VitvizError):
    """The model does not have the requested layer, head or token.

    >>> analysis.attention(layer=8)
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.QueryError: layer 8: this model has layers 0 to 7 (or -8 to -1 from the end)
    """


class MethodError(VitvizError):
    """A method or a parameter of one does not exist, or does not apply to this model.

    >>> analysis.rollout(discard_ratio=90)
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.MethodError: discard_ratio = 90: expected a number in [0, 1)
    """


class DataError(VitvizError):
    """A folder of images cannot be trained or evaluated on.

    >>> vitviz.datasets.read_items("empty")
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.DataError: empty: no picture in it; expected a folder with pictures
    """


class LimitError(VitvizError):
    """An analysis or a network would need more memory than it may take.

    >>> vitviz.analyze("cat.jpg", model, max_bytes=2**22)
    Traceback (most recent call last):
        ...
    vitviz.errors.kinds.LimitError: image of 451×300 pixels as an input of 112×112: 201 tokens need about ...
    """
