"""Texts as targets: what in an image speaks for a sentence, by the text tower of a CLIP-type checkpoint.

Radford et al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"; SigLIP: Zhai et al. 2023,
"Sigmoid Loss for Language Image Pre-Training". The towers are those of transformers and open_clip: extra ``text``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from vitviz.errors import CheckpointError, ConfigError, MethodError
from vitviz.targets import Target
from vitviz.weights.model import Model, Origin

# Of a text, in characters; what a tower cannot read of it, it cuts off.
LONGEST = 1000


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
        text = " ".join(text.split())
        if not 0 < len(text) <= LONGEST:
            raise MethodError(f"text of {len(text):,} characters: expected 1 to {LONGEST:,}")
        with torch.inference_mode(False), torch.no_grad():
            wanted = F.normalize(self.features(text).float(), dim=-1)

        def score(features: torch.Tensor) -> torch.Tensor:
            found = F.normalize(features.float(), dim=-1) @ wanted.to(features.device)
            return self.scale * found + self.bias

        return Target(f"the text “{text}”", score)


@dataclass(frozen=True)
class Words:
    """A text that is not a target yet, since its tower is not open."""

    text: str


def reads_text(model: Model) -> bool:
    """Whether a text can be a target of this model: it gives features, and its checkpoint says what reads texts."""
    if model.origin is None or model.network.config.classes:
        return False
    name = next((name for name in TOWERS if (model.origin.folder / name).is_file()), None)
    return name is not None and find_spec(PACKAGES[name]) is not None and _has_text(model.origin.folder / name)


def _has_text(config: Path) -> bool:
    """Whether a configuration speaks of a text tower."""
    try:
        said = json.loads(config.read_text())
        said = said.get("model_cfg", said)
        return isinstance(said, dict) and ("text_cfg" in said or "text_config" in said)
    except (OSError, ValueError, AttributeError):
        return False


def open_text_tower(model: Model) -> TextTower:
    """The text tower of the checkpoint that a model was opened from.

    Raises:
        CheckpointError: the checkpoint has none, it cannot be opened, or its features are not those of the model.
        ConfigError: the package that opens it is not installed.
    """
    origin = model.origin
    if origin is None or model.network.config.classes:
        raise CheckpointError(f"{model.name}: {_no_tower(model)}")
    name = next((name for name in TOWERS if (origin.folder / name).is_file()), None)
    if name is None:
        raise CheckpointError(f"{model.name}: no text tower; expected {' or '.join(TOWERS)} beside its file")
    try:
        tower = TOWERS[name](origin)
    # The packages raise whatever goes wrong inside of them.
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in PACKAGES.values():
            raise ConfigError(f"a text as target needs {error.name}: pip install 'vitviz[text]'") from None
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise CheckpointError(f"{model.name}: its text tower cannot be opened ({said})") from None
    width = len(tower.features("a"))
    if width != model.network.config.features:
        found = f"features of {width} numbers from the text, {model.network.config.features} from the image"
        raise CheckpointError(f"{model.name}: {found}; expected the projections of one checkpoint")
    return tower


def _no_tower(model: Model) -> str:
    if model.network.config.classes:
        return "a model with a classifier gives classes, not the features that a text could be compared with"
    return "no text tower is known for it"


def _transformers(origin: Origin) -> TextTower:
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(origin.folder, local_files_only=True).eval()
    if not hasattr(model, "get_text_features"):
        raise ValueError(f"{type(model).__name__} has none")
    # vitviz brings the weights of a repository, and no words.
    words = origin.repository or origin.folder
    tokenizer = AutoTokenizer.from_pretrained(words, revision=origin.revision or "main")
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

    source = f"local-dir:{origin.folder}"
    model = open_clip.create_model(source).eval()
    tokenizer = open_clip.get_tokenizer(source)

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
