"""The parts that every checkpoint of a Vision Transformer has, whatever its family calls them.

A *canonical key* is the name that vitviz gives a tensor; a family's names are a table from its keys to ours:

=============================================================  =====================================================
``patch``                                                      patch embedding: a convolution's kernel or a matrix
``patch_norm_before``, ``patch_norm_after``                    norms around it
``cls``, ``distillation``, ``registers``, ``positions``        tokens, ``"... token width"``
``pre_norm``, ``norm``                                         before the first and after the last layer
``attention_norm``, ``mlp_norm``                               of a layer
``qkv``, or ``query``, ``key``, ``value``; ``out``             its attention; ``qkv.bias_mask`` multiplies the bias
``query_norm``, ``key_norm``                                   norms of a head's queries and keys
``attention_scale``, ``mlp_scale``                             LayerScale, ``"width"``
``mlp_in`` (with a gate packed before it) or ``gate``;         its MLP
``mlp_in``, ``mlp_out``
``representation``, ``projection``                             after pooling
``classifier``, ``distillation_classifier``                    the heads
``pool.probe``, ``pool.query``, ``pool.key_value`` or          attention pooling
``pool.qkv``, ``pool.out``, ``pool.norm``, ``pool.mlp_in``,
``pool.mlp_out``
=============================================================  =====================================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import quote, several
from vitviz.weights.formats.files import WeightFile
from vitviz.weights.metadata.settings import Settings

# Pieces that are one tensor; all others have a weight and mostly a bias.
TOKENS = ("cls", "distillation", "registers", "positions")
SINGLE = (*TOKENS, "attention_scale", "mlp_scale", "pool.probe", "rotary_periods")
# Heads stand outside of the part of a checkpoint that its encoder's keys begin with.
OUTER = ("classifier", "distillation_classifier", "projection", "representation")
# Pieces whose weight has two dimensions or more.
MAPS = (
    *("patch", "qkv", "query", "key", "value", "out", "mlp_in", "gate", "mlp_out", *OUTER),
    *("pool.query", "pool.key_value", "pool.qkv", "pool.out", "pool.mlp_in", "pool.mlp_out"),
)

NOT_PUBLISHED = "no published checkpoint that vitviz knows has these shapes"

Key = tuple[int | None, str]
"""The layer, where a tensor has one, and the canonical key with its part: ``(3, "qkv.weight")``."""


def as_it_is(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """The form of the families that keep torch's own."""
    return tensor


