"""LoRA adapters (Hu et al. 2022) as peft's ``save_pretrained`` writes them, merged into their base model's tensors.

Not by peft: it imports the module that ``auto_mapping`` names, and runs the file's own regular expressions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import torch

from vitviz.errors.kinds import CheckpointError
from vitviz.errors.messages import choices, listing, plain, quote
from vitviz.weights.formats.archives import LazyTensor, TensorInfo
from vitviz.weights.formats.files import WEIGHT_FILE_NAMES, WeightFile, open_weights
from vitviz.weights.formats.paths import path_exists
from vitviz.weights.hub.names import REPOSITORY, REVISION
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars, read_json
from vitviz.weights.packages.transformers import saved_names
from vitviz.weights.suggestions import HUB

CONFIG, WEIGHTS, PICKLED = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
# What peft puts before the name of every module.
WRAPPED = "base_model.model."
LOW_RANK = re.compile(r"(.+)\.lora_([AB])\.weight")
# Entries of the configuration that may have any value: they are read here, or say how the adapter was trained.
ENTRIES = frozenset(
    (
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "init_lora_weights"),
        *("peft_type", "base_model_name_or_path", "revision", "auto_mapping", "bias", "peft_version", "task_type"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout"),
        # Of GPT-2's transposed layers alone, which no Vision Transformer has: peft ignores it for others.
        "fan_in_fan_out",
        *("inference_mode", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    )
)
# Ways to begin that leave the base model as it is; others take a part of it away.
BEGINNINGS = (True, False, None, "gaussian", "orthogonal")
# Regular expressions that take no more than the square of a name's length: no groups, and little repetition.
PATTERN = re.compile(r"\^?(?:[\w-]|\\?\.[*+]?|\\d[*+]?){1,200}\$?", re.ASCII)
MAX_REPETITIONS = 1
MAX_NAME_CHARS, MAX_DOTS = 300, 20
# How often a name is held to a pattern, and how many modules and ranks are listed.
MAX_MATCHES, MAX_LISTED = 200_000, 1000
# Names that stand around an encoder: `model.vit.`
MAX_NESTING = 4
# What models without a classifier make of their tokens.
UNCLASSIFIED = (".pooler.dense.", ".visual_projection.")
# Names of a classifier's classes, and how many there are.
LABELS = ("id2label", "label2id", "num_labels", "num_classes", "label_names", "label_descriptions", "labels")


@dataclass(frozen=True)
class _Delta:
    """What is added to a weight: ``scale · B · A``, both by their keys."""

    low: str
    high: str
    scale: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """A LoRA adapter, to be merged into a base model.

    Args:
        name: what messages call it.
        folder: that it stands in.
        file: its tensors.
        config: its configuration.
    """

    name: str
    folder: Path
    file: WeightFile
    config: Mapping[str, Any]

    def base(self) -> str | Path:
        """What the configuration names as the base model, as :func:`vitviz.load` takes it.

        Raises:
            CheckpointError: it names none that is here or on the hub, or another model lies beside it.
        """
        beside = [usual for usual in WEIGHT_FILE_NAMES if (self.folder / usual).is_file()]
        if beside:
            found = f"an adapter beside {beside[0]}, which may be its base model or already merged"
            self._refuse(found, "base=… with the base model, or the path of that file")
        named, revision = self.config.get("base_model_name_or_path"), self.config.get("revision")
        if path_exists(named):
            return Path(str(named))
        if isinstance(named, str) and REPOSITORY.fullmatch(named):
            return f"{HUB}{named}" + (f"@{revision}" if _is_revision(revision) else "")
        found = f"{quote(named)}, which is not here," if named else "no base model"
        self._refuse(f"its {CONFIG} names {found}", "base=… with the file, folder or name of the base model")

    def merge(self, base: WeightFile, sidecars: Sidecars) -> tuple[WeightFile, Sidecars]:
        """The base model with the adapter in its weights, which are added up as they are read.

        Args:
            base: the base model's file.
            sidecars: the JSON beside it.

        Raises:
            CheckpointError: the adapter is one of another model, or has what is not understood.
        """
        deltas, whole = self._deltas(), self._whole()
        # As peft takes them: whatever ends so.
        saved = [f"{module}." for module in self.config.get("modules_to_save") or []]
        fixed = [name for name in whole if not any(module in name for module in saved)]
        place = self._place(base, sidecars, [*deltas, *fixed])
        lacking = [name for name in place.names if any(part in name for part in saved) and name not in whole]
        if lacking:
            self._refuse(f"modules_to_save without {listing(lacking)}", "all tensors of these modules")
        parts: dict[str, LazyTensor] = {}
        for key, info in base.groups[place.group].items():
            name = place.rename(key)
            if name is not None:
                parts[name] = LazyTensor(info, partial(base.read, place.group, key))
        changed = {}
        for name, key in whole.items():
            target, info = place.target(name), self.file.groups[""][key]
            if target not in parts or parts[target].info.shape != info.shape:
                if name in fixed:
                    self._refuse(f"{quote(name)} of shape {info.shape}", f"that of {base.name}")
                changed[target] = info.shape
            parts[target] = LazyTensor(info, partial(self.file.read, "", key))
        for name, delta in deltas.items():
            target = place.target(name)
            self._check_shapes(name, delta, parts[target].info, base)
            load = parts[target].load
            assert load is not None, "every part here is read"
            parts[target] = LazyTensor(parts[target].info, partial(self._added, load, delta))
        if changed:
            # A model with a classifier has neither: none of transformers' reads them.
            for name in [name for name in parts if any(part in f".{name}" for part in UNCLASSIFIED)]:
                del parts[name]
        infos = {"": MappingProxyType({name: part.info for name, part in parts.items()})}
        merged = replace(
            base,
            name=self.name,
            kind=f"merged {base.kind}",
            groups=MappingProxyType(infos),
            file_bytes=base.file_bytes + self.file.file_bytes,
            _tensors={"": parts},
        )
        classes = next((shape[0] for shape in changed.values() if len(shape) == 2), None)
        return merged, sidecars if classes is None else self._relabelled(sidecars, classes)

    def _refuse(self, found: str, expected: str) -> NoReturn:
        raise CheckpointError(f"{self.name}: {found}; expected {expected}")

    def _names(self) -> Iterator[tuple[str, str]]:
        """The name of each tensor in the base model, and its key."""
        for key in self.file.groups.get("", {}):
            if not key.startswith(WRAPPED) or len(key) > MAX_NAME_CHARS or key.count(".") > MAX_DOTS:
                self._refuse(f"the key {quote(key)}", f"keys that begin with {WRAPPED!r}, as peft writes them")
            yield key.removeprefix(WRAPPED).replace(".base_layer.", "."), key

    def _deltas(self) -> dict[str, _Delta]:
        """What is added to each weight."""
        sides: dict[str, dict[str, str]] = {}
        for name, key in self._names():
            if matched := LOW_RANK.fullmatch(name):
                sides.setdefault(matched[1], {})[matched[2]] = key
        if not sides:
            self._refuse("no lora_A.weight and lora_B.weight among its keys", "a LoRA adapter as peft writes it")
        patterns = self.config.get("alpha_pattern") or {}
        if len(sides) * len(patterns) > MAX_MATCHES:
            self._refuse(f"{len(patterns):,} patterns for {len(sides):,} modules", "one for each of them at most")
        ranks = {self.config.get("r", 8), *(self.config.get("rank_pattern") or {}).values()}
        deltas = {}
        for module, pair in sides.items():
            if pair.keys() != {"A", "B"}:
                self._refuse(f"lora_{min(pair)} of {quote(module)} alone", "lora_A and lora_B")
            rank = (*self.file.groups[""][pair["A"]].shape, 0)[0]
            if rank not in ranks:
                self._refuse(
                    f"{quote(module)} of rank {rank:,}", f"the ranks of its {CONFIG}, {listing(sorted(ranks))}"
                )
            # As peft matches them.
            matching = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
            alpha: float = next(matching, self.config.get("lora_alpha", 8))
            scale = alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
            deltas[f"{module}.weight"] = _Delta(pair["A"], pair["B"], scale)
        return deltas

    def _whole(self) -> dict[str, str]:
        """The key of each tensor that takes the place of one of the base model."""
        whole: dict[str, str] = {}
        for name, key in self._names():
            # With all biases, peft also writes those of saved modules as they are wrapped, and as they were before.
            if not LOW_RANK.fullmatch(name) and ".original_module." not in name:
                whole.setdefault(name.replace(".modules_to_save.", "."), key)
        strange = [name for name in whole if "lora_" in name]
        if strange:
            self._refuse(f"the keys {listing(strange)}", "lora_A.weight and lora_B.weight alone")
        return whole

    def _place(self, base: WeightFile, sidecars: Sidecars, needed: list[str]) -> _Place:
        """Where the modules of the adapter are in the base model."""
        groups = base.groups.items()
        found = [_find_place(group, {key: key for key in tensors}, needed) for group, tensors in groups]
        if not any(found):
            in_memory = saved_names(sidecars, base.name, base.file_bytes)
            for group, tensors in groups:
                names = {name: key for name, key in in_memory.items() if key in tensors}
                found.append(_find_place(group, names, needed))
        places = [place for place in found if place is not None]
        if not places:
            keys = {key for tensors in base.groups.values() for key in tensors}
            missing = [name for name in needed if name not in keys] or needed
            found_keys = f"{listing(missing)}, which {base.name} has not: its keys are {listing(sorted(keys))}"
            self._refuse(f"an adapter of {found_keys}", "the base model that it was trained with")
        if len(places) > 1:
            several = listing(place.group for place in places)
            self._refuse(f"a base model, {base.name}, with several state dicts: {several}", "one of them alone")
        return places[0]

    def _check_shapes(self, name: str, delta: _Delta, info: TensorInfo, base: WeightFile) -> None:
        low, high = (self.file.groups[""][key].shape for key in (delta.low, delta.high))
        fits = len(info.shape) > 1 and low[1:] == info.shape[1:] and high[:1] == info.shape[:1]
        if not fits or high[1:2] != low[:1] or math.prod(high[2:]) != 1:
            found = f"lora_A {low} and lora_B {high} for {quote(name)}, which has the shape {info.shape} in {base.name}"
            self._refuse(found, "the base model that it was trained with")

    def _added(self, load: Callable[[], torch.Tensor], delta: _Delta) -> torch.Tensor:
        weight = load()
        low, high = (self.file.read("", key).flatten(1) for key in (delta.low, delta.high))
        return weight + delta.scale * (high @ low).reshape(weight.shape)

    def _relabelled(self, sidecars: Sidecars, classes: int) -> Sidecars:
        """The configuration without the classes of a classifier that the adapter replaces."""
        config: dict[str, Any] = {key: value for key, value in sidecars.config.items() if key not in LABELS}
        if "model_type" in config:
            config |= {"num_labels": classes, "id2label": {str(each): f"LABEL_{each}" for each in range(classes)}}
            mapping = self.config.get("auto_mapping")
            named = mapping.get("base_model_class") if isinstance(mapping, dict) else None
            config |= {"architectures": [named]} if isinstance(named, str) else {}
        elif config:
            config["num_classes"] = classes
            if isinstance(config.get("pretrained_cfg"), dict):
                kept = {key: value for key, value in config["pretrained_cfg"].items() if key not in LABELS}
                config["pretrained_cfg"] = {**kept, "num_classes": classes}
        return replace(sidecars, config=Settings(config, sidecars.config.place))


def find_adapter(path: object) -> Path | None:
    """The folder of an adapter, of a path to it or to its weights; None where it is none."""
    if not path_exists(path):
        return None
    place = Path(str(path))
    folder = place if place.is_dir() else place.parent
    inside = place.is_dir() or place.name in (WEIGHTS, PICKLED)
    found = inside and (folder / CONFIG).is_file() and any((folder / name).is_file() for name in (WEIGHTS, PICKLED))
    return folder if found else None


def open_adapter(folder: Path) -> Adapter:
    """See what an adapter is, without reading its tensors.

    Raises:
        CheckpointError: it is no LoRA adapter in safetensors, or one with what vitviz does not know.
    """
    name, config = plain(folder.resolve().name), read_json(folder / CONFIG)

    def refuse(entry: str, expected: str) -> NoReturn:
        raise CheckpointError(f"{name}: {entry} = {quote(config.get(entry))} in its {CONFIG}; expected {expected}")

    if config.get("peft_type") != "LORA":
        refuse("peft_type", "'LORA'; peft's merge_and_unload() makes a checkpoint of any other")
    strange = sorted(entry for entry, value in config.items() if value and entry not in ENTRIES)
    if strange:
        refuse(plain(strange[0]), "plain LoRA; peft's merge_and_unload() makes a checkpoint of any other")
    begins = config.get("init_lora_weights")
    if not any(begins is known or (isinstance(begins, str) and begins == known) for known in BEGINNINGS):
        refuse("init_lora_weights", f"{choices(BEGINNINGS[:2] + BEGINNINGS[3:])}, which leave the base model as it is")
    modules = config.get("modules_to_save") or []
    if not _is_list(modules) or not all(isinstance(module, str) and module for module in modules):
        refuse("modules_to_save", f"at most {MAX_LISTED:,} names of modules")
    for entry, check in (("rank_pattern", _is_rank), ("alpha_pattern", _is_alpha)):
        patterns = config.get(entry) or {}
        simple = isinstance(patterns, dict) and all(map(_is_pattern, patterns))
        if not simple or not all(map(check, patterns.values())):
            refuse(entry, "numbers by names of modules, with dots and one .* or \\d+ at most")
    if not _is_rank(config.get("r", 8)):
        refuse("r", "a whole number above 0")
    if not _is_alpha(config.get("lora_alpha", 8)):
        refuse("lora_alpha", "a number")
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"{name}: an adapter in {PICKLED}; expected {WEIGHTS}")
    return Adapter(name, folder, open_weights(folder / WEIGHTS), config)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_LISTED


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 < value < 2**20


def _is_alpha(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 2**40  # type: ignore[arg-type]


def _is_pattern(text: str) -> bool:
    return bool(PATTERN.fullmatch(text)) and sum(map(text.count, "*+")) <= MAX_REPETITIONS


def _is_revision(value: object) -> bool:
    return isinstance(value, str) and bool(REVISION.fullmatch(value))


@dataclass(frozen=True)
class _Place:
    """Where an adapter's modules are in a base model.

    Args:
        group: of the file.
        names: the file's key of each name that a tensor has for the adapter.
        outer: what the adapter's names have before those of the file.
        inner: what the file's keys have before those of the adapter; others are no part of the adapted model.
    """

    group: str
    names: Mapping[str, str]
    outer: str = ""
    inner: str = ""

    def rename(self, key: str) -> str | None:
        """A key of the file in the merged model; None where that has none."""
        return self.outer + key.removeprefix(self.inner) if key.startswith(self.inner) else None

    def target(self, name: str) -> str:
        """A name of the adapter's in the merged model."""
        return self.rename(self.names[name]) or name if name in self.names else name


def _find_place(group: str, names: Mapping[str, str], needed: list[str]) -> _Place | None:
    """Where all names stand; None where they do not.

    An adapter of a model with a head may stand on the checkpoint of its encoder alone, and the other way round.
    """
    if all(name in names for name in needed):
        return _Place(group, names)
    first = needed[0]
    parts = first.split(".")
    for count in range(1, min(MAX_NESTING, len(parts))):
        outer = ".".join(parts[:count]) + "."
        longer = {outer + name: key for name, key in names.items()}
        if all(name in longer for name in needed):
            return _Place(group, longer, outer=outer)
    inner = [name.removesuffix(first) for name in names if name.endswith("." + first)]
    if len(inner) == 1:
        shorter = {name.removeprefix(inner[0]): key for name, key in names.items() if name.startswith(inner[0])}
        if all(name in shorter for name in needed):
            return _Place(group, shorter, inner=inner[0])
    return None
