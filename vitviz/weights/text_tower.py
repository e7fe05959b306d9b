"""Texts as targets: what in an image speaks for a sentence, by the text tower of a CLIP-type checkpoint.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"; SigLIP: Zhai et al. 2023,
"Sigmoid Loss for Language Image Pre-Training". The towers are those of transformers and open_clip: extra ``text``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F

from vitviz.errors.arguments import instance
from vitviz.errors.kinds import CheckpointError, ConfigError, MethodError
from vitviz.errors.messages import describe, quote
from vitviz.models.config import ViTConfig
from vitviz.models.require import require_vit_config
from vitviz.models.targets import Target
from vitviz.weights.hub.download import download_tokenizer
from vitviz.weights.hub.tokenizer_files import expected_vocabulary, has_vocabulary, text_tower_config
from vitviz.weights.model import Model, Origin

# Neither code of a repository nor anything that is not there.
AS_DATA = {"local_files_only": True, "trust_remote_code": False}
# A tower cuts off what it cannot read of a shorter text.
MAX_TEXT_CHARS = 1000


@dataclass(frozen=True, eq=False)
class TextTower:
    """What gives a text its place among the features of images.

    Args:
        features: of a text, ``"feature"``.
        scale, bias: what makes a logit of a cosine: ``scale * cosine + bias``.
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
    """The logit of an image for a text, from the image's features. A function of its own could not be pickled.

    Args:
        features: of the text, ``"feature"``, of length 1.
        scale, bias: as in :class:`TextTower`.
    """

    features: torch.Tensor
    scale: float
    bias: float

    def __call__(self, features: torch.Tensor) -> torch.Tensor:
        found = F.normalize(features.float(), dim=-1) @ self.features.to(features.device)
        return self.scale * found + self.bias


@dataclass(frozen=True)
class TextPrompt:
    """A text that is not a target yet, since its tower is not open."""

    text: str


def reads_text(model: Model) -> bool:
    """Whether a text can be a target of this model: it gives features, and its checkpoint says what reads texts."""
    if model.origin is None or model.network.config.classes:
        return False
    name = _configuration(model.origin)
    return (
        name is not None
        and find_spec(PACKAGES[name]) is not None
        and text_tower_config(model.origin.folder) is not None
    )


def open_text_tower(model: Model) -> TextTower:
    """The text tower of the checkpoint that a model was opened from.

    Nothing in it is ever executed, and nothing is downloaded, except the files of its tokenizer into a snapshot of the
    hub's cache that was made without them.

    Raises:
        CheckpointError: the checkpoint has none, it cannot be opened, its tokenizer is missing, or its features are not
            those of the model.
        ConfigError: the package that opens it is not installed.
    """
    instance("model", model, Model, "vitviz.load()")
    return tower_of(model.name, model.origin, require_vit_config(model.network.config, f"texts for {model.name}"))


def tower_of(called: str, origin: Origin | None, config: ViTConfig) -> TextTower:
    """The same of a model by its name, where it comes from and its configuration.

    Raises:
        CheckpointError, ConfigError: as :func:`open_text_tower`.
    """
    if origin is None or config.classes:
        raise CheckpointError(f"{called}: {_no_tower(config)}")
    name = _configuration(origin)
    if name is None:
        raise CheckpointError(f"{called}: no text tower; expected {' or '.join(TOWERS)} beside its file")
    try:
        tower = TOWERS[name](origin)
    except CheckpointError:
        raise
    # The packages raise whatever goes wrong inside of them.
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES.values():
            raise ConfigError(f"a text as target needs {error.name}: pip install 'vitviz[text]'") from None
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        # The name of a folder in a cache means nothing to a reader.
        message = message.replace(str(origin.folder), called)
        raise CheckpointError(f"{called}: its text tower cannot be opened ({message})") from None
    width = len(tower.features("a"))
    if width != config.features:
        found = f"features of {width} numbers from the text, {config.features} from the image"
        raise CheckpointError(f"{called}: {found}; expected the projections of one checkpoint")
    return tower