@dataclass(frozen=True)
class DefaultTransform:
    """How the family's images are standardised where the checkpoint does not say.

    Args:
        mean, std: of red, green and blue, for values in [0, 1].
        fit, crop_fraction, interpolation: as :class:`vitviz.Preprocessing` has them.
        source: who says so.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    source: str
    fit: str = "crop"
    crop_fraction: float = 0.875
    interpolation: str = "bicubic"


@dataclass(frozen=True)
class Candidate:
    """A state dict that has the signature of a family.

    Args:
        group: which of the file's state dicts.
        prefix: what its encoder's keys begin with, before the family's own.
        shapes: of the tensors whose keys begin so, by what follows.
        config: the JSON beside the file.
    """

    group: str
    prefix: str
    shapes: Mapping[str, tuple[int, ...]]
    config: Mapping[str, Any]

    @property
    def keys(self) -> KeysView[str]:
        return self.shapes.keys()


def always(candidate: Candidate) -> bool:
    """The check of families whose signature says enough."""
    return True


@dataclass(frozen=True)
class Published:
    """A named, published checkpoint of which the shapes are known.

    Args:
        name: as people call it.
        facts: what its file leaves open.
    """

    name: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class Open:
    """A fact that a checkpoint's file does not tell.

    Args:
        usual: what most checkpoints of this kind have, to be named to whoever is asked; None where there is no such.
    """

    usual: Any = None


def never(checkpoint: MatchedCheckpoint) -> Sequence[Published]:
    """The lookup of families without checkpoints that are known by their shapes."""
    return ()


def nothing(checkpoint: MatchedCheckpoint) -> str:
    """For families whose open facts can be stated one by one only."""
    return ""


@dataclass(frozen=True)
class Family:
    """One way in which checkpoints are written.

    Args:
        name: short and unique; what ``load(..., family=...)`` takes.
        title: as the README and the app call it.
        names: their keys to our canonical keys; ``*`` stands for the number of a layer. One that is no single tensor
            stands for ``.weight`` and ``.bias``.
        signature: keys, layer 0 of them, by which it is recognised: all must be there.
        other_signatures: those of the same checkpoints written otherwise, each as good as the first.
        facts: what the weights alone cannot tell: fields of :class:`vitviz.ViTConfig`, and what
            :func:`vitviz.weights.conversion.assemble.assemble` asks for besides.
        standard: preprocessing where the checkpoint has none.
        without: keys none of which may be there.
        accepts: what a signature cannot say of a state dict.
        model_types: ``model_type`` of a transformers ``config.json`` that means this family.
        published: the published checkpoints that have the shapes of this one, and what they leave open.
        instead: what the user may state in place of all facts that stay open; empty where there is nothing.
        ignored: keys that are not needed, or their beginnings where they end in ``*``, with the reason.
        outside: the same of keys that do not begin as those of the encoder do.
        form: ``(canonical_key, tensor, facts)`` to the tensor as torch keeps it; must work on tensors without memory.
    """

    name: str
    title: str
    names: Mapping[str, str]
    signature: tuple[str, ...]
    facts: Callable[[MatchedCheckpoint], dict[str, Any]]
    standard: DefaultTransform
    other_signatures: tuple[tuple[str, ...], ...] = ()
    without: tuple[str, ...] = ()
    accepts: Callable[[Candidate], bool] = always
    model_types: tuple[str, ...] = ()
    published: Callable[[MatchedCheckpoint], Sequence[Published]] = never
    instead: Callable[[MatchedCheckpoint], str] = nothing
    ignored: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    form: Callable[[str, torch.Tensor, Mapping[str, Any]], torch.Tensor] = as_it_is

    @property
    def signatures(self) -> tuple[tuple[str, ...], ...]:
        """Each of the sets of keys by which it is recognised."""
        return (self.signature, *self.other_signatures)

    def match(self, key: str) -> Key | None:
        """The canonical key of a key of this family, without what stands before the family's own keys."""
        for pattern, canonical_key in self._patterns:
            matched = pattern.fullmatch(key)
            if matched:
                return (int(matched[1]) if pattern.groups else None), canonical_key
        return None

    def spellings(self, canonical_key: str) -> list[str]:
        """The keys that a canonical key can have in this family, ``*`` for the number of its layer."""
        return [
            name + ("" if meant in SINGLE else canonical_key.removeprefix(meant))
            for name, meant in self.names.items()
            if meant == canonical_key or canonical_key.startswith(meant + ".")
        ]

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        full: dict[str, str] = {}
        for name, canonical_key in self.names.items():
            if canonical_key in SINGLE or canonical_key.endswith((".weight", ".bias", ".bias_mask")):
                full[name] = canonical_key
            else:
                full |= {f"{name}.{part}": f"{canonical_key}.{part}" for part in ("weight", "bias")}
        # No more digits than int() takes, and no other alphabet's.
        layer = "(0|[1-9][0-9]{0,5})"
        return [
            (re.compile(re.escape(name).replace(r"\*", layer)), canonical_key) for name, canonical_key in full.items()
        ]


@dataclass(frozen=True)
class Check:
    """Something found out about a checkpoint.

    Args:
        fact: what, such as ``"heads"``.
        value: as it was found.
        source: how it is known.
        assumed: whether nothing in the checkpoint says it: it is what published checkpoints of its kind have.
    """

    fact: str
    value: str
    source: str
    assumed: bool = False

    @property
    def assumption(self) -> str:
        """What is assumed, in few words."""
        return "the names of its classes" if self.fact == "labels" else f"{self.fact} {self.value}"

    @property
    def text(self) -> str:
        """Value and source in one line."""
        return f"{self.value} ({'assumed: ' * self.assumed}{self.source})"


