"""Which family a checkpoint belongs to, and which of its keys is what."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate, islice
from typing import Any

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import choices, listing, quote
from vitviz.weights.architectures import Architecture, architecture_named, architecture_of_keys
from vitviz.weights.conversion.canonical import MAPS, OUTER, TOKENS, Candidate, Family, Key, MatchedCheckpoint
from vitviz.weights.conversion.heads import find_head
from vitviz.weights.families import FAMILIES, timm
from vitviz.weights.formats.files import WeightFile
from vitviz.weights.metadata.sidecars import Sidecars

LANGUAGE_MODEL = "a language model"
READ = "vitviz reads checkpoints of Vision Transformers with global attention"
# Keys of what is no network for pictures, and what it is.
STRANGERS = {
    "unet.": "a diffusion model",
    "lm_head.weight": LANGUAGE_MODEL,
    "lora_A": "a LoRA adapter, which vitviz.load opens by its folder, with its adapter_config.json and its base model",
}
# What training leaves in a state dict beside the network, wherever it stands.
TRAINING = dict.fromkeys(
    (
        *("criterion", "criterion.*", "loss", "loss.*", "loss_fn.*", "*_loss", "*_loss.*", "losses.*"),
        *("metric.*", "metrics.*", "*_metric.*", "*_metrics.*", "*_acc.*", "*_accuracy.*", "accuracy.*", "acc.*"),
        *("n_averaged", "num_batches_tracked", "queue", "queue_ptr", "center", "*.center"),
    ),
    "what training leaves beside the network",
)
# How transformers ends the model_type of a part.
PARTS = ("_vision_model", "_vision", "_image_model")
# How many places of a file are looked at for a family that it nearly is.
NEAREST = 4
# Parts of the longest prefix of an encoder's keys: each of them is tried for the heads.
NESTED = 16
# The order among several state dicts in one file: teacher or averaged weights first, student last.
PREFERRED, LAST = ("teacher", "ema"), ("student",)


def recognize(
    file: WeightFile, sidecars: Sidecars, family: str | None, overrides: Mapping[str, Any]
) -> MatchedCheckpoint:
    """Tell a checkpoint's family from its keys, and its keys apart.

    Args:
        file: the checkpoint.
        sidecars: the JSON beside it.
        family: its family's name, where the user says it.
        overrides: facts that the user says.

    Raises:
        UnknownFamilyError: no family has such keys, or the family has fewer.
        CheckpointError: the family has more keys than the file, or there is none of that name.
    """
    families = _possible(file, sidecars, family, overrides)
    candidates = list(_candidates(file, sidecars, families))
    if not candidates and "architecture" in overrides:
        keys = listing(key for tensors in file.groups.values() for key in tensors)
        raise UnknownFamilyError(
            f"{file.name}: architecture = {quote(overrides['architecture'])} is a model of timm's, "
            f"and its keys are not: {keys}"
        )
    if not candidates:
        raise UnknownFamilyError(_unknown(file, families))
    chosen, candidate = min(candidates, key=_rank)
    checkpoint = MatchedCheckpoint(
        file,
        candidate.group,
        chosen,
        candidate.prefix,
        keys={},
        ignored={},
        config=sidecars.config.inner("vision_config") or sidecars.config,
        whole_config=sidecars.config,
        open_clip=sidecars.open_clip,
        overrides=overrides,
        checks=[],
    )
    checkpoint.record("family", chosen.title, "its keys" if family is None else "said")
    if candidate.group or candidate.prefix:
        where = " in ".join(quote(part) for part in (candidate.prefix.rstrip("./"), candidate.group) if part)
        others = {place for _, other in candidates if (place := _place(other)) != _place(candidate)}
        if others:
            reason = f"one of several, beside {listing(sorted(others))}; ignore=[…] leaves out those that are not meant"
            checkpoint.assume("encoder", where, reason)
        else:
            checkpoint.record("encoder", where, "where its keys stand")
    beside = [other for _, other in candidates if other.group == candidate.group and other.prefix != candidate.prefix]
    _leave_others(checkpoint, [other.prefix for other in beside])
    find_head(checkpoint, _ancestors(checkpoint.prefix))
    _tell_apart(checkpoint)
    _same_in_every_layer(checkpoint)
    _belong_together(checkpoint)
    return checkpoint


def _possible(
    file: WeightFile, sidecars: Sidecars, name: str | None, overrides: Mapping[str, Any]
) -> tuple[Family, ...]:
    """The families that the user and the configuration leave possible."""
    if name is not None:
        named = tuple(family for family in FAMILIES if family.name == name)
        if not named:
            raise CheckpointError(f"family {name!r}: expected {choices(family.name for family in FAMILIES)}")
        return named
    if "architecture" in overrides:
        return timm.FAMILIES
    model_type = sidecars.config.get("model_type")
    # transformers wraps timm's models and keeps their keys.
    if model_type is None or model_type == "timm_wrapper":
        return FAMILIES
    meant = tuple(family for family in FAMILIES if model_type in family.model_types)
    if not meant:
        known = architecture_named(model_type)
        if known is not None:
            raise UnknownFamilyError(f"{file.name}: this is {_in_words(known)}")
        every = {kind for family in FAMILIES for kind in family.model_types}
        whole = sorted(kind for kind in every if not kind.endswith(PARTS))
        raise UnknownFamilyError(
            f"{file.name}: model_type {quote(model_type)} in its config.json; expected {choices(whole)}, or that of "
            "their vision part"
        )
    return meant


def _candidates(file: WeightFile, sidecars: Sidecars, families: Sequence[Family]) -> Iterator[tuple[Family, Candidate]]:
    """Every state dict that has the signature of a family; of several families, the first."""
    for group, tensors in file.groups.items():
        prefixes: set[str] = set()
        ordered = sorted(tensors)
        for family, signature in ((each, keys) for each in families for keys in each.signatures):
            for prefix in _prefixes(tensors, signature[0]):
                if prefix in prefixes or not all(prefix + key in tensors for key in signature):
                    continue
                # Keys that begin alike stand together: a file of many small encoders takes no longer than another.
                first = bisect_left(ordered, prefix)
                shapes = {key[len(prefix) :]: tensors[key].shape for key in _run(ordered, first, prefix)}
                candidate = Candidate(group, prefix, shapes, sidecars.config)
                if shapes.keys().isdisjoint(family.excluded_keys) and family.accepts(candidate):
                    prefixes.add(prefix)
                    yield family, candidate


def _prefixes(keys: Mapping[str, object], anchor: str) -> list[str]:
    """What stands before a key wherever it occurs."""
    prefixes = (key[: -len(anchor)] for key in keys if key.endswith(anchor))
    return [
        prefix
        for prefix in prefixes
        if prefix == "" or (prefix[-1] in "./" and prefix.count(".") + prefix.count("/") <= NESTED)
    ]


def _run(ordered: Sequence[str], first: int, prefix: str) -> Iterator[str]:
    """Keys from a place on, as long as they begin so."""
    for index in range(first, len(ordered)):
        if not ordered[index].startswith(prefix):
            return
        yield ordered[index]


def _place(candidate: Candidate) -> str:
    return f"{candidate.group}.{candidate.prefix}".strip("./")


def _rank(pair: tuple[Family, Candidate]) -> tuple[int, int, str]:
    place = _place(pair[1])
    words = place.replace("_", ".").split(".")
    liked = 0 if set(words) & set(PREFERRED) else 2 if set(words) & set(LAST) else 1
    return liked, len(place), place


def _leave_others(checkpoint: MatchedCheckpoint, prefixes: Sequence[str]) -> None:
    """Leave out what stands under other encoders' names: a student beside its teacher, an average beside its model."""
    own, places = checkpoint.prefix.split("."), set()
    for prefix in prefixes:
        parts = prefix.split(".")
        shared = next((index for index, pair in enumerate(zip(own, parts, strict=False)) if pair[0] != pair[1]), None)
        # An encoder inside of the other may be a part of it.
        if shared is not None and "" not in (own[shared], parts[shared]):
            places.add(".".join(parts[: shared + 1]))
    for key in checkpoint.file.groups[checkpoint.group] if places else ():
        parts = key.split(".")[: NESTED + 1]
        place = next((start for start in accumulate(parts, "{}.{}".format) if start in places), None)
        if place is not None:
            checkpoint.ignored[key] = f"of another encoder, {quote(place)}"


