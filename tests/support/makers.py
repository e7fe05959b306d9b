"""The types of the fixtures that make small networks and models."""

from collections.abc import Callable

from vitviz import Model, VisionTransformer

MakeModel = Callable[..., Model]
MakeNetwork = Callable[..., VisionTransformer]
