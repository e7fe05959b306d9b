"""LoRA adapters (Hu et al. 2022) as peft's ``save_pretrained`` writes them, merged into their base model's tensors.

peft itself is not used, since it imports the module that ``auto_mapping`` names, and runs regular expressions of the
file.
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
from vitviz.weights.formats.files import WeightFile, open_weights
from vitviz.weights.formats.names import WEIGHT_FILE_NAMES
from vitviz.weights.formats.paths import path_exists
from vitviz.weights.hub.names import REPOSITORY, REVISION
from vitviz.weights.metadata.settings import Settings
from vitviz.weights.metadata.sidecars import Sidecars, read_json
from vitviz.weights.packages.transformers import saved_names
from vitviz.weights.suggestions import HUB

CONFIG, WEIGHTS, PICKLED_WEIGHTS = "adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"
# The prefix that peft adds to every module name.
PEFT_PREFIX = "base_model.model."
LOW_RANK = re.compile(r"(.+)\.lora_([AB])\.weight")
# Entries of the configuration that are read here, or that only describe the training.
KNOWN_ENTRIES = frozenset(
    (
        *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "modules_to_save", "init_lora_weights"),
        *("peft_type", "base_model_name_or_path", "revision", "auto_mapping", "bias", "peft_version", "task_type"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "lora_dropout"),
        # For GPT-2's transposed layers; peft ignores it for the layers of Vision Transformers.
        "fan_in_fan_out",
        *("inference_mode", "megatron_core", "qalora_group_size", "ensure_weight_tying"),
    )
)
# Initialisations that keep the weights of the base model; others subtract from them.
INITIALISATIONS = (True, False, None, "gaussian", "orthogonal")
# Regular expressions without groups and with little repetition, so that matching takes at most quadratic time.
SIMPLE_PATTERN = re.compile(r"\^?(?:[\w-]|\\?\.[*+]?|\\d[*+]?){1,200}\$?", re.ASCII)
MAX_REPETITIONS = 1
MAX_NAME_CHARS, MAX_DOTS = 300, 20
# Limits of the matches of names with patterns, and of the entries in a list.
MAX_MATCHES, MAX_LISTED = 200_000, 1000
# Most names in a prefix around an encoder, as in `model.vit.`
MAX_NESTING = 4
# Poolers and projections, which models with a classifier do not have.
UNUSED_POOLERS = (".pooler.dense.", ".visual_projection.")
# Entries about a classifier's classes.
LABELS = ("id2label", "label2id", "num_labels", "num_classes", "label_names", "label_descriptions", "labels")


@dataclass(frozen=True)
class _Delta:
    """A change of a weight, ``scale · B · A``, with the keys of A (``low``) and B (``high``)."""

    low: str
    high: str
    scale: float


@dataclass(frozen=True, eq=False)
class Adapter:
    """A LoRA adapter, to be merged into a base model.

    Args:
        name: for messages.
        folder: with its files.
        file: with its tensors.
        config: its configuration.
    """

    name: str
    folder: Path
    file: WeightFile
    config: Mapping[str, Any]

    def base(self) -> str | Path:
        """The base model in the configuration, as a source for :func:`vitviz.load`.

        Raises:
            CheckpointError: it is neither a path nor on the hub, or there is a model in the adapter's folder.
        """
        model_files = [name for name in WEIGHT_FILE_NAMES if (self.folder / name).is_file()]
        if model_files:
            problem = f"an adapter beside {model_files[0]}, which may be its base model or already merged"
            self._refuse(problem, "base=… with the base model, or the path of that file")
        base_name, revision = self.config.get("base_model_name_or_path"), self.config.get("revision")
        if path_exists(base_name):
            return Path(str(base_name))
        if isinstance(base_name, str) and REPOSITORY.fullmatch(base_name):
            return f"{HUB}{base_name}" + (f"@{revision}" if _is_revision(revision) else "")
        problem = f"{quote(base_name)}, which is not here," if base_name else "no base model"
        self._refuse(f"its {CONFIG} names {problem}", "base=… with the file, folder or name of the base model")

    def merge(self, base: WeightFile, sidecars: Sidecars) -> tuple[WeightFile, Sidecars]:
        """The base model with the adapter merged into its weights as they are read.

        Args:
            base: the base model's file.
            sidecars: the JSON files beside it.

        Raises:
            CheckpointError: the adapter is for another model, or has unknown entries or keys.
        """
        deltas, replacements = self._deltas(), self._replacement_keys()
        # peft selects modules by the end of their names.
        saved_modules = [f"{module}." for module in self.config.get("modules_to_save") or []]
        required = [name for name in replacements if not any(module in name for module in saved_modules)]
        place = self._locate(base, sidecars, [*deltas, *required])
        missing = [
            name for name in place.names if any(module in name for module in saved_modules) and name not in replacements
        ]
        if missing:
            self._refuse(f"modules_to_save without {listing(missing)}", "all tensors of these modules")
        merged_parts: dict[str, LazyTensor] = {}
        for key, info in base.groups[place.group].items():
            name = place.rename(key)
            if name is not None:
                merged_parts[name] = LazyTensor(info, partial(base.read, place.group, key))
        changed_shapes = {}
        for name, key in replacements.items():
            target, info = place.target(name), self.file.groups[""][key]
            if target not in merged_parts or merged_parts[target].info.shape != info.shape:
                if name in required:
                    self._refuse(f"{quote(name)} of shape {info.shape}", f"that of {base.name}")
                changed_shapes[target] = info.shape
            merged_parts[target] = LazyTensor(info, partial(self.file.read, "", key))
        for name, delta in deltas.items():
            target = place.target(name)
            self._check_shapes(name, delta, merged_parts[target].info, base)
            load = merged_parts[target].load
            assert load is not None, "every part here is read"
            merged_parts[target] = LazyTensor(merged_parts[target].info, partial(self._add_delta, load, delta))
        if changed_shapes:
            # Models of transformers with a classifier have no pooler and no projection.
            for name in [name for name in merged_parts if any(module in f".{name}" for module in UNUSED_POOLERS)]:
                del merged_parts[name]
        infos = {"": MappingProxyType({name: module.info for name, module in merged_parts.items()})}
        merged = replace(
            base,
            name=self.name,
            kind=f"merged {base.kind}",
            groups=MappingProxyType(infos),
            file_bytes=base.file_bytes + self.file.file_bytes,
            _tensors={"": merged_parts},
        )
        classes = next((shape[0] for shape in changed_shapes.values() if len(shape) == 2), None)
        return merged, sidecars if classes is None else self._with_classes(sidecars, classes)

    def _refuse(self, problem: str, expected: str) -> NoReturn:
        raise CheckpointError(f"{self.name}: {problem}; expected {expected}")

    def _names(self) -> Iterator[tuple[str, str]]:
        """The name of each tensor in the base model, and its key."""
        for key in self.file.groups.get("", {}):
            if not key.startswith(PEFT_PREFIX) or len(key) > MAX_NAME_CHARS or key.count(".") > MAX_DOTS:
                self._refuse(f"the key {quote(key)}", f"keys that begin with {PEFT_PREFIX!r}, as peft writes them")
            yield key.removeprefix(PEFT_PREFIX).replace(".base_layer.", "."), key

    def _deltas(self) -> dict[str, _Delta]:
        """The change of each weight by name."""
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
            # peft matches patterns in the same way.
            matching = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
            alpha: float = next(matching, self.config.get("lora_alpha", 8))
            scale = alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
            deltas[f"{module}.weight"] = _Delta(pair["A"], pair["B"], scale)
        return deltas

    def _replacement_keys(self) -> dict[str, str]:
        """Keys of tensors that replace those of the base model, by name."""
        keys: dict[str, str] = {}
        for name, key in self._names():
            # With all biases, peft writes biases of saved modules twice: inside the wrapper, and as they were before.
            if not LOW_RANK.fullmatch(name) and ".original_module." not in name:
                keys.setdefault(name.replace(".modules_to_save.", "."), key)
        unknown = [name for name in keys if "lora_" in name]
        if unknown:
            self._refuse(f"the keys {listing(unknown)}", "lora_A.weight and lora_B.weight alone")
        return keys

    def _locate(self, base: WeightFile, sidecars: Sidecars, needed: list[str]) -> _Place:
        """The place of the adapter's modules in the base model."""
        groups = base.groups.items()
        matches = [_find_place(group, {key: key for key in tensors}, needed) for group, tensors in groups]
        if not any(matches):
            in_memory = saved_names(sidecars, base.name, base.file_bytes)
            for group, tensors in groups:
                names = {name: key for name, key in in_memory.items() if key in tensors}
                matches.append(_find_place(group, names, needed))
        places = [place for place in matches if place is not None]
        if not places:
            keys = {key for tensors in base.groups.values() for key in tensors}
            missing = [name for name in needed if name not in keys] or needed
            problem = f"{listing(missing)}, which {base.name} has not: its keys are {listing(sorted(keys))}"
            self._refuse(f"an adapter of {problem}", "the base model that it was trained with")
        if len(places) > 1:
            several = listing(place.group for place in places)
            self._refuse(f"a base model, {base.name}, with several state dicts: {several}", "one of them alone")
        return places[0]

    def _check_shapes(self, name: str, delta: _Delta, info: TensorInfo, base: WeightFile) -> None:
        low, high = (self.file.groups[""][key].shape for key in (delta.low, delta.high))
        fits = len(info.shape) > 1 and low[1:] == info.shape[1:] and high[:1] == info.shape[:1]
        if not fits or high[1:2] != low[:1] or math.prod(high[2:]) != 1:
            problem = (
                f"lora_A {low} and lora_B {high} for {quote(name)}, which has the shape {info.shape} in {base.name}"
            )
            self._refuse(problem, "the base model that it was trained with")

    def _add_delta(self, load: Callable[[], torch.Tensor], delta: _Delta) -> torch.Tensor:
        weight = load()
        low, high = (self.file.read("", key).flatten(1) for key in (delta.low, delta.high))
        return weight + delta.scale * (high @ low).reshape(weight.shape)

    def _with_classes(self, sidecars: Sidecars, classes: int) -> Sidecars:
        """The configuration with the classes of the adapter's classifier in place of the base model's."""
        config: dict[str, Any] = {key: value for key, value in sidecars.config.items() if key not in LABELS}
        if "model_type" in config:
            config |= {"num_labels": classes, "id2label": {str(each): f"LABEL_{each}" for each in range(classes)}}
            mapping = self.config.get("auto_mapping")
            class_name = mapping.get("base_model_class") if isinstance(mapping, dict) else None
            config |= {"architectures": [class_name]} if isinstance(class_name, str) else {}
        elif config:
            config["num_classes"] = classes
            if isinstance(config.get("pretrained_cfg"), dict):
                cfg = {key: value for key, value in config["pretrained_cfg"].items() if key not in LABELS}
                config["pretrained_cfg"] = {**cfg, "num_classes": classes}
        return replace(sidecars, config=Settings(config, sidecars.config.place))