def fetch_words(origin: Origin) -> None:
    """Have the files of its tokenizer beside a checkpoint of the hub, so that its tower opens without a network.

    Raises:
        CheckpointError: they cannot be downloaded.
    """
    configuration = text_tower_config(origin.folder) if _configuration(origin) is not None else None
    if configuration is None or origin.repository is None or origin.commit is None or has_vocabulary(origin.folder):
        return
    # open_clip brings a tokenizer of its own, which most of its checkpoints use.
    if _configuration(origin) == "config.json" or configuration["text_cfg"].get("hf_tokenizer_name"):
        download_tokenizer(origin.repository, origin.commit)


def _no_tower(config: ViTConfig) -> str:
    if config.classes:
        return "a model with a classifier gives classes, not the features that a text could be compared with"
    return "no text tower is known for it"


def _configuration(origin: Origin) -> str | None:
    """The name of the file that says what a checkpoint is."""
    return next((name for name in TOWERS if (origin.folder / name).is_file()), None)


def _text_configuration(origin: Origin) -> dict[str, Any]:
    configuration = text_tower_config(origin.folder)
    if configuration is None:
        raise ValueError("its configuration speaks of none")
    return configuration


def _have_words(origin: Origin) -> None:
    """Without a vocabulary, a tokenizer would make the same tokens of every text."""
    if not has_vocabulary(origin.folder):
        if origin.repository is None or origin.commit is None:
            raise ValueError(f"no tokenizer beside its weights; expected {expected_vocabulary()}")
        download_tokenizer(origin.repository, origin.commit)


def _transformers(origin: Origin) -> TextTower:
    from transformers import AutoModel, AutoTokenizer

    _text_configuration(origin)
    _have_words(origin)
    model = AutoModel.from_pretrained(origin.folder, **AS_DATA).eval()
    if not hasattr(model, "get_text_features"):
        raise ValueError(f"{type(model).__name__} has none")
    tokenizer = AutoTokenizer.from_pretrained(origin.folder, **AS_DATA)
    longest = model.config.text_config.max_position_embeddings

    def features(text: str) -> torch.Tensor:
        tokens = tokenizer([text], padding="max_length", max_length=longest, truncation=True, return_tensors="pt")
        with torch.no_grad():
            found = model.get_text_features(**tokens)
        pooled: torch.Tensor = found if isinstance(found, torch.Tensor) else found.pooler_output
        return pooled[0]

    return TextTower(features, *_of_the_logit(model))


def _open_clip(origin: Origin) -> TextTower:
    import open_clip

    configuration, source = _text_configuration(origin), f"local-dir:{origin.folder}"
    text, trunk = configuration["text_cfg"], configuration.get("vision_cfg", {}).get("timm_model_name") or ""
    # A plain name of a trunk is one of timm's architectures; one with a colon says where else it is.
    elsewhere = text.get("hf_model_name") or (trunk if ":" in trunk else None)
    if elsewhere is not None:
        raise ValueError(f"it is built after {quote(elsewhere)}, which would have to be fetched")
    if text.get("hf_tokenizer_name"):
        _have_words(origin)
        # These have the last word over settings of the tokenizer in the configuration.
        tokenizer = open_clip.get_tokenizer(source, **AS_DATA)
    else:
        tokenizer = open_clip.get_tokenizer(source)
    model = open_clip.create_model(source, require_pretrained=True, pretrained_text=False).eval()

    def features(text: str) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = model.encode_text(tokenizer([text]))
        return found[0]

    return TextTower(features, *_of_the_logit(model))


def _of_the_logit(model: Any) -> tuple[float, float]:
    """Scale and bias."""
    bias = getattr(model, "logit_bias", None)
    return float(model.logit_scale.detach().exp()), 0.0 if bias is None else float(bias.detach())


TOWERS: dict[str, Callable[[Origin], TextTower]] = {
    "open_clip_config.json": _open_clip,
    "config.json": _transformers,
}
"""How a text tower is opened, by the file that says what a checkpoint is."""
PACKAGES = {"open_clip_config.json": "open_clip", "config.json": "transformers"}