@dataclass(eq=False)
class MatchedCheckpoint:
    """A checkpoint whose family and keys are known.

    Args:
        file: where it is.
        group: which of its state dicts.
        family: which keys it has.
        prefix: what its encoder's keys begin with, before the family's own.
        keys: the key of each canonical key.
        ignored: keys that are not needed, with the reason.
        config: the vision part of its ``config.json``; empty where there is none.
        whole_config: all of its ``config.json``.
        open_clip: its ``open_clip_config.json``.
        overrides: what the user states in place of the checkpoint.
        checks: what has been found out, in order.
        surrounded: whether its classifier is one of a module around it, which may read anything.
    """

    file: WeightFile
    group: str
    family: Family
    prefix: str
    keys: dict[Key, str]
    ignored: dict[str, str]
    config: Settings
    whole_config: Settings
    open_clip: Settings
    overrides: Mapping[str, Any]
    checks: list[Check]
    surrounded: bool = False

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def depth(self) -> int:
        """Encoder layers."""
        return 1 + max((layer for layer, _ in self.keys if layer is not None), default=-1)

    def has(self, canonical_key: str) -> bool:
        """Whether the tensor is there; one of a layer, in the first layer."""
        return (None, canonical_key) in self.keys or (0, canonical_key) in self.keys

    def stored(self, canonical_key: str) -> tuple[int, ...]:
        """The shape of a tensor as the file has it; one of a layer, in the first layer; ``()`` where there is none."""
        key = self.keys.get((None, canonical_key)) or self.keys.get((0, canonical_key))
        return self.file.groups[self.group][key].shape if key else ()

    def spell(self, canonical_key: str, layer: int | None = None) -> str:
        """The key that a tensor would have here: as other layers, or its other part, are written."""
        spellings = self.family.spellings(canonical_key) or [canonical_key]
        for ending in ("", "[./]?[^./]*"):
            for name in spellings:
                stem = re.split(r"[./][^./]*$", name)[0] if ending else name
                pattern = re.compile("(.*?)" + re.escape(stem).replace(r"\*", "[0-9]+") + ending, re.DOTALL)
                for key in self.keys.values():
                    like = pattern.fullmatch(key)
                    # Heads may stand before the encoder's prefix ends.
                    if like and self.prefix.startswith(like[1]):
                        return like[1] + name.replace("*", str(layer))
        return self.prefix + spellings[0].replace("*", str(layer))

    def missing_key(self, canonical_key: str, layer: int | None = None) -> CheckpointError:
        """That a tensor is missing, by the key that it would have."""
        return CheckpointError(f"{self.name}: missing {quote(self.spell(canonical_key, layer))}")

    def ignore(self, canonical_key: str, reason: str) -> None:
        """Do without a tensor and its parts, and say why."""
        for key in [key for key in self.keys if key[1] == canonical_key or key[1].startswith(canonical_key + ".")]:
            self.ignored[self.keys.pop(key)] = reason

    def record(self, fact: str, value: Any, source: str) -> Any:
        """Write a fact down with how it is known; returns its value."""
        self.checks.append(Check(fact, str(value), source))
        return value

    def assume(self, fact: str, value: Any, source: str) -> Any:
        """Write down a fact that nothing in the checkpoint says; returns its value."""
        self.checks.append(Check(fact, str(value), source, assumed=True))
        return value

    def settle(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """Settle the open facts: by the user's overrides, or by what published checkpoints of its shapes have.

        Raises:
            CheckpointError: the user states none, and no published checkpoint has these shapes, or several that
                differ in it.
        """
        settled = {**facts, **self.overrides}
        undecided = {fact: value for fact, value in settled.items() if isinstance(value, Open)}
        if not undecided:
            return settled
        rows = self.family.published(self)
        answers = {
            fact: {row.facts.get(fact, undecided[fact].usual): row.name for row in reversed(rows)} for fact in undecided
        }
        for fact, values in answers.items():
            if len(values) == 1:
                ((value, name),) = values.items()
                like = f"{name} and {len(rows) - 1} more" if rows[1:] else name
                source = f"what published checkpoints of these shapes have ({like}); say {fact}=… where yours differs"
                settled[fact] = self.assume(fact, value, source)
        open_facts = [fact for fact in undecided if isinstance(settled[fact], Open)]
        if open_facts:
            usual = ", ".join(
                f"{fact}=…" + f" (usually {undecided[fact].usual!r})" * (undecided[fact].usual is not None)
                for fact in open_facts
            )
            differ = [
                f"{name} has {fact}={value!r}" for fact in open_facts for value, name in reversed(answers[fact].items())
            ]
            why = f"published checkpoints of these shapes differ ({several(differ)})" if differ else NOT_PUBLISHED
            other = self.family.instead(self)
            instead = f"{other}, or " * bool(other)
            raise CheckpointError(f"{self.name}: its file does not say it all, and {why}; say {instead}{usual}")
        return settled
