"""The vision tower in a ``config.json``, with the defaults of its class for omitted entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitviz.errors.messages import choices
from vitviz.weights.conversion.canonical import MatchedCheckpoint, OpenFact
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
"""Our names of activations, by the names of transformers."""


@dataclass(frozen=True)
class Tower:
    """The configuration of a vision tower.

    Args:
        settings: the object in ``config.json`` that describes it, with the defaults of its class.
        vision_class: its class.
        composite: the model that contains it, if any.
    """

    settings: Settings
    vision_class: VisionClass
    composite: Composite | None

    def size(self, name: str) -> tuple[int, int]:
        """Height and width."""
        size = self.settings.size(name)
        assert size is not None, "its class has a default"
        return size


def read_tower(checkpoint: MatchedCheckpoint) -> Tower | None:
    """The tower in the checkpoint's configuration; None without a configuration.

    Raises:
        CheckpointError: the configuration is that of another kind of model.
    """
    config = checkpoint.whole_config
    if not config:
        return None
    legal, model_type = checkpoint.family.model_types, config.get("model_type")
    if model_type not in legal:
        raise config.refuse("model_type", choices(legal))
    config.only("pruned_heads", {}, [])
    config.skip(COMMON)
    composite = COMPOSITES.get(model_type)
    if composite is None:
        vision_class = CLASSES[model_type]
        config.skip(vision_class.harmless)
        return Tower(config.with_defaults(vision_class.defaults), vision_class, None)
    config.skip(composite.harmless)
    section = config.inner(composite.section)
    settings, vision_class = section or Settings({}, composite.section), _find_class(checkpoint, composite, section)
    legacy = config.inner(f"{composite.section}_dict") if composite.legacy else None
    if legacy is not None:
        # It replaces the section: what it omits has the default of the class, whatever the section says.
        settings.skip({*vision_class.defaults, *vision_class.harmless, *COMMON})
        settings.only("pruned_heads", {}, [])
        settings = legacy
    settings.only("pruned_heads", {}, [])
    settings.skip(vision_class.harmless | COMMON)
    return Tower(settings.with_defaults(vision_class.defaults), vision_class, composite)


def _find_class(checkpoint: MatchedCheckpoint, composite: Composite, section: Settings | None) -> VisionClass:
    legal = [tower for tower in composite.towers if tower in checkpoint.family.model_types]
    model_type = (
        section.get("model_type", composite.towers[0])
        if section and composite.reads_tower_type
        else composite.towers[0]
    )
    if model_type not in legal:
        raise (section or checkpoint.whole_config).refuse("model_type", choices(legal))
    return CLASSES[model_type]


def common_facts(checkpoint: MatchedCheckpoint, tower: Tower | None, usual: VisionClass) -> dict[str, Any]:
    """Facts that the configuration of every tower states; open without a configuration.

    Args:
        checkpoint: with matched keys.
        tower: its configuration.
        usual: the class whose defaults are suggested for open facts.
    """
    if tower is None:
        return {
            "heads": OpenFact(),
            "norm_epsilon": OpenFact(usual.defaults["layer_norm_eps"]),
            "activation": OpenFact(ACTIVATIONS[usual.defaults["hidden_act"]]),
        }
    if tower.composite is not None:
        checkpoint.record(
            "left out", tower.composite.rest, f"a tower inside of {tower.composite.model_type!r} in its config.json"
        )
    patch = tower.size("patch_size")
    return {
        "heads": checkpoint.record("heads", tower.settings.count("num_attention_heads"), tower.settings.place),
        "norm_epsilon": tower.settings.positive("layer_norm_eps"),
        "activation": tower.settings.choice("hidden_act", ACTIVATIONS, ""),
        "stated": {
            "depth": tower.settings.count("num_hidden_layers"),
            "width": tower.settings.count("hidden_size"),
            "channels": tower.settings.count("num_channels"),
            "patch_height": patch[0],
            "patch_width": patch[1],
        },
    }


def trained_size(tower: Tower | None, rule: str) -> dict[str, Any]:
    """The image size that the positions belong to, and the rule that resizes them.

    To resize positions, transformers assumes a square grid. With any other grid, its results at other sizes are no
    interpolation, or it fails, so positions are fixed.
    """
    if tower is None:
        return {"image_size": None, "position_rule": rule}
    size, patch = tower.size("image_size"), tower.size("patch_size")
    square = size[0] // patch[0] == size[1] // patch[1]
    return {"image_size": size, "position_rule": rule if square else "fixed"}


def require_biases(checkpoint: MatchedCheckpoint, tower: Tower | None, **canonical_keys: str) -> None:
    """Refuse a configuration and weights that disagree about biases.

    Args:
        checkpoint: with matched keys.
        tower: its configuration.
        canonical_keys: for the canonical key of each linear map, the entry that states whether it has a bias.
    """
    if tower is not None:
        for canonical_key, entry in canonical_keys.items():
            tower.settings.require(entry, checkpoint.has(f"{canonical_key}.bias"))


def require_square(tower: Tower) -> None:
    """Refuse a grid that is not square, for classes that assume a square even at the trained size."""
    size, patch = tower.size("image_size"), tower.size("patch_size")
    if size[0] // patch[0] != size[1] // patch[1]:
        raise tower.settings.refuse("image_size", "as many patches high as wide: transformers takes it for a square")
