"""The tensors that every checkpoint of a Vision Transformer has, whatever its family calls them.

A *canonical key* is vitviz's name of a tensor. A family's table of names maps its keys to these:

=============================================================  =====================================================
``patch``                                                      patch embedding: a convolution's kernel or a matrix
``patch_norm_before``, ``patch_norm_after``                    norms around it
``cls``, ``distillation``, ``registers``, ``positions``        tokens, ``"... token width"``
``pre_norm``, ``norm``                                         before the first and after the last layer
``attention_norm``, ``mlp_norm``                               of a layer
``qkv``, or ``query``, ``key``, ``value``; ``out``             its attention
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
from vitviz.errors.messages import choices, quote, several
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.classes import assumed_names
from vitviz.weights.metadata.rules import PreprocessingRule

# Canonical keys of a single tensor; all others have a weight and usually a bias.
TOKENS = ("cls", "distillation", "registers", "positions")
SINGLE = (*TOKENS, "attention_scale", "mlp_scale", "pool.probe", "rotary_periods")
# Heads, whose keys do not have the prefix of the encoder's keys.
OUTER = ("classifier", "distillation_classifier", "projection", "representation")
# Canonical keys whose weight has at least two dimensions.
MAPS = (
    *("patch", "qkv", "query", "key", "value", "out", "mlp_in", "gate", "mlp_out", *OUTER),
    *("pool.query", "pool.key_value", "pool.qkv", "pool.out", "pool.mlp_in", "pool.mlp_out"),
)

NOT_PUBLISHED = "no published checkpoint that vitviz knows has these shapes"

Key = tuple[int | None, str]
"""Layer number (None outside the layers) and canonical key of a tensor: ``(3, "qkv.weight")``."""


def identity(canonical_key: str, tensor: torch.Tensor, facts: Mapping[str, Any]) -> torch.Tensor:
    """The tensor itself, for families that store tensors as torch does."""
    return tensor


@dataclass(frozen=True)
class Candidate:
    """A state dict that has the signature of a family.

    Args:
        group: name of its state dict in the file.
        prefix: of the encoder's keys, before the family's own keys.
        shapes: of the tensors with this prefix, by key without the prefix.
        config: the ``config.json`` beside the file.
    """

    group: str
    prefix: str
    shapes: Mapping[str, tuple[int, ...]]
    config: Mapping[str, Any]

    @property
    def keys(self) -> KeysView[str]:
        return self.shapes.keys()


def accept_all(candidate: Candidate) -> bool:
    """The check of families whose signature suffices."""
    return True


@dataclass(frozen=True)
class PublishedCheckpoint:
    """A published checkpoint whose shapes are known.

    Args:
        name: its common name.
        facts: that its file does not state.
    """

    name: str
    facts: Mapping[str, Any]


@dataclass(frozen=True)
class OpenFact:
    """A fact that a checkpoint's file does not state.

    Args:
        usual: the value of most checkpoints of this kind, which messages suggest; None if there is none.
    """

    usual: Any = None


def no_published(checkpoint: MatchedCheckpoint) -> Sequence[PublishedCheckpoint]:
    """The lookup of families without a table of published shapes."""
    return ()


def no_architectures(checkpoint: MatchedCheckpoint) -> None:
    """For families whose open facts the user can only state one by one."""


@dataclass(frozen=True)
class Family:
    """One layout of checkpoints.

    Args:
        name: short and unique; what ``load(..., family=...)`` takes.
        title: as the README and the app call it.
        names: canonical keys by the family's keys; ``*`` stands for the number of a layer, ``?`` for that of a chunk of
            layers. A key that is not a single tensor stands for ``.weight`` and ``.bias``.
        signature: keys that identify the family, those of layer 0 among them; all must be present.
        other_signatures: of other versions of the layout; any one of them identifies the family, too.
        facts: returns what the weights alone do not determine: fields of :class:`vitviz.ViTConfig`, and what
            :func:`vitviz.weights.conversion.assemble.assemble` needs besides.
        default_transform: preprocessing of a checkpoint that states none, for pictures of three channels; the fact
            ``transform`` replaces it where keys or shapes tell more.
        excluded_keys: keys that must all be absent.
        accepts: a further check of a state dict that has the signature.
        model_types: each ``model_type`` in the ``config.json`` of transformers that means this family.
        published: returns the published checkpoints with the shapes of this one, with their facts.
        architectures: returns timm's names with these tensors, one of which the user may state in place of all open
            facts; None if there is no such name.
        ignored: keys that are not needed, with the reason; one that ends in ``*`` stands for all with this beginning.
        outside: the same for keys without the prefix of the encoder's keys.
        convert: ``(canonical_key, tensor, facts)`` to the tensor in torch's layout; must work on the meta device.
    """

    name: str
    title: str
    names: Mapping[str, str]
    signature: tuple[str, ...]
    facts: Callable[[MatchedCheckpoint], dict[str, Any]]
    default_transform: PreprocessingRule
    other_signatures: tuple[tuple[str, ...], ...] = ()
    excluded_keys: tuple[str, ...] = ()
    accepts: Callable[[Candidate], bool] = accept_all
    model_types: tuple[str, ...] = ()
    published: Callable[[MatchedCheckpoint], Sequence[PublishedCheckpoint]] = no_published
    architectures: Callable[[MatchedCheckpoint], Sequence[str] | None] = no_architectures
    ignored: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[str, torch.Tensor, Mapping[str, Any]], torch.Tensor] = identity

    @property
    def signatures(self) -> tuple[tuple[str, ...], ...]:
        """Every set of keys that identifies the family."""
        return (self.signature, *self.other_signatures)

    def match(self, key: str) -> Key | None:
        """Layer and canonical key of a key of this family, given without prefix; None if the family has no such key."""
        for pattern, canonical_key in self._patterns:
            matched = pattern.fullmatch(key)
            if matched:
                return (int(matched[1]) if pattern.groups else None), canonical_key
        return None

    def keys_of(self, canonical_key: str) -> list[str]:
        """The family's keys for a canonical key, with ``*`` for the number of the layer."""
        return [
            name + ("" if base_key in SINGLE else canonical_key.removeprefix(base_key))
            for name, base_key in self.names.items()
            if base_key == canonical_key or canonical_key.startswith(base_key + ".")
        ]

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        full: dict[str, str] = {}
        for name, canonical_key in self.names.items():
            if canonical_key in SINGLE or canonical_key.endswith((".weight", ".bias")):
                full[name] = canonical_key
            else:
                full |= {f"{name}.{suffix}": f"{canonical_key}.{suffix}" for suffix in ("weight", "bias")}
        # Few digits, since int() refuses long numbers; ASCII only, since int() also reads other digits.
        layer, chunk = "(0|[1-9][0-9]{0,5})", "[0-9]{1,6}"
        return [
            (re.compile(re.escape(name).replace(r"\*", layer).replace(r"\?", chunk)), canonical_key)
            for name, canonical_key in full.items()
        ]