def find_adapter(path: object) -> Path | None:
    """The folder of an adapter, given its path or that of its weights; None if it is no adapter."""
    if not path_exists(path):
        return None
    location = Path(str(path))
    folder = location if location.is_dir() else location.parent
    may_be_adapter = location.is_dir() or location.name in (WEIGHTS, PICKLED_WEIGHTS)
    is_adapter = (
        may_be_adapter
        and (folder / CONFIG).is_file()
        and any((folder / name).is_file() for name in (WEIGHTS, PICKLED_WEIGHTS))
    )
    return folder if is_adapter else None


def open_adapter(folder: Path) -> Adapter:
    """Open an adapter without reading its tensors.

    Raises:
        CheckpointError: it is no LoRA adapter in safetensors, or has entries that vitviz does not know.
    """
    name, config = plain(folder.resolve().name), read_json(folder / CONFIG)

    def refuse(entry: str, expected: str) -> NoReturn:
        raise CheckpointError(f"{name}: {entry} = {quote(config.get(entry))} in its {CONFIG}; expected {expected}")

    if config.get("peft_type") != "LORA":
        refuse("peft_type", "'LORA'; peft's merge_and_unload() makes a checkpoint of any other")
    unknown = sorted(entry for entry, value in config.items() if value and entry not in KNOWN_ENTRIES)
    if unknown:
        refuse(plain(unknown[0]), "plain LoRA; peft's merge_and_unload() makes a checkpoint of any other")
    initialisation = config.get("init_lora_weights")
    if not any(
        initialisation is legal or (isinstance(initialisation, str) and initialisation == legal)
        for legal in INITIALISATIONS
    ):
        refuse(
            "init_lora_weights",
            f"{choices(INITIALISATIONS[:2] + INITIALISATIONS[3:])}, which leave the base model as it is",
        )
    modules = config.get("modules_to_save") or []
    if not _is_list(modules) or not all(isinstance(module, str) and module for module in modules):
        refuse("modules_to_save", f"at most {MAX_LISTED:,} names of modules")
    for entry, check in (("rank_pattern", _is_rank), ("alpha_pattern", _is_alpha)):
        patterns = config.get(entry) or {}
        are_simple = isinstance(patterns, dict) and all(map(_is_pattern, patterns))
        if not are_simple or not all(map(check, patterns.values())):
            refuse(entry, "numbers by names of modules, with dots and one .* or \\d+ at most")
    if not _is_rank(config.get("r", 8)):
        refuse("r", "a whole number above 0")
    if not _is_alpha(config.get("lora_alpha", 8)):
        refuse("lora_alpha", "a number")
    if not (folder / WEIGHTS).is_file():
        raise CheckpointError(f"{name}: an adapter in {PICKLED_WEIGHTS}; expected {WEIGHTS}")
    return Adapter(name, folder, open_weights(folder / WEIGHTS), config)


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_LISTED


