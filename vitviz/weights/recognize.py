"""Recognises the family of a checkpoint, and matches its keys to canonical keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from vitviz.errors.arguments import word
from vitviz.errors.kinds import CheckpointError, UnknownFamilyError
from vitviz.errors.messages import listing, quote
from vitviz.weights.conversion.canonical import OUTER, Family, MatchedCheckpoint
from vitviz.weights.conversion.heads import find_head
from vitviz.weights.families import FAMILIES
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.overrides import Stated
from vitviz.weights.suggestions import ignore_argument

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
MERGED = "merge_and_unload() of peft's model, since the scales of its adapters are not in the file"
WEIGHT_PARTS = {
    ".base_layer.": MERGED,
    ".lora_": MERGED,
    "weight_mask": "torch.nn.utils.prune.remove(module, 'weight') for each such module",
    ".parametrizations.": "torch.nn.utils.parametrize.remove_parametrizations(module, 'weight') for each such module",
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
    families = _possible_families(file, files, stated) if families is None else families
    candidates = list(_candidates(file, files, stated, families))
    if not candidates:
        raise UnknownFamilyError(_refusal(file))
    checkpoint = min(candidates, key=_rank)
    checkpoint.record("family", checkpoint.family.title, "its keys" if stated.family is None else STATED_BY_USER)
    if checkpoint.place:
        _record_place(checkpoint, {rival.place for rival in candidates} - {checkpoint.place})
    _assign_keys(checkpoint)
    _check_tensors(checkpoint)
    return checkpoint


def _possible_families(file: WeightFile, files: Beside, stated: Stated) -> tuple[Family, ...]:
    """The families that the user's options and the configuration allow."""
    name, by_name = stated.family, {family.name: family for family in FAMILIES}
    if name is None and ("architecture" in stated.facts or files.package == "timm"):
        name = "timm"
    if name is not None:
        return (by_name[word("family", name, by_name, CheckpointError)],)
    if files.package is None:
        return FAMILIES
    model_type = files.config.get("model_type")
    matching = tuple(family for family in FAMILIES if model_type in family.model_types)
    if not matching:
        described = f"model_type {quote(model_type)} in its config.json" if model_type else "open_clip_config.json"
        raise UnknownFamilyError(f"{file.name}: {described}: vitviz has no network of its own for it")
    return matching


def _candidates(
    file: WeightFile, files: Beside, stated: Stated, families: Sequence[Family]
) -> Iterator[MatchedCheckpoint]:
    """Every state dict that has the signature of a family, with the first such family; its keys are not matched yet."""
    for group, tensors in file.groups.items():
        prefixes: set[str] = set()
        for family, signature in ((each, keys) for each in families for keys in each.signatures):
            found = {key.removesuffix(signature[0]) for key in tensors if key.endswith(signature[0])} - prefixes
            for prefix in sorted(prefix for prefix in found if prefix[-1:] in ("", ".", "/")):
                candidate = MatchedCheckpoint(file, group, family, prefix, files.config, stated.facts)
                keys = candidate.encoder.keys()
                has_its_keys = set(signature) <= keys and keys.isdisjoint(family.excluded_keys)
                if has_its_keys and (family.accepts is None or family.accepts(candidate)):
                    prefixes.add(prefix)
                    yield candidate


def _rank(candidate: MatchedCheckpoint) -> tuple[int, int, str]:
    words = set(candidate.place.replace("_", ".").split("."))
    preference = 0 if words & set(PREFERRED) else 2 if words & set(LAST) else 1
    return preference, len(candidate.place), candidate.place


def _record_place(checkpoint: MatchedCheckpoint, rivals: Collection[str]) -> None:
    """Record where the encoder stands, and what leaves out the others."""
    place = " in ".join(quote(name) for name in (checkpoint.prefix.rstrip("./"), checkpoint.group) if name)
    if not rivals:
        checkpoint.record("encoder", place, "where its keys stand")
        return
    others = [f"{rival}." for rival in sorted(rivals)]
    names = [f"{checkpoint.place}.{key}" for key in checkpoint.encoder]
    own = [name for name in names if not name.startswith(tuple(others))]
    # A pattern for an encoder at the top would leave out all.
    left_out = f"; {ignore_argument(others, own)} leaves the others out" * ("" not in rivals)
    checkpoint.record("encoder", place, f"one of several, beside {listing(sorted(rivals))}{left_out}", assumed=True)


