"""The request of a batch: what is computed for every picture."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from vitviz.analysis.encoder import MAX_BYTES, Encoder
from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName, record_and_arguments
from vitviz.caching import cached_property
from vitviz.datasets.masks import mask_of
from vitviz.datasets.true_classes import class_names
from vitviz.errors.arguments import instance, named_fields, words
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.evaluation.probes import PROBES
from vitviz.features import Kind
from vitviz.images.callable_preprocessing import SAMPLE, CallablePreprocessing
from vitviz.images.colours import ColorProfile
from vitviz.images.preprocessing import Fit, Preprocessing
from vitviz.images.sources import ValueRange, checked_range
from vitviz.system.jsonable import jsonable
from vitviz.system.paths import missing, user_path
from vitviz.visualization.regions import NO_SHARE_OF_SIGNED, checked_box
from vitviz.weights import Model

SCHEMA_VERSION = 6
PREDICTION_COUNT, EXAMPLE = 5, "vitviz.MapRequest('rollout')"


@named_fields(MethodError)
@dataclass(frozen=True)
class MapRequest:
    """A map of every picture.

    Args:
        method: its name in :data:`vitviz.METHODS`.
        parameters: those that differ from the method's defaults, as :meth:`vitviz.Analysis.map` takes them; JSON
            values, or pairs.

    Raises:
        MethodError: there is no such method, it has no such parameter, the parameters are no mapping, or a value cannot
            be written as JSON.

    >>> vitviz.MapRequest("rollout", {"discard_ratio": 0.9}).name
    'rollout:discard_ratio=0.9'
    """

    method: MethodName
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        record_and_arguments(
            self.method,
            instance("parameters", self.parameters, Mapping, "{'layer': 3}", MethodError),  # type: ignore[type-abstract]
        )
        try:
            json.dumps(self.to_json())
        except TypeError:
            raise MethodError(
                f"{self.method}: {describe(dict(self.parameters))} cannot be written as JSON; "
                "expected a target that is a class, by label or number"
            ) from None

    @cached_property
    def name(self) -> str:
        """The name of its column, made of the method and the parameters that differ from its defaults."""
        words = ",".join(f"{name}={_text(value)}" for name, value in sorted(self.parameters.items()))
        return f"{self.method}:{words}" if words else self.method

    def to_json(self) -> dict[str, Any]:
        """The request as JSON, its parameters by name."""
        return {"method": self.method, "parameters": dict(sorted(jsonable(self.parameters).items()))}


@dataclass(frozen=True)
class FeatureRequest:
    """The vectors of every picture.

    Args:
        layer, of: as :meth:`vitviz.Analysis.features` takes them.
        mean: whether to keep the mean of the patches alone, without outliers.
    """

    layer: int | None = None
    of: Kind = "tokens"
    mean: bool = False


def _text(value: Any) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple | list) else str(value)


@named_fields(ConfigError)
@dataclass(frozen=True)
class BatchRequest:
    """The maps and probes of every picture, and the model.

    Args:
        model: as :func:`vitviz.load` gives it.
        maps: of every picture, each once.
        probes: names in :data:`vitviz.evaluation.probes.PROBES`, computed with their defaults for every picture.
        fit, resolution, value_range, color_profile: as :func:`vitviz.analyze` takes them.
        masks: a folder with a mask of each picture, which has the picture's name with any ending of a picture, as
            :meth:`vitviz.Heatmap.share_inside` takes it: rows say what share of each map lies inside.
        box: in place of masks, the same box in all pictures, in pixels of each.
        features: the vectors of every picture, in half precision; none by default.

    Raises:
        ConfigError: the range or the choice of the profile is invalid, there is no such
            folder of masks, the box is none, or ``model`` is not a :class:`vitviz.Model`.
        MethodError: there is no such probe, it needs no picture, the model does not support a map or probe, or a map
            is signed beside masks or a box.

    >>> request = vitviz.BatchRequest(model, maps=(vitviz.MapRequest("rollout"), vitviz.MapRequest("relevance")))
    >>> [each.name for each in request.maps]
    ['rollout', 'relevance']
    """

    model: Model
    maps: tuple[MapRequest, ...] = ()
    probes: tuple[str, ...] = ()
    fit: Fit | None = None
    resolution: int | None = None
    value_range: ValueRange | None = None
    color_profile: ColorProfile | None = None
    masks: Path | None = None
    box: tuple[float, float, float, float] | None = None
    features: FeatureRequest | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value_range", checked_range(self.value_range))
        config = self.encoder().model.network.config
        by_name = {
            instance("maps", each, MapRequest, EXAMPLE).name: each
            for each in (self.maps if isinstance(self.maps, list | tuple) else [self.maps])
        }
        instance("features", self.features or FeatureRequest(), FeatureRequest, "vitviz.datasets.FeatureRequest()")
        object.__setattr__(self, "maps", tuple(by_name.values()))
        object.__setattr__(self, "probes", tuple(dict.fromkeys(words("probe", self.probes, PROBES))))
        if self.box is not None:
            object.__setattr__(self, "box", checked_box(self.box))
        if self.masks is not None:
            # Workers of a cluster run in folders of their own.
            object.__setattr__(self, "masks", user_path(self.masks).absolute())
            if self.box is not None:
                raise ConfigError("masks and box: both given; expected one of them")
            if not Path(self.masks).is_dir():
                raise ConfigError(
                    f"masks = {self.masks}: "
                    f"{missing(self.masks, '; expected one with a mask of each picture', 'folder')}"
                )
        probes = {name: PROBES[name] for name in self.probes}
        records: dict[str, Any] = {each.method: METHODS[each.method] for each in self.maps}
        for name, record in (records | probes).items():
            if (refusal := record.refusal(config)) is not None:
                raise MethodError(f"{name}: {refusal}")
        for each in self.maps:
            if each.parameters.get("signed") and self.has_regions:
                raise MethodError(f"{each.name}: {NO_SHARE_OF_SIGNED}")
        for name, probe in probes.items():
            if probe.requires == "model":
                raise MethodError(f"{name}: it is of the model, the same for every picture; see vitviz probe")

    def encoder(self, max_bytes: int = MAX_BYTES) -> Encoder:
        """The encoder of the pictures. It keeps no fused matrices: maps of several pictures at once use none."""
        reading: dict[str, Any] = {"value_range": self.value_range, "color_profile": self.color_profile}
        return Encoder(self.model, self.fit, self.resolution, keep_bytes=0, max_bytes=max_bytes, **reading)

    @cached_property
    def class_names(self) -> dict[str, str]:
        """The labels by the names of folders; empty for a model without classes."""
        return class_names(self.model.labels) if self.model.gives_probabilities else {}

    @property
    def has_regions(self) -> bool:
        """Whether rows say what share of each map lies inside a mask or box."""
        return self.masks is not None or self.box is not None

    def region_of(self, key: str) -> Path | tuple[float, float, float, float] | None:
        """The mask or box of a picture, by the key of its row; None if it has no mask.

        Raises:
            DataError: it has several masks.
        """
        return self.box if self.masks is None else mask_of(key, self.masks)

    def to_json(self) -> dict[str, Any]:
        """The request as JSON; equal requests give a picture the same row."""
        return {
            "schema": SCHEMA_VERSION,
            "model": self.model.name,
            "weights": weights_digest(self.model),
            "labels": _digest(json.dumps(self.model.labels).encode()),
            "preprocessing": _preprocessing_facts(self.model.preprocessing),
            "fit": self.fit,
            "resolution": self.resolution,
            "value_range": self.value_range,
            "color_profile": self.color_profile or self.model.preprocessing.color_profile,
            "maps": [each.to_json() for each in self.maps],
            "probes": list(self.probes),
            "masks": None if self.masks is None else str(self.masks),
            "box": self.box,
            "features": self.features and asdict(self.features),
        }


def weights_digest(model: Model) -> str:
    """The SHA-256 of a network's configuration, weights and buffers, the first 16 hexadecimal digits."""
    state = model.network.state_dict().values()
    return _digest(repr(model.network.config).encode(), *[each for each in state if isinstance(each, torch.Tensor)])


def _digest(*parts: bytes | torch.Tensor) -> str:
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            digest.update(part)
            continue
        content = part.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
        digest.update(f"{part.dtype} {tuple(part.shape)}".encode())
        digest.update(content.data)
    return digest.hexdigest()[:16]


def _preprocessing_facts(preprocessing: Preprocessing) -> dict[str, Any]:
    """Its fields as JSON; of a function also the input that it makes of a test picture, to three digits."""
    facts = {each.name: getattr(preprocessing, each.name) for each in fields(Preprocessing)}
    if isinstance(preprocessing, CallablePreprocessing):
        facts["input"] = _digest((preprocessing.apply(SAMPLE) * 1000).round().int())
    return facts