@dataclass(frozen=True)
class Check:
    """One fact about a checkpoint, with its source.

    Args:
        fact: its name, such as ``"heads"``.
        value: of the fact, as text.
        source: where the value comes from.
        assumed: whether the checkpoint does not state it, so that the value of published ones is used.
    """

    fact: str
    value: str
    source: str
    assumed: bool = False

    @property
    def assumption(self) -> str:
        """The assumption in a few words."""
        return assumed_names(self.source) if self.fact == "labels" else f"{self.fact} {self.value}"

    @property
    def text(self) -> str:
        """Value and source in one line."""
        return f"{self.value} ({'assumed: ' * self.assumed}{self.source})"


@dataclass(eq=False)
class MatchedCheckpoint:
    """A checkpoint whose family and keys are known.

    Args:
        file: with its tensors.
        group: name of its state dict in the file.
        family: its layout.
        prefix: of the encoder's keys, before the family's own keys.
        keys: the file's key of each canonical key.
        ignored: keys that are not needed, with the reason.
        config: its ``config.json``; empty without such a file.
        overrides: facts that the user states.
        checks: facts with their sources, in the order in which they were recorded.
        has_outer_classifier: whether its classifier belongs to a module around the encoder, which may read anything.
    """

    file: WeightFile
    group: str
    family: Family
    prefix: str
    keys: dict[Key, str]
    ignored: dict[str, str]
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]
    checks: list[Check]
    has_outer_classifier: bool = False

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def depth(self) -> int:
        """Number of encoder layers."""
        return 1 + max((layer for layer, _ in self.keys if layer is not None), default=-1)

    def has(self, canonical_key: str) -> bool:
        """Whether the tensor exists; of a tensor in every layer, whether any layer has it."""
        return any(key == canonical_key for _, key in self.keys)

    def shape(self, canonical_key: str) -> tuple[int, ...]:
        """The shape of a tensor in the file, for one in every layer that of any layer; ``()`` if it is missing."""
        keys = (key for (_, name), key in self.keys.items() if name == canonical_key)
        return next((self.file.groups[self.group][key].shape for key in keys), ())

    def expected_key(self, canonical_key: str, layer: int | None = None) -> str:
        """The key that a missing tensor would have, in the first spelling of which the file has other layers."""
        spellings = self.family.keys_of(canonical_key) or [canonical_key]
        known = [re.sub(r"[0-9]+", "*", key.removeprefix(self.prefix)) for key in self.keys.values()]
        name = next((each for each in spellings if each in known), spellings[0])
        return self.prefix + name.replace("*", str(layer)).replace("?", "0")

    def missing_key(self, canonical_key: str, layer: int | None = None) -> CheckpointError:
        """The error for a missing tensor; it names the key that the tensor would have."""
        return CheckpointError(f"{self.name}: missing {quote(self.expected_key(canonical_key, layer))}")

    def ignore(self, canonical_key: str, reason: str) -> None:
        """Leave out a tensor, its weight and its bias, for a reason."""
        for key in [key for key in self.keys if key[1] == canonical_key or key[1].startswith(canonical_key + ".")]:
            self.ignored[self.keys.pop(key)] = reason

    def record(self, fact: str, value: Any, source: str, assumed: bool = False) -> Any:
        """Add a fact with its source to the checks; returns its value.

        Args:
            fact, value, source: as in :class:`Check`.
            assumed: whether the checkpoint does not state it.
        """
        self.checks.append(Check(fact, str(value), source, assumed))
        return value

    def settle(self, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The facts, with open ones settled by the user's overrides or by published checkpoints of the same shapes.

        Raises:
            CheckpointError: the user does not state an open fact, and no published checkpoint has these shapes, or
                several have them and differ in the fact.
        """
        settled = {**facts, **self.overrides}
        undecided = {fact: value for fact, value in settled.items() if isinstance(value, OpenFact)}
        if not undecided:
            return settled
        rows = self.family.published(self)
        answers = {
            fact: {row.facts.get(fact, undecided[fact].usual): row.name for row in reversed(rows)} for fact in undecided
        }
        for fact, values in answers.items():
            if len(values) == 1:
                ((value, name),) = values.items()
                models = f"{name} and {len(rows) - 1} more" if rows[1:] else name
                source = (
                    f"what published checkpoints of these shapes have ({models}); pass {fact}=… where yours differs"
                )
                settled[fact] = self.record(fact, value, source, assumed=True)
        open_facts = [fact for fact in undecided if isinstance(settled[fact], OpenFact)]
        if open_facts:
            usual = ", ".join(
                f"{fact}=…" + f" (usually {undecided[fact].usual!r})" * (undecided[fact].usual is not None)
                for fact in open_facts
            )
            differ = [
                f"{name} has {fact}={value!r}" for fact in open_facts for value, name in reversed(answers[fact].items())
            ]
            why = f"published checkpoints of these shapes differ ({several(differ)})" if differ else NOT_PUBLISHED
            names = self.family.architectures(self)
            examples = f", such as {choices(names)}" if names else ""
            instead = "" if names is None else f"architecture=… (timm's name of it{examples}), or "
            error = CheckpointError(f"{self.name}: the file leaves facts open, and {why}; pass {instead}{usual}")
            error.architectures = tuple(names or ())
            raise error
        return settled
