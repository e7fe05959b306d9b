"""Texts as targets: the text tower of a CLIP-type checkpoint scores how well an image fits a sentence.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"; SigLIP: Zhai et al. 2023,
"Sigmoid Loss for Language Image Pre-Training". The towers are those of transformers and open_clip: extra ``text``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from vitviz.errors.extras import needs
from vitviz.errors.kinds import CheckpointError, ConfigError, MethodError
from vitviz.errors.messages import describe, quote
from vitviz.models.config import ViTConfig
from vitviz.models.targets import MAX_TEXT_CHARS, Target
from vitviz.weights.metadata.sidecars import read_json

if TYPE_CHECKING:
    from vitviz.weights.model import Model, Origin

NO_TOKENIZER = (
    "the texts of a module need its tokenizer; expected vitviz.load(module, preprocessing=processor), whose tokenizer "
    "it is, or vitviz.load(module, tokenizer=tokenizer)"
)
# Each group of files is the complete vocabulary of a tokenizer.
VOCABULARIES = (("tokenizer.json",), ("vocab.json", "merges.txt"), ("spiece.model",), ("vocab.txt",))
# Read local files only, and run no code of a repository.
LOCAL_ONLY = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True, eq=False)
class TextTower:
    """A text encoder whose features are compared with those of images.

    Args:
        features: of a text, ``"feature"``.
        scale, bias: of the logit, ``scale * cosine + bias``.
    """

    features: Callable[[str], torch.Tensor]
    scale: float
    bias: float

    def target(self, text: str) -> Target:
        """The logit of an image for this text: the scaled cosine between the features of both.

        Raises:
            MethodError: the text is empty or too long.
        """
        if not isinstance(text, str):
            raise MethodError(f"text: {describe(text)} found; expected one text, such as 'a cat'")
        text = " ".join(text.split())
        if not 0 < len(text) <= MAX_TEXT_CHARS:
            raise MethodError(f"text of {len(text):,} characters: expected 1 to {MAX_TEXT_CHARS:,}")
        with torch.inference_mode(False), torch.no_grad():
            text_features = F.normalize(self.features(text).float(), dim=-1)

        return Target(f"the text “{text}”", TextScore(text_features, self.scale, self.bias))


@dataclass(frozen=True, eq=False)
class TextScore:
    """The logit of an image for a text, from the image's features. A class, since closures cannot be pickled.

    Args:
        features: of the text, ``"feature"``, of length 1.
        scale, bias: as in :class:`TextTower`.
    """

    features: torch.Tensor
    scale: float
    bias: float

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        cosine = F.normalize(features.float(), dim=-1) @ self.features.to(features.device)
        return self.scale * cosine + self.bias


def reads_text(model: Model) -> bool:
    """Whether a text can be a target: the model returns features, and its checkpoint describes a text tower."""
    if model.tower is not None:
        return True
    if model.origin is None or model.engine == "module" or model.network.config.classes:
        return False
    name = _configuration_name(model.origin)
    return name is not None and find_spec(PACKAGES[name]) is not None and _text_tower_config(model.origin) is not None


def open_text_tower(model: Model) -> TextTower:
    """The text tower of the checkpoint that a model was opened from.

    Nothing in it is ever executed, and nothing is downloaded.

    Raises:
        CheckpointError: the checkpoint has no text tower, it cannot be opened, its tokenizer is missing, or its
            features are not those of the model.
        ConfigError: the package that opens it is not installed.
    """
    if model.tower is not None:
        return model.tower
    model_name, origin, config = model.name, model.origin, model.own_network(f"texts for {model.name}").config
    if origin is None or config.classes:
        raise CheckpointError(f"{model_name}: {_why_no_tower(config)}")
    name = _configuration_name(origin)
    if name is None:
        raise CheckpointError(f"{model_name}: no text tower; expected {' or '.join(TOWERS)} beside its file")
    try:
        tower = TOWERS[name](origin)
    except CheckpointError:
        raise
    # The packages may raise anything.
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES.values():
            raise ConfigError(needs("a text as target", str(error.name))) from None
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        # The path of a folder in the cache means nothing to a user.
        message = message.replace(str(origin.folder), model_name)
        raise CheckpointError(f"{model_name}: its text tower cannot be opened ({message})") from None
    width = len(tower.features("a"))
    if width != config.features:
        widths = f"features of {width} numbers from the text, {config.features} from the image"
        raise CheckpointError(f"{model_name}: {widths}; expected the projections of one checkpoint")
    return tower


def _why_no_tower(config: ViTConfig) -> str:
    if config.classes:
        return "a model with a classifier gives classes, not the features that a text could be compared with"
    return "no text tower is known for it"


def _configuration_name(origin: Origin) -> str | None:
    """The name of the configuration file of a checkpoint; None without one."""
    return next((name for name in TOWERS if (origin.folder / name).is_file()), None)


def _text_tower_config(origin: Origin) -> dict[str, Any] | None:
    """The configuration of a checkpoint if it describes a text tower; None otherwise."""
    name = _configuration_name(origin)
    try:
        configuration: Any = {} if name is None else read_json(origin.folder / name)
    except CheckpointError:
        return None
    configuration = configuration.get("model_cfg", configuration)
    has_text = isinstance(configuration, dict) and any(
        isinstance(configuration.get(name), dict) for name in ("text_cfg", "text_config")
    )
    return configuration if has_text else None


def _text_configuration(origin: Origin) -> dict[str, Any]:
    configuration = _text_tower_config(origin)
    if configuration is None:
        raise ValueError("its configuration speaks of none")
    return configuration


def _check_vocabulary(origin: Origin) -> None:
    """Refuse a missing vocabulary: without it, a tokenizer would map every text to the same tokens."""
    if not any(all((origin.folder / name).is_file() for name in group) for group in VOCABULARIES):
        expected = " or ".join(" with ".join(group) for group in VOCABULARIES)
        raise ValueError(f"no tokenizer beside its weights; expected {expected}")


def _open_transformers(origin: Origin) -> TextTower:
    from transformers import AutoModel, AutoTokenizer

    _text_configuration(origin)
    _check_vocabulary(origin)
    model = AutoModel.from_pretrained(origin.folder, **LOCAL_ONLY).eval()
    if not hasattr(model, "get_text_features"):
        raise ValueError(f"{type(model).__name__} has none")
    tokenizer = AutoTokenizer.from_pretrained(origin.folder, **LOCAL_ONLY)
    return tower_of(model, tokenizer)


def _open_open_clip(origin: Origin) -> TextTower:
    import open_clip

    configuration, source = _text_configuration(origin), f"local-dir:{origin.folder}"
    text, trunk = configuration["text_cfg"], configuration.get("vision_cfg", {}).get("timm_model_name") or ""
    # A plain name of a trunk is an architecture of timm; one with a colon refers to another source.
    external = text.get("hf_model_name") or (trunk if ":" in trunk else None)
    if external is not None:
        raise ValueError(f"it is built after {quote(external)}, which would have to be fetched")
    if text.get("hf_tokenizer_name"):
        _check_vocabulary(origin)
        # These override settings of the tokenizer in the configuration.
        tokenizer = open_clip.get_tokenizer(source, **LOCAL_ONLY)
    else:
        tokenizer = open_clip.get_tokenizer(source)
    return tower_of(open_clip.create_model(source, require_pretrained=True, pretrained_text=False).eval(), tokenizer)


def tower_of(model: Any, tokenizer: Any) -> TextTower:
    """The texts of a network of pictures and texts, of transformers or of open_clip.

    Args:
        model: in evaluation mode, with ``get_text_features`` or ``encode_text``.
        tokenizer: of its package; None if it is not known, so that it is asked for when a text comes.
    """
    bias = getattr(model, "logit_bias", None)
    scale = float(model.logit_scale.detach().exp())
    return TextTower(partial(_features, model, tokenizer), scale, 0.0 if bias is None else float(bias.detach()))


def clip_tokenizer(length: int) -> Callable[[list[str]], torch.Tensor]:
    """open_clip's own tokenizer, for texts of this many tokens."""
    import open_clip

    return partial(open_clip.tokenize, context_length=length)


def _features(model: Any, tokenizer: Any, text: str) -> torch.Tensor:
    """The features of a text, ``"feature"``."""
    if tokenizer is None:
        raise MethodError(NO_TOKENIZER)
    device, encode = model.logit_scale.device, getattr(model, "get_text_features", None)
    with torch.no_grad():
        if encode is None:
            encoded: torch.Tensor = model.encode_text(tokenizer([text]).to(device))
            return encoded[0]
        most = model.config.text_config.max_position_embeddings
        tokens = tokenizer([text], padding="max_length", max_length=most, truncation=True, return_tensors="pt")
        output = encode(**tokens.to(device))
    pooled: torch.Tensor = output if isinstance(output, torch.Tensor) else output.pooler_output
    return pooled[0]


TOWERS: dict[str, Callable[[Origin], TextTower]] = {
    "open_clip_config.json": _open_open_clip,
    "config.json": _open_transformers,
}
"""Functions that open a text tower, by the name of the configuration file."""
PACKAGES = {"open_clip_config.json": "open_clip", "config.json": "transformers"}
