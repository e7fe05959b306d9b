"""A checkpoint whose layout is known: its tensors by the names of vitviz's own network, and the facts about it.

A *canonical key* is the name of a tensor of :class:`vitviz.models.vit.VisionTransformer`. A file may have parts of such
a tensor; the name of a part stands behind it, and the parts become one in :mod:`vitviz.weights.conversion.assemble`:

===================================================================  =============================================
``prefix_tokens.cls``, ``prefix_tokens.distillation``,               ``"... token width"``
``prefix_tokens.registers``
``positions``                                                        of the patches, and of the first prefix tokens
``layers.*.attention.qkv.query``, ``.key``, ``.value``               where they are apart
``layers.*.attention.projection.scale``, ``layers.*.mlp.2.scale``    LayerScale, ``"width"``
``layers.*.mlp.0.gate``                                              where it is not packed before ``mlp.0``
``classifier.distilled``                                             the classifier of the distillation token
``pooler.qkv``                                                       where the queries are packed with the others
===================================================================  =============================================
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from vitviz.attention.memory import is_out_of_memory
from vitviz.caching import cached_property
from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices, quote
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.classes import assumed_names
from vitviz.weights.metadata.rules import PreprocessingRule

# Last parts of canonical keys of a single tensor; all others have a weight and usually a bias.
SINGLE = ("cls", "distillation", "registers", "positions", "scale", "probe")
# Parts of ``attention.qkv``.
QUERY_KEY_VALUE = ("query", "key", "value")
# Heads, whose keys do not have the prefix of the encoder's keys.
OUTER = ("classifier", "projection", "representation")

NOT_PUBLISHED = "no published checkpoint that vitviz knows has these shapes"

Published = dict[str, Mapping[str, Any]]
"""Facts that the files of published checkpoints do not state, by their common names."""


@dataclass(frozen=True)
class OpenFact:
    """A fact that a checkpoint's file does not state.

    Args:
        usual: the value of most checkpoints of this kind, which messages suggest; None if there is none.
    """

    usual: Any = None


@dataclass(frozen=True)
class Family:
    """One layout of checkpoints.

    Args:
        name: short and unique; what ``load(..., family=...)`` takes.
        title: as the README and the app call it.
        names: canonical keys by the family's keys; ``*`` stands for the number of a layer, ``?`` for that of a chunk of
            layers. A key that is not a single tensor stands for ``.weight`` and ``.bias``.
        signatures: sets of keys, those of layer 0 among them; all keys of any one of them identify the family.
        facts: returns what the weights alone do not determine: fields of :class:`vitviz.ViTConfig`, and what
            :func:`vitviz.weights.conversion.assemble.assemble` needs besides.
        default_transform: preprocessing of a checkpoint that states none, for pictures of three channels; the fact
            ``transform`` replaces it where keys or shapes tell more.
        excluded_keys: keys that must all be absent.
        accepts: a further check of a state dict that has the signature, before its keys are matched; None for none.
        model_types: each ``model_type`` in the ``config.json`` of transformers that means this family.
        published: returns the published checkpoints with the shapes of this one, with their facts; None for no table.
        architectures: returns timm's names with these tensors, one of which the user may state in place of all open
            facts; None if the user can only state them one by one.
        ignored: keys that are not needed, with the reason; one that ends in ``*`` stands for all with this beginning.
        outside: the same for keys without the prefix of the encoder's keys.
        convert: ``(canonical_key, tensor, facts)`` to the tensor in torch's layout; must work on the meta device. None
            for a layout that is torch's.
    """

    name: str
    title: str
    names: Mapping[str, str]
    signatures: tuple[tuple[str, ...], ...]
    facts: Callable[[MatchedCheckpoint], dict[str, Any]]
    default_transform: PreprocessingRule
    excluded_keys: tuple[str, ...] = ()
    accepts: Callable[[MatchedCheckpoint], bool] | None = None
    model_types: tuple[str, ...] = ()
    published: Callable[[MatchedCheckpoint], Published] | None = None
    architectures: Callable[[MatchedCheckpoint], Sequence[str]] | None = None
    ignored: Mapping[str, str] = field(default_factory=dict)
    outside: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[str, torch.Tensor, Mapping[str, Any]], torch.Tensor] | None = None

    @cached_property
    def canonical_keys(self) -> dict[str, str]:
        """Canonical keys by the family's keys, with ``.weight`` and ``.bias``."""
        full: dict[str, str] = {}
        for name, canonical_key in self.names.items():
            if canonical_key.rpartition(".")[2] in (*SINGLE, "weight", "bias"):
                full[name] = canonical_key
            else:
                full |= {f"{name}.{suffix}": f"{canonical_key}.{suffix}" for suffix in ("weight", "bias")}
        return full

    def match(self, key: str) -> str | None:
        """The canonical key of a key of this family, given without prefix; None if the family has no such key."""
        for pattern, canonical_key in self._patterns:
            matched = pattern.fullmatch(key)
            if matched:
                return canonical_key.replace("*", matched[1]) if pattern.groups else canonical_key
        return None

    def keys_of(self, canonical_key: str) -> list[str]:
        """The family's keys for a canonical key, both with ``*`` for the number of the layer."""
        return [key for key, found in self.canonical_keys.items() if found == canonical_key]

    @cached_property
    def _patterns(self) -> list[tuple[re.Pattern[str], str]]:
        # Few digits, since int() refuses long numbers; ASCII only, since int() also reads other digits.
        layer, chunk = "(0|[1-9][0-9]{0,5})", "[0-9]{1,6}"
        return [
            (re.compile(re.escape(key).replace(r"\*", layer).replace(r"\?", chunk)), canonical_key)
            for key, canonical_key in self.canonical_keys.items()
        ]


