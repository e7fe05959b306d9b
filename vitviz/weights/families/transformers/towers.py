"""The part of a ``config.json`` that describes a vision tower, with what its class means by what it leaves out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitviz.errors.messages import choices
from vitviz.weights.conversion.canonical import MatchedCheckpoint, Open
from vitviz.weights.families.transformers.classes import CLASSES, COMMON, COMPOSITES, Composite, VisionClass
from vitviz.weights.metadata.settings import Settings

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu tanh",
    "gelu_fast": "gelu tanh",
    "gelu_accurate": "gelu tanh",
    "gelu_pytorch_tanh": "gelu tanh",
    "gelu_python_tanh": "gelu tanh",
    "quick_gelu": "quick gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
}
"""The activations of transformers that vitviz has, by their names there."""


@dataclass(frozen=True)
class Tower:
    """What a ``config.json`` says of a vision tower.

    Args:
        settings: the object that describes it.
        kind: its class.
        whole: the model that it is a part of, if any.
        absent: what entries mean that the object leaves out.
    """

    settings: Settings
    kind: VisionClass
    whole: Composite | None
    absent: dict[str, Any]

    def count(self, name: str, least: int = 1) -> int:
        count = self.settings.count(name, self.absent[name], least)
        assert count is not None
        return count

    def flag(self, name: str) -> bool:
        return self.settings.flag(name, self.absent[name])

    def positive(self, name: str) -> float:
        return self.settings.positive(name, self.absent[name])

    def size(self, name: str) -> tuple[int, int]:
        """Height and width."""
        side: int = self.absent[name]
        return self.settings.size(name) or (side, side)

    @property
    def activation(self) -> str:
        return self.settings.choice("hidden_act", ACTIVATIONS, self.absent["hidden_act"])

    def require(self, name: str, value: Any) -> None:
        """Refuse an entry that the weights contradict.

        Raises:
            CheckpointError: the entry, or what it means where it is left out, is something else.
        """
        self.settings.require(name, self.absent[name], value)


def read_tower(checkpoint: MatchedCheckpoint) -> Tower | None:
    """The tower that the checkpoint's configuration describes; None where it has none.

    Raises:
        CheckpointError: the configuration is that of something else.
    """
    whole = checkpoint.whole_config
    if not whole:
        return None
    legal, model_type = checkpoint.family.model_types, whole.get("model_type")
    if model_type not in legal:
        raise whole.refuse("model_type", choices(legal))
    whole.only("pruned_heads", {}, [])
    whole.skip(COMMON)
    composite = COMPOSITES.get(model_type)
    if composite is None:
        kind = CLASSES[model_type]
        whole.skip(kind.harmless)
        return Tower(whole, kind, None, dict(kind.defaults))
    whole.skip(composite.harmless)
    part = whole.inner(composite.part)
    settings, kind = part or Settings({}, composite.part), _find_class(checkpoint, composite, part)
    legacy = whole.inner(f"{composite.part}_dict") if composite.legacy else None
    if legacy is not None:
        # It says everything: what it leaves out is as in its class, whatever the part says.
        settings.skip({*kind.defaults, *kind.harmless, *COMMON})
        settings.only("pruned_heads", {}, [])
        settings = legacy
    settings.only("pruned_heads", {}, [])
    settings.skip(kind.harmless | COMMON)
    absent = {**kind.defaults, **({} if part or legacy else composite.whole)}
    return Tower(settings, kind, composite, absent)


def _find_class(checkpoint: MatchedCheckpoint, composite: Composite, part: Settings | None) -> VisionClass:
    legal = [tower for tower in composite.towers if tower in checkpoint.family.model_types]
    named = part.get("model_type", composite.towers[0]) if part and composite.named else composite.towers[0]
    if named not in legal:
        raise (part or checkpoint.whole_config).refuse("model_type", choices(legal))
    return CLASSES[named]


def common_facts(checkpoint: MatchedCheckpoint, tower: Tower | None, usual: VisionClass) -> dict[str, Any]:
    """What the configuration of every tower says; open where there is none.

    Args:
        checkpoint: as its keys were matched.
        tower: as its configuration describes it.
        usual: the class whose defaults are the usual ones, to be named to whoever is asked.
    """
    if tower is None:
        return {
            "heads": Open(),
            "norm_epsilon": Open(usual.defaults["layer_norm_eps"]),
            "activation": Open(ACTIVATIONS[usual.defaults["hidden_act"]]),
        }
    if tower.whole is not None:
        checkpoint.record(
            "left out", tower.whole.rest, f"a tower inside of {tower.whole.model_type!r} in its config.json"
        )
    patch = tower.size("patch_size")
    return {
        "heads": checkpoint.record("heads", tower.count("num_attention_heads"), tower.settings.place),
        "norm_epsilon": tower.positive("layer_norm_eps"),
        "activation": tower.activation,
        "stated": {
            "depth": tower.count("num_hidden_layers"),
            "width": tower.count("hidden_size"),
            "channels": tower.count("num_channels"),
            "patch_height": patch[0],
            "patch_width": patch[1],
        },
    }


def trained_size(tower: Tower | None, rule: str) -> dict[str, Any]:
    """The size that the positions are of, and how they are carried to another.

    transformers takes the positions of another grid from a square one, whatever grid they are of: where that is none,
    its numbers of other sizes are no interpolation, or it gives none.
    """
    if tower is None:
        return {"image_size": None, "position_rule": rule}
    size, patch = tower.size("image_size"), tower.size("patch_size")
    square = size[0] // patch[0] == size[1] // patch[1]
    return {"image_size": size, "position_rule": rule if square else "fixed"}


def require_biases(checkpoint: MatchedCheckpoint, tower: Tower | None, **canonical_keys: str) -> None:
    """Refuse biases that the configuration has and the weights have not, or the other way.

    Args:
        checkpoint: as its keys were matched.
        tower: as its configuration describes it.
        canonical_keys: the layer maps whose bias an entry states.
    """
    if tower is not None:
        for canonical_key, entry in canonical_keys.items():
            tower.require(entry, checkpoint.has(f"{canonical_key}.bias"))


def require_square(tower: Tower) -> None:
    """Refuse a grid that is no square, where transformers takes it for one even at the trained size."""
    size, patch = tower.size("image_size"), tower.size("patch_size")
    if size[0] // patch[0] != size[1] // patch[1]:
        raise tower.settings.refuse("image_size", "as many patches high as wide: transformers takes it for a square")