def _tell_apart(checkpoint: MatchedCheckpoint) -> None:
    """Every key with its canonical key, or as something that is not needed."""
    ancestors, placed = _ancestors(checkpoint.prefix), set(checkpoint.keys.values())
    surplus = [
        key
        for key in checkpoint.file.groups[checkpoint.group]
        if key not in placed and key not in checkpoint.ignored and not _place_key(checkpoint, key, ancestors)
    ]
    if surplus:
        stranger = _stranger(surplus)
        if stranger:
            raise UnknownFamilyError(f"{checkpoint.name}: this is {stranger}")
        raise UnknownFamilyError(
            f"{checkpoint.name}: keys that a checkpoint of this kind ({checkpoint.family.title}) does not have: "
            f"surplus {listing(surplus)}; ignore=[…] leaves out what you know not to matter"
        )


def _place_key(checkpoint: MatchedCheckpoint, key: str, ancestors: Sequence[str]) -> bool:
    family = checkpoint.family
    for ancestor in ancestors:
        if not key.startswith(ancestor):
            continue
        name, inside = key[len(ancestor) :], ancestor == checkpoint.prefix
        matched = family.match(name)
        if matched and (inside or matched[1].split(".")[0] in OUTER):
            _put(checkpoint, matched, key)
            return True
        needless = family.ignored if inside else {**family.ignored, **family.outside}
        reason = next((why for pattern, why in {**needless, **TRAINING}.items() if fnmatchcase(name, pattern)), None)
        if reason:
            checkpoint.ignored[key] = reason
            return True
    return False