def in_any_layer(canonical_key: str) -> str:
    """A canonical key with ``*`` for the number of its layer."""
    return re.sub(r"^layers\.\d+", "layers.*", canonical_key)


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
        config: its ``config.json``; empty without such a file.
        overrides: facts that the user states.
        keys: the file's key of each canonical key.
        ignored: keys that are not needed, with the reason.
        checks: facts with their sources, in the order in which they were recorded.
        facts: those of the family, settled by :meth:`settle`.
        has_outer_classifier: whether its classifier belongs to a module around the encoder, which may read anything.
    """

    file: WeightFile
    group: str
    family: Family
    prefix: str
    config: Mapping[str, Any]
    overrides: Mapping[str, Any]
    keys: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)
    facts: Mapping[str, Any] = field(default_factory=dict)
    has_outer_classifier: bool = False

    @property
    def name(self) -> str:
        return self.file.name

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The tensors of its state dict, by the file's keys."""
        return self.file.groups[self.group]

    @property
    def encoder(self) -> Mapping[str, torch.Tensor]:
        """Those with the encoder's prefix, by the keys without it."""
        start = len(self.prefix)
        return {key[start:]: tensor for key, tensor in self.tensors.items() if key.startswith(self.prefix)}

    @property
    def place(self) -> str:
        """Group and prefix, as a message names them."""
        return f"{self.group}.{self.prefix}".strip("./")

    @property
    def depth(self) -> int:
        """Number of encoder layers."""
        layers = [key.split(".")[1] for key in self.keys if key.startswith("layers.")]
        return 1 + max(map(int, layers), default=-1)

    def has(self, canonical_key: str) -> bool:
        """Whether the tensor exists; of a tensor in every layer (``layers.*``), whether any layer has it."""
        return any(in_any_layer(key) == canonical_key for key in self.keys)

    def shape(self, canonical_key: str) -> tuple[int, ...]:
        """The shape of a tensor in the file, for one in every layer that of any layer; ``()`` if it is missing."""
        keys = (key for name, key in self.keys.items() if in_any_layer(name) == canonical_key)
        return next((tuple(self.tensors[key].shape) for key in keys), ())

    def tensor(self, canonical_key: str, with_values: bool = False) -> torch.Tensor:
        """A tensor in torch's layout, on the meta device or with its values.

        Raises:
            CheckpointError: it is missing, its layout does not have tensors of this shape, or its values are no finite
                numbers.
        """
        if canonical_key not in self.keys:
            raise self.missing_key(canonical_key)
        key = self.keys[canonical_key]
        shape = self.tensors[key].shape
        tensor = self.file.read(self.group, key) if with_values else torch.empty(shape, device="meta")
        if self.family.convert is None:
            return tensor
        try:
            return self.family.convert(canonical_key, tensor, self.facts)
        except (RuntimeError, ValueError, IndexError) as error:
            if is_out_of_memory(error):
                raise
            raise CheckpointError(
                f"{self.name}: {quote(key)} has the shape {tuple(shape)}, which no checkpoint of this kind "
                f"({self.family.title}) has"
            ) from None

    def expected_key(self, canonical_key: str) -> str:
        """The key that a missing tensor would have, in the first spelling of which the file has other layers."""
        spellings = self.family.keys_of(in_any_layer(canonical_key)) or [canonical_key]
        known = [re.sub(r"[0-9]+", "*", key.removeprefix(self.prefix)) for key in self.keys.values()]
        name = next((each for each in spellings if each in known), spellings[0])
        layer = canonical_key.split(".")[1] if canonical_key.startswith("layers.") else ""
        return self.prefix + name.replace("*", layer).replace("?", "0")

    def missing_key(self, canonical_key: str) -> CheckpointError:
        """The error for a missing tensor; it names the key that the tensor would have."""
        return CheckpointError(
            f"{self.name}: missing {quote(self.expected_key(canonical_key))}"
            f"{'; it is one of several files: expected their folder' * ('-of-0' in self.name)}"
        )

    def record(self, fact: str, value: Any, source: str, assumed: bool = False) -> Any:
        """Add a fact with its source to the checks; returns its value.

        Args:
            fact, value, source: as in :class:`Check`.
            assumed: whether the checkpoint does not state it.
        """
        self.checks.append(Check(fact, str(value), source, assumed))
        return value

    def take_head_for_projection(self) -> None:
        """Take a classifier whose bias is zeros for a projection, since its outputs are features."""
        bias = self.keys.get("classifier.bias")
        if bias is None or not self.file.read(self.group, bias).any():
            self.keys["projection.weight"] = self.keys.pop("classifier.weight")
            if bias is not None:
                self.ignored[self.keys.pop("classifier.bias")] = "zeros"

    def settle(self, facts: Mapping[str, Any]) -> None:
        """Set the facts: open ones of the family are settled by the user's overrides or by published checkpoints.

        Raises:
            CheckpointError: the user does not state an open fact, and no published checkpoint has these shapes, or
                several have them and differ in the fact.
        """
        settled = {**facts, **self.overrides}
        undecided = {fact: value.usual for fact, value in settled.items() if isinstance(value, OpenFact)}
        rows = self.family.published(self) if undecided and self.family.published else {}
        missing = []
        for fact, usual in undecided.items():
            answers = {row.get(fact, usual) for row in rows.values()}
            if len(answers) != 1:
                missing.append(f"{fact}=…" + f" (usually {usual!r})" * (usual is not None))
                continue
            (settled[fact],) = answers
            models = next(iter(rows)) + f" and {len(rows) - 1} more" * (len(rows) > 1)
            source = f"what published checkpoints of these shapes have ({models}); pass {fact}=… where yours differs"
            self.record(fact, settled[fact], source, assumed=True)
        if missing:
            why = "published checkpoints of these shapes differ" if rows else NOT_PUBLISHED
            names = self.family.architectures(self) if self.family.architectures else ()
            examples = f", such as {choices(names)}" if names else ""
            instead = f"architecture=… (timm's name of it{examples}), or " if self.family.architectures else ""
            open_facts = f"the file leaves facts open, and {why}; pass {instead}{', '.join(missing)}"
            error = CheckpointError(f"{self.name}: {open_facts}")
            error.architectures = tuple(names)
            raise error
        self.facts = settled