def _assign_keys(checkpoint: MatchedCheckpoint) -> None:
    """Match each key to its canonical key, or ignore it with a reason.

    Raises:
        UnknownFamilyError: the family has no such key.
        CheckpointError: two keys mean the same, or something else than a tensor stands in the place of one.
    """
    ancestors, surplus = _ancestors(checkpoint.prefix), []
    for key in checkpoint.tensors:
        if key in checkpoint.ignored:
            continue
        if canonical_key := _canonical_key(checkpoint, key, ancestors):
            other = checkpoint.keys.setdefault(canonical_key, key)
            if other != key:
                raise CheckpointError(
                    f"{checkpoint.name}: {quote(other)} and {quote(key)} are two keys of the same thing"
                )
        elif reason := _why_needless(checkpoint, key, ancestors):
            checkpoint.ignored[key] = reason
        else:
            surplus.append(key)
    surplus = find_head(checkpoint, surplus, ancestors)
    if surplus:
        _refuse_weight_parts(checkpoint.name, surplus)
        raise UnknownFamilyError(
            f"{checkpoint.name}: keys that a checkpoint of this kind ({checkpoint.family.title}) does not have: "
            f"surplus {listing(surplus)}; if it is another network, expected architecture=… (timm's name of it), or "
            f"vitviz.load(module); {ignore_argument(surplus, checkpoint.keys.values())} leaves them out, where you "
            "know that they do not matter"
        )
    group = f"{checkpoint.group}." if checkpoint.group else ""
    for path in checkpoint.file.beside:
        # Such as an array of NumPy.
        if path.startswith(group) and _canonical_key(checkpoint, path.removeprefix(group), ancestors):
            raise CheckpointError(f"{checkpoint.name}: {quote(path)} is no tensor; expected one")


def _canonical_key(checkpoint: MatchedCheckpoint, key: str, ancestors: Sequence[str]) -> str | None:
    """The canonical key of a key with the encoder's prefix, or of one of a head with a shorter one."""
    for ancestor in filter(key.startswith, ancestors):
        found = checkpoint.family.match(key.removeprefix(ancestor))
        if found and (ancestor == checkpoint.prefix or found.startswith(OUTER)):
            return found
    return None


def _why_needless(checkpoint: MatchedCheckpoint, key: str, ancestors: Sequence[str]) -> str | None:
    """Why a key is not needed; None if nothing says so."""
    family = checkpoint.family
    for ancestor in filter(key.startswith, ancestors):
        patterns = {**family.ignored, **({} if ancestor == checkpoint.prefix else family.outside), **TRAINING}
        for pattern, reason in patterns.items():
            if fnmatchcase(key.removeprefix(ancestor), pattern):
                return reason
    return None


def _ancestors(prefix: str) -> list[str]:
    """A prefix and all shorter ones: ``"model.vit."``, ``"model."``, ``""``."""
    ends = [match.end() for match in re.finditer(r"[./]", prefix)]
    return [*(prefix[:end] for end in reversed(ends)), ""]


def _check_tensors(checkpoint: MatchedCheckpoint) -> None:
    """Require a weight for each bias, and shapes that a tensor of a model can have."""
    for canonical_key, key in checkpoint.keys.items():
        stem, _, suffix = canonical_key.rpartition(".")
        # timm's EVA has biases of queries and values beside one weight of queries, keys and values.
        weights = {f"{stem}.weight", f"{stem.rpartition('.')[0]}.weight"}
        if suffix == "bias" and checkpoint.keys.keys().isdisjoint(weights):
            raise checkpoint.missing_key(f"{stem}.weight")
        shape = tuple(checkpoint.tensors[key].shape)
        min_ndim = 2 if suffix == "weight" and "norm" not in stem else 1
        if len(shape) < min_ndim or (0 in shape and not canonical_key.startswith("prefix_tokens.")):
            raise CheckpointError(
                f"{checkpoint.name}: {quote(key)} has the shape {shape}; expected at least {min_ndim} "
                f"dimension{'s' * (min_ndim > 1)}, not empty"
            )


def _refuse_weight_parts(name: str, keys: Sequence[str]) -> None:
    """Refuse keys from which weights are computed."""
    for part, remedy in WEIGHT_PARTS.items():
        if computed := next((key for key in keys if part in key), None):
            raise UnknownFamilyError(
                f"{name}: {quote(computed)} is a part of a weight that its module computes when it runs; expected the "
                f"state_dict() after {remedy}"
            )


def _refusal(file: WeightFile) -> str:
    """Whose layout it looks like, and what opens it: timm, by its own name, or the module that it was saved from."""
    keys = [key for tensors in file.groups.values() for key in tensors]
    _refuse_weight_parts(file.name, keys)
    found = (row for part, row in OTHERS.items() if any(part in key for key in keys))
    attends = not keys or any(part in key.lower() for key in keys for part in ("att", "qkv"))
    kind, name = next(found, ("", "vit_base_patch16_224" if attends else None))
    others = f"its keys are {listing(keys) if keys else 'no tensors'}" + ", and none speaks of attention" * (
        not attends
    )
    for family, signature in ((each, keys) for each in FAMILIES for keys in each.signatures):
        lacking = [key for key in signature if not any(each.endswith(key) for each in keys)]
        if len(lacking) == 1 and len(signature) > 2:
            others += f", and of the layout {family.name!r} there is no {quote(lacking[0])}"
    what = f"the keys of {kind}" if kind else others
    by_timm = f"architecture={name!r}, if that is what timm calls it, or " if name else ""
    reader = "safetensors.torch.load_file" if file.path.suffix == ".safetensors" else "torch.load"
    lines = (
        f"module = …, as it was built; module.load_state_dict({reader}({file.path.name!r})); "
        "vitviz.load(module.eval(), preprocessing=…), with what prepares its pictures"
    )
    return f"{file.name}: no layout that vitviz has a network for: {what}; expected {by_timm}three lines: {lines}"