def _is_rank(value: object) -> bool:
    return type(value) is int and 0 < value < 2**20


def _is_alpha(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 2**40  # type: ignore[arg-type]


def _is_pattern(text: str) -> bool:
    return bool(SIMPLE_PATTERN.fullmatch(text)) and sum(map(text.count, "*+")) <= MAX_REPETITIONS


def _is_revision(value: object) -> bool:
    return isinstance(value, str) and bool(REVISION.fullmatch(value))


@dataclass(frozen=True)
class _Place:
    """The place of an adapter's modules in a base model.

    Args:
        group: name of the state dict in the file.
        names: keys of the file by the names that the adapter has for them.
        outer: prefix of the adapter's names that the file's keys do not have.
        inner: prefix of the file's keys that the adapter's names do not have; keys without it are left out.
    """

    group: str
    names: Mapping[str, str]
    outer: str = ""
    inner: str = ""

    def rename(self, key: str) -> str | None:
        """The key in the merged model for a key of the file; None if it is left out."""
        return self.outer + key.removeprefix(self.inner) if key.startswith(self.inner) else None

    def target(self, name: str) -> str:
        """The key in the merged model for a name of the adapter."""
        return self.rename(self.names[name]) or name if name in self.names else name


def _find_place(group: str, names: Mapping[str, str], needed: list[str]) -> _Place | None:
    """The place that has all names; None if there is none.

    An adapter of a model with a head may fit a checkpoint of only the encoder, and the other way round.
    """
    if all(name in names for name in needed):
        return _Place(group, names)
    first = needed[0]
    segments = first.split(".")
    for count in range(1, min(MAX_NESTING, len(segments))):
        outer = ".".join(segments[:count]) + "."
        prefixed = {outer + name: key for name, key in names.items()}
        if all(name in prefixed for name in needed):
            return _Place(group, prefixed, outer=outer)
    inner = [name.removesuffix(first) for name in names if name.endswith("." + first)]
    if len(inner) == 1:
        stripped = {name.removeprefix(inner[0]): key for name, key in names.items() if name.startswith(inner[0])}
        if all(name in stripped for name in needed):
            return _Place(group, stripped, inner=inner[0])
    return None
