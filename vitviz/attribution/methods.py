"""The table of methods, from which the app's controls, the command and the README's table follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitviz.attribution.attention import DIRECTIONS, attention
from vitviz.attribution.rollout import REFERENCES, rollout
from vitviz.softmax import HEAD_FUSIONS
from vitviz.token_map import TokenMap


@dataclass(frozen=True)
class Choice:
    """A parameter with a few named values.

    Args:
        name: of the function's argument.
        title: what a control is called.
        options: what is shown, and the value it stands for.
        default: one of the values.
        help: one line on what it does.
    """

    name: str
    title: str
    options: tuple[tuple[str, str | None], ...]
    default: str | None
    help: str


@dataclass(frozen=True)
class Number:
    """A parameter between two bounds, both included."""

    name: str
    title: str
    minimum: float
    maximum: float
    step: float
    default: float
    help: str


@dataclass(frozen=True)
class LayerNumber:
    """A parameter that is a layer of the model, counted from 0, or from the end as ``-1``."""

    name: str
    title: str
    default: int
    help: str


@dataclass(frozen=True)
class HeadNumber:
    """A parameter that is a head of the model, counted from 0, or a fusion of all its heads."""

    name: str
    title: str
    default: str
    help: str


@dataclass(frozen=True)
class TokenQuery:
    """A parameter that is a token of the model; None is the CLS token, or all patches in a model without one."""

    name: str
    title: str
    help: str
    default: None = None


Parameter = Choice | Number | LayerNumber | HeadNumber | TokenQuery


@dataclass(frozen=True)
class Method:
    """One way to make a map.

    Args:
        name: of the command and of the method of :class:`vitviz.Analysis`.
        title: what a menu calls it.
        compute: a trace and the parameters to a map.
        parameters: in the order in which controls stand.
        citation: where it comes from.
        reading: one line on what the map says, and what it does not.
    """

    name: str
    title: str
    compute: Callable[..., TokenMap]
    parameters: tuple[Parameter, ...]
    citation: str
    reading: str


_FUSIONS = tuple((fusion, fusion) for fusion in HEAD_FUSIONS)
_QUERY = TokenQuery("query", "Token", "the token whose attention is shown")

METHODS = {
    method.name: method
    for method in (
        Method(
            "attention",
            "Token attention",
            attention,
            (
                Choice(
                    "direction",
                    "Direction",
                    tuple(zip(("looks at", "is looked at by"), DIRECTIONS, strict=True)),
                    "row",
                    "the token's own attention, or the attention it gets from every patch",
                ),
                LayerNumber("layer", "Layer", -1, "encoder layer, 1 is nearest to the image"),
                HeadNumber("head", "Head", "mean", "one head, or all heads fused"),
                _QUERY,
            ),
            "Vaswani et al. 2017, Attention Is All You Need",
            "Where one layer takes its information from; not what it does with it, and not what decides the class.",
        ),
        Method(
            "rollout",
            "Attention rollout",
            rollout,
            (
                Choice("head_fusion", "Head fusion", _FUSIONS, "mean", "how the heads of a layer become one"),
                Number(
                    "discard_ratio", "Discard ratio", 0, 0.99, 0.01, 0, "part of the lowest weights that is set to zero"
                ),
                Number("residual_weight", "Residual weight", 0, 1, 0.05, 0.5, "share of the residual connection"),
                LayerNumber("start_layer", "Start layer", 0, "lowest layer that is followed"),
                Choice(
                    "reference",
                    "Normalisation",
                    (("rows (the paper)", None), *((name, name) for name in REFERENCES)),
                    None,
                    "rows sum to 1, or the numbers of a widely copied implementation",
                ),
                _QUERY,
            ),
            "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
            "Where information may have come from through all layers; not class-specific, and ignores the values.",
        ),
    )
}