def _ancestors(prefix: str) -> list[str]:
    """A prefix and all shorter ones: ``"model.vit."``, ``"model."``, ``""``."""
    steps = [prefix]
    while steps[-1]:
        parent = steps[-1][:-1]
        end = max(parent.rfind("."), parent.rfind("/")) + 1
        steps.append(parent[:end])
    return steps


def _put(checkpoint: MatchedCheckpoint, canonical_key: Key, key: str) -> None:
    if canonical_key in checkpoint.keys:
        raise CheckpointError(
            f"{checkpoint.name}: {quote(checkpoint.keys[canonical_key])} and {quote(key)} are two keys of the "
            "same thing"
        )
    checkpoint.keys[canonical_key] = key


def _same_in_every_layer(checkpoint: MatchedCheckpoint) -> None:
    """All layers have the same canonical keys, and no layer is left out."""
    keys_by_layer: dict[int, set[str]] = {}
    for layer, canonical_key in checkpoint.keys:
        if layer is not None:
            keys_by_layer.setdefault(layer, set()).add(canonical_key)
    every = set().union(*keys_by_layer.values()) if keys_by_layer else set()
    # A key may name any layer: missing keys are counted, and only those in the message are spelt.
    count = checkpoint.depth * len(every) - sum(map(len, keys_by_layer.values()))
    if count:
        missing = (
            checkpoint.expected_key(canonical_key, layer)
            for layer in range(checkpoint.depth)
            for canonical_key in sorted(every - keys_by_layer.get(layer, set()))
        )
        listed_keys = list(islice(missing, 4))
        more = f" and {count - len(listed_keys):,} more" * (count > len(listed_keys))
        raise CheckpointError(f"{checkpoint.name}: missing {listing(listed_keys)}{more}")


