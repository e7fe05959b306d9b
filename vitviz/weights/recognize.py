"""Recognises the family of a checkpoint, and matches its keys to canonical keys."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate, product

from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import choices, listing, quote
from vitviz.weights.conversion.canonical import MAPS, OUTER, TOKENS, Candidate, Family, Key, MatchedCheckpoint
from vitviz.weights.conversion.heads import find_head
from vitviz.weights.families import FAMILIES
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.overrides import Stated
from vitviz.weights.suggestions import ignore_argument

# Parts of keys in a network with adapters: of peft, of parametrisations, or of loralib beside the weight itself.
ADAPTER = re.compile(
    r"\.(?:base_layer|parametrizations\.\w{1,50}\.\d{1,3}\.lora_\w)|\.((?:lora|hada|lokr|ia3|vera|oft|boft)_\w)"
)
# What files of other layouts hold, and timm's name of one of them, by a part of their keys.
OTHERS = {
    "visual.conv1.": ("OpenAI's CLIP or open_clip's, of which open_clip:NAME/WEIGHTS opens the whole", None),
    "vision_model.embeddings.": ("a CLIP or SigLIP of transformers", None),
    "storage_tokens": ("Meta's DINOv3", "vit_small_patch16_dinov3"),
    "encoder.layers.encoder_layer_0.": ("torchvision's ViT, such as torchvision.models.vit_b_16()", None),
    "backbone.layers.0.attn.qkv": ("MMPretrain's ViT", None),
}
# Names that wrappers of training put between the parts of a key.
WRAPPERS = re.compile(r"(?:_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
# Parts of keys from which a weight is computed when a module runs, and what makes it a plain one.
WEIGHT_PARTS = {
    "weight_mask": "torch.nn.utils.prune.remove(module, 'weight')",
    ".parametrizations.": "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight')",
}
# Keys of training state beside the network, under any prefix.
TRAINING = dict.fromkeys(
    (
        *("criterion", "criterion.*", "loss", "loss.*", "loss_fn.*", "*_loss", "*_loss.*", "losses.*"),
        *("metric.*", "metrics.*", "*_metric.*", "*_metrics.*", "*_acc.*", "*_accuracy.*", "accuracy.*", "acc.*"),
        *("n_averaged", "num_batches_tracked", "queue", "queue_ptr", "center", "*.center"),
    ),
    "what training leaves beside the network",
)
# Longest prefix of an encoder, in dotted parts; each part is tried as the prefix of heads.
MAX_PREFIX_PARTS = 16
# Of several encoders in a file, teacher and averaged weights are preferred, and the student comes last.
PREFERRED, LAST = ("teacher", "ema"), ("student",)
# The source of a fact that is an argument, not read from the checkpoint.
STATED_BY_USER = "stated by the user"


def recognize(
    file: WeightFile, files: Beside, stated: Stated, families: Sequence[Family] | None = None
) -> MatchedCheckpoint:
    """Find a checkpoint's family, and the canonical key of each of its keys.

    Args:
        file: the checkpoint.
        files: beside it.
        stated: by the user.
        families: that it may be of; by default those that the user and the files allow.

    Raises:
        UnknownFamilyError: no family has such keys, or the family lacks some of them.
        CheckpointError: the file lacks keys of the family, or there is no family of that name.
    """
    groups = {name: {WRAPPERS.sub("", key): each for key, each in group.items()} for name, group in file.groups.items()}
    file = replace(file, groups=groups)
    _refuse_adapted(file)
    families = _possible_families(file, files, stated) if families is None else families
    candidates = list(_candidates(file, files, families))
    if not candidates:
        raise UnknownFamilyError(_refusal(file))
    matched_family, candidate = min(candidates, key=_rank)
    checkpoint = MatchedCheckpoint(
        file,
        candidate.group,
        matched_family,
        candidate.prefix,
        keys={},
        ignored={},
        config=files.config,
        overrides=stated.facts,
        checks=[],
    )
    checkpoint.record("family", matched_family.title, "its keys" if stated.family is None else STATED_BY_USER)
    if candidate.group or candidate.prefix:
        place_name = " in ".join(quote(name) for name in (candidate.prefix.rstrip("./"), candidate.group) if name)
        rivals = {place for _, rival in candidates if (place := _place(rival)) != _place(candidate)}
        if rivals:
            others = [f"{place}." for place in sorted(rivals) if place]
            names = (f"{candidate.group}.{candidate.prefix}{key}".removeprefix(".") for key in candidate.keys)
            own = [name for name in names if not name.startswith(tuple(others))]
            left_out = f"; {ignore_argument(others, own)} leaves the others out" * (len(others) == len(rivals))
            reason = f"one of several, beside {listing(sorted(rivals))}{left_out}"
            checkpoint.record("encoder", place_name, reason, assumed=True)
        else:
            checkpoint.record("encoder", place_name, "where its keys stand")
    same_group = [
        rival for _, rival in candidates if rival.group == candidate.group and rival.prefix != candidate.prefix
    ]
    _ignore_other_encoders(checkpoint, [rival.prefix for rival in same_group])
    _assign_keys(checkpoint)
    _refuse_objects(checkpoint)
    _check_tensors(checkpoint)
    return checkpoint


def _refuse_adapted(file: WeightFile) -> None:
    """Refuse a whole network with adapters in it, whose scales are not in the file."""
    for tensors in file.groups.values():
        for key in tensors:
            matched = ADAPTER.search(key)
            if matched and (matched[1] is None or key[: matched.start(1)] + "weight" in tensors):
                raise CheckpointError(
                    f"{file.name}: a network with adapters that are not merged, {quote(key)}, and their scales are not "
                    "in the file; expected torch.save(model.merge_and_unload().state_dict(), 'merged.pth') of peft's "
                    "model"
                )


def _possible_families(file: WeightFile, files: Beside, stated: Stated) -> tuple[Family, ...]:
    """The families that the user's options and the configuration allow."""
    name, of_timm = stated.family, tuple(family for family in FAMILIES if family.name == "timm")
    if name is not None:
        named = tuple(family for family in FAMILIES if family.name == name)
        if not named:
            raise CheckpointError(f"family {name!r}: expected {choices(family.name for family in FAMILIES)}")
        return named
    if "architecture" in stated.facts or files.package == "timm":
        return of_timm
    if files.package is None:
        return FAMILIES
    model_type = files.config.get("model_type")
    matching = tuple(family for family in FAMILIES if model_type in family.model_types)
    if not matching:
        described = f"model_type {quote(model_type)} in its config.json" if model_type else "open_clip_config.json"
        raise UnknownFamilyError(f"{file.name}: {described}: vitviz has no network of its own for it")
    return matching


