"""The kinds of parameters of methods and probes, each with its title, its default and what it does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Choice:
    """A parameter with a few named values.

    Args:
        name: name of the function's argument.
        title: label of the control.
        options: pairs of label and value.
        default: one of the values.
        help: one line on its effect.
    """

    name: str
    title: str
    options: tuple[tuple[str, str | None], ...]
    default: str | None
    help: str


@dataclass(frozen=True)
class Number:
    """A parameter between two bounds, both included; ``whole`` for whole numbers."""

    name: str
    title: str
    minimum: float
    maximum: float
    step: float
    default: float
    help: str
    whole: bool = False


@dataclass(frozen=True)
class LayerNumber:
    """A parameter that is a layer of the model, counted from 0, or from the end as ``-1``.

    ``on_page`` says whether the page has a control for it.
    """

    name: str
    title: str
    default: int
    help: str
    on_page: bool = True


@dataclass(frozen=True)
class HeadNumber:
    """A parameter that is a head of the model, counted from 0, or a fusion of all its heads."""

    name: str
    title: str
    default: str
    help: str


@dataclass(frozen=True)
class TokenQuery:
    """A parameter that is a token of the model; None stands for the token that ``default_help`` names."""

    name: str
    title: str
    help: str
    default: None = None
    default_help: str = "cls, or patches where there is none"


@dataclass(frozen=True)
class ClassTarget:
    """A parameter that is a class of the model, by label or number; None stands for the most probable one."""

    name: str
    title: str
    help: str
    default: None = None


Parameter = Choice | Number | LayerNumber | HeadNumber | TokenQuery | ClassTarget