def _belong_together(checkpoint: MatchedCheckpoint) -> None:
    """No bias without its weight, no attention pooling without its query, no shape that no model has."""
    for layer, canonical_key in checkpoint.keys:
        stem, _, part = canonical_key.rpartition(".")
        # BEiT's biases of queries and values stand beside one weight of all three.
        beside = part == "bias" and not (stem in ("query", "value") and (layer, "qkv.weight") in checkpoint.keys)
        if beside and (layer, f"{stem}.weight") not in checkpoint.keys:
            raise checkpoint.missing_key(f"{stem}.weight", layer)
        if canonical_key.startswith("pool.") and (None, "pool.probe") not in checkpoint.keys:
            raise checkpoint.missing_key("pool.probe")
    for (_, canonical_key), key in checkpoint.keys.items():
        stem, _, part = canonical_key.rpartition(".")
        shape = checkpoint.file.groups[checkpoint.group][key].shape
        least = 2 if part == "weight" and stem in MAPS else 1
        if (
            len(shape) < least
            or ("norm" in stem and len(shape) > 1)
            or (0 in shape and canonical_key not in TOKENS[:3])
        ):
            expected = "one dimension" if "norm" in stem else f"at least {least} dimension{'s' * (least > 1)}"
            expected += ", not empty"
            raise CheckpointError(f"{checkpoint.name}: {quote(key)} has the shape {shape}; expected {expected}")


def _stranger(keys: Sequence[str]) -> str | None:
    """What is no Vision Transformer with global attention alone, in words."""
    known = architecture_of_keys(keys)
    if known is not None:
        return _in_words(known)
    return next((what for part, what in STRANGERS.items() if any(part in key for key in keys)), None)


def _in_words(architecture: Architecture) -> str:
    instead = "; a module of it in memory opens: vitviz.load(module); and a folder of safetensors with its config.json"
    return f"{architecture.sentence}; {READ}{instead * architecture.opens}"


def _unknown(file: WeightFile, families: Sequence[Family]) -> str:
    keys = [key for tensors in file.groups.values() for key in tensors]
    stranger, near = _stranger(keys), _nearest(file, families)
    # A language model may have a tower.
    if stranger and not (near and stranger == LANGUAGE_MODEL):
        return f"{file.name}: this is {stranger}"
    if near:
        each = " or ".join(f"{family.title}, missing {listing(missing)}" for family, missing in near)
        return f"{file.name}: most of its keys are those of {each}"
    expected = "of a family that vitviz reads" if len(families) > 1 else f"of the family {families[0].name!r}"
    return f"{file.name}: not a Vision Transformer {expected}: its keys are {listing(keys) if keys else 'no tensors'}"


def _nearest(file: WeightFile, families: Sequence[Family]) -> list[tuple[Family, list[str]]]:
    """Families that have most of a file's keys, at most three, and those of their signatures that are missing."""
    near: list[tuple[int, int, Family, list[str]]] = []
    for tensors in file.groups.values():
        for family in families:
            prefixes = {prefix for anchor in family.signature for prefix in _prefixes(tensors, anchor)}
            for prefix in sorted(prefixes, key=len)[:NEAREST]:
                inner = [key for key in tensors if key.startswith(prefix)]
                known = sum(bool(family.match(key[len(prefix) :])) for key in inner)
                lacking = ([prefix + key for key in keys if prefix + key not in tensors] for keys in family.signatures)
                missing = min(lacking, key=len)
                foreign = any(prefix + key in tensors for key in family.excluded_keys)
                if missing and not foreign and 2 * known > len(inner):
                    near.append((-known, len(missing), family, missing))
    near.sort(key=lambda entry: entry[:2])
    return [entry[2:] for entry in near if entry[0] == near[0][0]][:3]