def _candidates(file: WeightFile, files: Beside, families: Sequence[Family]) -> Iterator[tuple[Family, Candidate]]:
    """Every state dict that has the signature of a family, with the first such family."""
    for group, tensors in file.groups.items():
        prefixes: set[str] = set()
        ordered = sorted(tensors)
        for family, signature in ((each, keys) for each in families for keys in each.signatures):
            for prefix in _prefixes(tensors, signature[0]):
                if prefix in prefixes or not all(prefix + key in tensors for key in signature):
                    continue
                # Sorted keys with the same prefix are adjacent, so many small encoders take no longer than one.
                first = bisect_left(ordered, prefix)
                shapes = {key[len(prefix) :]: tensors[key].shape for key in _keys_from(ordered, first, prefix)}
                candidate = Candidate(group, prefix, shapes, files.config)
                if shapes.keys().isdisjoint(family.excluded_keys) and family.accepts(candidate):
                    prefixes.add(prefix)
                    yield family, candidate


def _prefixes(keys: Mapping[str, object], anchor: str) -> list[str]:
    """Every prefix that a key has in a file."""
    prefixes = (key[: -len(anchor)] for key in keys if key.endswith(anchor))
    return [
        prefix
        for prefix in prefixes
        if prefix == "" or (prefix[-1] in "./" and prefix.count(".") + prefix.count("/") <= MAX_PREFIX_PARTS)
    ]


def _keys_from(ordered: Sequence[str], first: int, prefix: str) -> Iterator[str]:
    """Sorted keys from an index on, while they begin with the prefix."""
    for index in range(first, len(ordered)):
        if not ordered[index].startswith(prefix):
            return
        yield ordered[index]


def _place(candidate: Candidate) -> str:
    return f"{candidate.group}.{candidate.prefix}".strip("./")


def _rank(pair: tuple[Family, Candidate]) -> tuple[int, int, str]:
    place = _place(pair[1])
    words = place.replace("_", ".").split(".")
    preference = 0 if set(words) & set(PREFERRED) else 2 if set(words) & set(LAST) else 1
    return preference, len(place), place


def _ignore_other_encoders(checkpoint: MatchedCheckpoint, prefixes: Sequence[str]) -> None:
    """Ignore keys of other encoders, such as a student beside its teacher or a model beside its average."""
    own_segments, places = checkpoint.prefix.split("."), set()
    for prefix in prefixes:
        segments = prefix.split(".")
        fork = next(
            (index for index, pair in enumerate(zip(own_segments, segments, strict=False)) if pair[0] != pair[1]), None
        )
        # An encoder nested inside this one may be a part of it.
        if fork is not None and "" not in (own_segments[fork], segments[fork]):
            places.add(".".join(segments[: fork + 1]))
    for key in checkpoint.file.groups[checkpoint.group] if places else ():
        segments = key.split(".")[: MAX_PREFIX_PARTS + 1]
        place = next((start for start in accumulate(segments, "{}.{}".format) if start in places), None)
        if place is not None:
            checkpoint.ignored[key] = f"of another encoder, {quote(place)}"


