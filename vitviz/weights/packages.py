"""Models that timm, transformers and open_clip build, from a folder or by name.

The packages read configurations, weights and vocabularies themselves; code of a repository is never run.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import nn

from vitviz.errors.extras import needs
from vitviz.errors.kinds import CheckpointError, VitvizError
from vitviz.errors.messages import did_you_mean, listing, quote
from vitviz.models.watched.outputs import MAX_REASON_CHARS
from vitviz.weights.families.timm import OWN_PLACES
from vitviz.weights.formats.tensors import WeightFile
from vitviz.weights.metadata.beside import Beside
from vitviz.weights.metadata.stated_preprocessing import OF_TIMM
from vitviz.weights.modules.unwrap import find_vision_part
from vitviz.weights.suggestions import ignore_argument

LOCAL = {"local_files_only": True, "trust_remote_code": False}
# torchvision's operators load beside the torch alone for which they were built.
MISFIT = (
    "; where torchvision was built for another torch, both from one index of packages fit: "
    "pip uninstall torch torchvision, then pip install torch torchvision"
)


@dataclass(frozen=True, eq=False)
class Built:
    """A model that a package built.

    Args:
        module: takes pixels: the model, or its part for pictures.
        title: the model's class and package.
        preprocessing: the package's own, of a picture; None where the module states it.
        tokenizer: of a model of pictures and texts.
    """

    module: nn.Module
    title: str
    preprocessing: Any = None
    tokenizer: Any = None


def build_from_folder(files: Beside, folder: Path, name: str | None = None, ignore: Sequence[str] = ()) -> Built:
    """The model of a folder, by the package that its files name.

    Args:
        files: in the folder.
        folder: with the files and the weights.
        name: in messages; by default that of the folder.
        ignore: patterns of keys that the model of transformers need not have.

    Raises:
        CheckpointError: no file names a package, it is not installed, or it cannot open the folder.
    """
    package, name = files.package, name or folder.name
    if package is None:
        raise CheckpointError(f"{name}: no file in it names a package that could open it")
    with building(package, f"opening {name}"):
        if package == "timm":
            built, stated = _of_timm(f"local-dir:{folder}"), files.config.get("pretrained_cfg") or files.config
            module: Any = built.module
            # timm fills in its defaults for all models, which are no word of this one's.
            module.pretrained_cfg = {
                name: value for name, value in module.pretrained_cfg.items() if name in stated or name not in OF_TIMM
            }
            return built
        if package == "open_clip":
            return _of_open_clip(f"local-dir:{folder}")
        return _of_transformers(files, folder, name, ignore)


def build_by_name(package: str, name: str, file: WeightFile | None = None) -> Built:
    """The model that timm or open_clip has a name for, with its published weights, or with those of a file.

    Args:
        package: ``"timm"`` or ``"open_clip"``.
        name: timm's, or open_clip's with the name of its weights after a slash: ``"ViT-B-32/laion2b_s34b_b79k"``.
        file: of weights of timm's model, in any layout that timm reads, with any number of classes.

    Raises:
        CheckpointError: the package is not installed, has no such model, or cannot read the file.
    """
    with building(package, f"opening {name}"):
        if package == "open_clip":
            return _of_open_clip(*name.split("/", 1))
        return _of_timm(name, file)


@contextmanager
def building(package: str, purpose: str) -> Iterator[None]:
    """Import a package, keep the state of random numbers, and make its errors one sentence.

    Raises:
        CheckpointError: it is not installed, does not fit other packages, or raises an error.
    """
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            warnings.simplefilter("ignore")
            importlib.import_module(package)
            yield
    except VitvizError:
        raise
    # A package may raise anything, as soon as it is imported.
    except Exception as error:
        if isinstance(error, ImportError) and error.name == package:
            raise CheckpointError(needs(purpose, package)) from None
        # transformers imports its parts late, and hides why one of them fails.
        cause = error.__cause__ or error if isinstance(error, ImportError) else error
        first, *more = str(cause).strip().splitlines() or [""]
        message = f"{first} {more[0].strip()}" if more and first.endswith(":") else first
        reason = f"{shorten(message, MAX_REASON_CHARS, placeholder=' …')}{MISFIT * ('torchvision' in message)}"
        raise CheckpointError(f"{package}: {purpose}: {type(cause).__name__}: {reason}") from None


def _of_timm(name: str, file: WeightFile | None = None) -> Built:
    import timm

    if not name.startswith(("local-dir:", "hf-hub:", "hf_hub:")) and not timm.is_model(name):
        similar = did_you_mean(name.partition(".")[0], timm.list_models())
        raise CheckpointError(f"timm:{name}: timm {timm.__version__} has no such model{similar}")
    options: dict[str, Any] = {}
    if file is not None:
        cfg = timm.get_pretrained_cfg(name)
        count = _classes(cfg, file)
        classes = {"num_classes": count} if count else {}
        options = {**classes, "pretrained_cfg_overlay": {**_weights(cfg, file), **classes}}
    model: Any = timm.create_model(name, pretrained=True, **options)
    stated = model.pretrained_cfg.get("num_classes")
    # timm leaves a classifier of another number of classes random.
    if getattr(model, "num_classes", stated) != stated:
        raise CheckpointError(f"{name}: {model.num_classes} classes in model_args, {stated} in the rest of config.json")
    patch = model.state_dict().get("patch_embed.proj.weight")
    sizes = () if file is None else {each.numel() for group in file.groups.values() for each in group.values()}
    # timm resizes the patch embedding of other patches.
    if sizes and patch is not None and patch.numel() not in sizes:
        raise CheckpointError(f"{name}: patches of {tuple(patch.shape[2:])} pixels, and those of the file are others")
    return Built(_frozen(model), f"{type(model).__name__} of timm {timm.__version__}")


def _weights(cfg: Any, file: WeightFile) -> dict[str, Any]:
    """What timm reads: the file, or its tensors without a prefix of their keys, such as that of Lightning."""
    end = f".{getattr(cfg, 'first_conv', None)}.weight"
    found = [
        (tensors, key.removesuffix(end)) for tensors in file.groups.values() for key in tensors if key.endswith(end)
    ]
    # Under another prefix are keys of other code, which may mean something else.
    if len(found) != 1 or not OWN_PLACES.issuperset(found[0][1].split(".")):
        return {"file": str(file.path)}
    [(tensors, prefix)] = found
    return {"state_dict": {key.removeprefix(f"{prefix}."): tensor for key, tensor in tensors.items()}}


def _classes(cfg: Any, file: WeightFile) -> int | None:
    """The number of classes of the classifier in a file of timm's; None if it has no key of timm's, or several."""
    end, groups = f".{getattr(cfg, 'classifier', None)}.weight", file.groups.values()
    counts = {len(tensor) for group in groups for key, tensor in group.items() if f".{key}".endswith(end)}
    return counts.pop() if len(counts) == 1 else None


def _of_open_clip(name: str, weights: str | None = None) -> Built:
    import open_clip

    if not name.startswith("local-dir:") and weights is None:
        known = open_clip.list_pretrained_tags_by_model(name)
        such = f", such as open_clip:{name}/{known[0]}; there are {listing(known)}" if known else ""
        raise CheckpointError(f"open_clip:{name}: expected the name of its weights, too{such}")
    loading = {"pretrained": weights, "precision": "fp32", "pretrained_hf": False, "require_pretrained": True}
    model: Any = open_clip.create_model(name, **loading)
    text = (open_clip.get_model_config(name) or {}).get("text_cfg") or {}
    tokenizer, is_of_transformers = None, bool(text.get("hf_tokenizer_name"))
    folder = Path(name.removeprefix("local-dir:")) if name.startswith("local-dir:") else None
    if folder is None or not is_of_transformers or _has_vocabulary(folder):
        # A configuration may ask to run code of a repository.
        options = {"trust_remote_code": False} if is_of_transformers else {}
        with suppress(Exception):
            # Pictures need none; a text asks for it.
            tokenizer = open_clip.get_tokenizer(name, **options)
    return Built(_frozen(model), f"{type(model).__name__} of open_clip {open_clip.__version__}", None, tokenizer)


def _of_transformers(files: Beside, folder: Path, name: str, ignore: Sequence[str]) -> Built:
    import transformers

    cls = _model_class(files.config, name)
    options = {**LOCAL, "weights_only": True, "dtype": torch.float32}
    model, report = cls.from_pretrained(folder, **options, output_loading_info=True)
    for owner in {key.partition("pooler.")[0].rstrip(".") for key in report["missing_keys"] if "pooler." in key}:
        # A pooler without weights in the file would be random.
        model.get_submodule(owner).pooler = None
    if missing := sorted(key for key in report["missing_keys"] if "pooler." not in key):
        raise CheckpointError(f"{name}: transformers finds no {listing(missing)} for its {cls.__name__}")
    unexpected = sorted(report["unexpected_keys"])
    if surplus := [key for key in unexpected if not any(fnmatchcase(key, pattern) for pattern in ignore)]:
        raise CheckpointError(
            f"{name}: keys that transformers' {cls.__name__} does not have: {listing(surplus)}; "
            f"{ignore_argument(surplus, model.state_dict())} leaves them out, where you know that they do not matter"
        )
    if getattr(model.config, "mask_ratio", None):
        model.config.mask_ratio = 0.0
    title = f"{type(model).__name__} of transformers {transformers.__version__}"
    preprocessing = tokenizer = None
    if files.preprocessor:
        preprocessing = transformers.AutoImageProcessor.from_pretrained(folder, **LOCAL)
    if hasattr(model, "timm_model"):
        # What transformers wraps states its preprocessing itself.
        return Built(_frozen(_wrapped(model)), title)
    # FLAVA's features are one for each token, of pictures and of texts.
    if hasattr(model, "get_text_features") and hasattr(model, "logit_scale") and hasattr(model.config, "vision_config"):
        if _has_vocabulary(folder):
            with suppress(Exception):
                # Pictures need none; a text asks for it.
                tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **LOCAL)
        return Built(_frozen(model), title, preprocessing, tokenizer)
    return Built(_frozen(tower_of(model)), title, preprocessing)


def _has_vocabulary(folder: Path) -> bool:
    """Whether a folder has the files of a tokenizer, which transformers makes with an empty vocabulary without them."""
    names = {file.name for file in folder.iterdir()}
    return not names.isdisjoint(("tokenizer.json", "vocab.txt", "spiece.model")) or names >= {
        "vocab.json",
        "merges.txt",
    }


def _frozen(model: nn.Module) -> nn.Module:
    return model.eval().float().requires_grad_(False)


def tower_of(model: Any) -> nn.Module:
    """The part for pictures, without heads for pretraining and without language models."""
    name, part = type(model).__name__, find_vision_part(model)
    if name.endswith(("ForImageClassification", "WithTeacher")):
        return model
    if part is not None:
        return model.get_submodule(part)
    # Models for pretraining have heads that reconstruct pixels; their encoder is the tower.
    return model.base_model if "For" in name else model


def _wrapped(model: Any) -> Any:
    """The model of timm in transformers' wrapper, with the entries of its configuration."""
    inner, config = model.timm_model, model.config
    names = getattr(config, "label_names", None)
    # As its image processor does, leave entries that the configuration omits to timm's defaults for all models.
    cfg = getattr(config, "pretrained_cfg", None) or inner.pretrained_cfg
    inner.pretrained_cfg = {**cfg, "label_names": names} if names else cfg
    return inner


def _model_class(config: Mapping[str, Any], title: str) -> Any:
    """The class of transformers in ``config.json``; ``auto_map``, which names code of the folder's own, is not read."""
    import transformers

    name, model_type = next(iter(config.get("architectures") or ()), None), config.get("model_type")
    if name is None:
        return transformers.AutoModel
    cls: Any = getattr(transformers, str(name), None)
    if cls is None and model_type in transformers.CONFIG_MAPPING:
        module = transformers.CONFIG_MAPPING[model_type].__module__.replace(".configuration_", ".modeling_")
        cls = getattr(importlib.import_module(module), str(name), None)
    is_model = isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)
    if not is_model or getattr(cls.config_class, "model_type", None) != model_type:
        raise CheckpointError(
            f"{title}: architectures = {quote(name)} in its config.json: transformers "
            f"{transformers.__version__} has no such model of type {quote(model_type)}"
        )
    return cls
