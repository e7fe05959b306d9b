"""Pictures: opening one of any kind, what decoding it may cost, encoding one, and how it becomes a model's input.

What belongs here needs no model. Where the input lies on the picture is :class:`Geometry`.
"""

from vitviz.images.geometry import Geometry
from vitviz.images.opening import open_image
from vitviz.images.preprocessing import PreparedImage, Preprocessing

__all__ = ["Geometry", "PreparedImage", "Preprocessing", "open_image"]