def _assign_keys(checkpoint: MatchedCheckpoint) -> None:
    """Match each key to its canonical key, or ignore it with a reason.

    Raises:
        UnknownFamilyError: the family has no such key.
    """
    ancestors = _ancestors(checkpoint.prefix)
    others = [key for key in checkpoint.file.groups[checkpoint.group] if key not in checkpoint.ignored]
    surplus = find_head(checkpoint, [key for key in others if not _place_key(checkpoint, key, ancestors)], ancestors)
    if surplus:
        raise UnknownFamilyError(
            f"{checkpoint.name}: keys that a checkpoint of this kind ({checkpoint.family.title}) does not have: "
            f"surplus {listing(surplus)}; {ignore_argument(surplus, checkpoint.keys.values())} leaves them out, where "
            "you know that they do not matter"
        )


def _place_key(checkpoint: MatchedCheckpoint, key: str, ancestors: Sequence[str]) -> bool:
    family = checkpoint.family
    for ancestor in ancestors:
        if not key.startswith(ancestor):
            continue
        name, inside = key[len(ancestor) :], ancestor == checkpoint.prefix
        matched = family.match(name)
        if matched and (inside or matched[1].split(".")[0] in OUTER):
            _add_key(checkpoint, matched, key)
            return True
        needless = family.ignored if inside else {**family.ignored, **family.outside}
        reason = next((why for pattern, why in {**needless, **TRAINING}.items() if fnmatchcase(name, pattern)), None)
        if reason:
            checkpoint.ignored[key] = reason
            return True
    return False


def _refuse_objects(checkpoint: MatchedCheckpoint) -> None:
    """Refuse a state dict in which an object of another kind stands in place of a tensor, such as a NumPy array."""
    group = f"{checkpoint.group}." if checkpoint.group else ""
    for path, ancestor in product(checkpoint.file.beside, _ancestors(checkpoint.prefix)):
        matched = path.startswith(group + ancestor) and checkpoint.family.match(path[len(group + ancestor) :])
        if matched and (ancestor == checkpoint.prefix or matched[1].split(".")[0] in OUTER):
            raise CheckpointError(f"{checkpoint.name}: {quote(path)} is no tensor; expected one")


def _ancestors(prefix: str) -> list[str]:
    """A prefix and all shorter ones: ``"model.vit."``, ``"model."``, ``""``."""
    steps = [prefix]
    while steps[-1]:
        parent = steps[-1][:-1]
        end = max(parent.rfind("."), parent.rfind("/")) + 1
        steps.append(parent[:end])
    return steps


def _add_key(checkpoint: MatchedCheckpoint, canonical_key: Key, key: str) -> None:
    if canonical_key in checkpoint.keys:
        raise CheckpointError(
            f"{checkpoint.name}: {quote(checkpoint.keys[canonical_key])} and {quote(key)} are two keys of the "
            "same thing"
        )
    checkpoint.keys[canonical_key] = key


def _check_tensors(checkpoint: MatchedCheckpoint) -> None:
    """Require a weight for each bias, a query for attention pooling, and shapes that a tensor of a model can have."""
    for (layer, canonical_key), key in checkpoint.keys.items():
        stem, _, suffix = canonical_key.rpartition(".")
        # BEiT has separate biases of queries and values, and one weight of queries, keys and values.
        is_of_qkv = stem in ("query", "value") and (layer, "qkv.weight") in checkpoint.keys
        if suffix == "bias" and not is_of_qkv and (layer, f"{stem}.weight") not in checkpoint.keys:
            raise checkpoint.missing_key(f"{stem}.weight", layer)
        if canonical_key.startswith("pool.") and (None, "pool.probe") not in checkpoint.keys:
            raise checkpoint.missing_key("pool.probe")
        shape = checkpoint.file.groups[checkpoint.group][key].shape
        min_ndim = 2 if suffix == "weight" and stem in MAPS else 1
        if len(shape) < min_ndim or (0 in shape and canonical_key not in TOKENS[:3]):
            expected = f"at least {min_ndim} dimension{'s' * (min_ndim > 1)}, not empty"
            raise CheckpointError(f"{checkpoint.name}: {quote(key)} has the shape {shape}; expected {expected}")


def _refusal(file: WeightFile) -> str:
    """Whose layout it looks like, and what opens it: timm, by its own name, or the module that it was saved from."""
    keys = [key for tensors in file.groups.values() for key in tensors]
    for part, remedy in WEIGHT_PARTS.items():
        if computed := next((key for key in keys if part in key), None):
            reason = f"{quote(computed)} is a part of a weight that its module computes when it runs"
            return f"{file.name}: {reason}; expected the state_dict() after {remedy} for each such module"
    found = (row for part, row in OTHERS.items() if any(part in key for key in keys))
    attends = not keys or any("att" in key.lower() for key in keys)
    kind, name = next(found, ("", "vit_base_patch16_224" if attends else None))
    others = f"its keys are {listing(keys) if keys else 'no tensors'}" + ", and none speaks of attention" * (
        not attends
    )
    what = f"the keys of {kind}" if kind else others
    by_timm = f"architecture={name!r} (timm's own name of it, and timm opens it), or " if name else ""
    lines = (
        f"module = …, as it was built; module.load_state_dict(torch.load({file.name!r})); "
        "vitviz.load(module.eval(), preprocessing=…), with what prepares its pictures"
    )
    return f"{file.name}: no layout that vitviz has a network for: {what}; expected {by_timm}three lines: {lines}"
