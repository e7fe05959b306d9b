"""A network with its name, preprocessing, labels and card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn, get_args

import torch

from vitviz.attention.layout import TokenLayout
from vitviz.errors.arguments import named_arguments, named_fields
from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import several
from vitviz.errors.tables import html_table
from vitviz.images.preprocessing import Preprocessing, why_not_channels
from vitviz.models.devices import usable_device
from vitviz.models.given import NO_NETWORK, GivenNetwork
from vitviz.models.network import Network
from vitviz.models.probability import why_no_probability
from vitviz.models.vit import VisionTransformer
from vitviz.models.watched import WATCHED_MODULE

if TYPE_CHECKING:
    from vitviz.models.targets import Target
    from vitviz.weights.text_tower import TextTower

Labels = Sequence[str] | Mapping[int, str]
EngineName = Literal["own", "module"]
ENGINES: tuple[EngineName, ...] = get_args(EngineName)


@dataclass(frozen=True)
class Origin:
    """Where a checkpoint comes from.

    Args:
        folder: of its file.
        repository, commit: on the Hugging Face hub, if it was downloaded.
    """

    folder: Path
    repository: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Snapshots:
    """States of a model during its training.

    Args:
        files: the checkpoint of each state by its training step, in ascending order.
    """

    files: Mapping[int, Path]

    @property
    def steps(self) -> tuple[int, ...]:
        return tuple(self.files)


@named_fields(ConfigError, "vitviz.load('vitviz-photos')")
@dataclass(frozen=True, eq=False)
class Model(AttributeAdvice):
    """A checkpoint, ready to use.

    Args:
        name: the user's name for it.
        network: in evaluation mode: vitviz's own Vision Transformer (frozen if :func:`vitviz.load` made it), or the
            user's module, watched.
        preprocessing: of its images.
        labels: one per class; empty for a model without a classifier.
        card: facts about it, such as its accuracy, by name.
        origin: of its checkpoint; None for a network that was not opened from one.
        snapshots: of its training; None for a model that was opened without them.
        step: training step of its own snapshot.
        assumptions: facts that its checkpoint does not state and that published ones have: ``"heads 12"``.
        tower: what reads texts, of a network of pictures and texts.

    Raises:
        ConfigError: labels, channels and image size contradict each other.

    >>> len(model.labels), model.engine
    (108, 'own')
    """

    name: str
    network: Network
    preprocessing: Preprocessing
    labels: tuple[str, ...]
    card: dict[str, str] = field(default_factory=dict)
    origin: Origin | None = None
    snapshots: Snapshots | None = None
    step: int | None = None
    assumptions: tuple[str, ...] = ()
    tower: TextTower | None = None

    def __post_init__(self) -> None:
        config, preprocessing = self.network.config, self.preprocessing
        if len(self.labels) != config.classes:
            raise ConfigError(
                f"{self.name}: {len(self.labels)} labels for {config.classes} classes; expected a name for each"
            )
        if reason := why_not_channels(config.channels):
            raise ConfigError(f"{self.name}: {reason}")
        if len(preprocessing.mean) != config.channels:
            raise ConfigError(
                f"{self.name}: {len(preprocessing.mean)} channel means for {config.channels} channels; expected as "
                "many means and deviations, such as those of normalisation='half'"
            )
        # An image size without a layout is refused.
        _ = self.layout

    def __repr__(self) -> str:
        config = self.network.config
        classes = f"{len(self.labels):,} classes" if self.labels else "no classifier"
        size = f"{config.depth} layers × {config.heads} heads, width {config.width}"
        input_size = f"{config.image_width}×{config.image_height} pixels in patches of {config.patch_width}"
        across = "" if config.patch_width == config.patch_height else f"×{config.patch_height}"
        # The preprocessing that nobody stated, without its source.
        assumed = [text.partition(":")[0] for text in self.assumptions if text.startswith("preprocessing ")]
        note = f"; assumed: {assumed[0]}" if assumed else ""
        return f"Model({self.name!r}: {size}, {input_size}{across}, {classes}, on {self.network.device}{note})"

    if not TYPE_CHECKING:

        def __call__(self, *_: Any, **__: Any) -> NoReturn:
            raise TypeError(
                "a vitviz.Model is not called: vitviz.analyze(image, model) runs it on a picture, and "
                "model.network(pixels) on prepared pixels 'batch channel height width'"
            )

    def _repr_html_(self) -> str:
        """The table that a notebook shows."""
        config, network = self.network.config, self.network
        precision = str(network.precision).removeprefix("torch.")
        rows = [
            ("name", self.name),
            ("network", f"{config.depth} layers × {config.heads} heads, width {config.width}"),
            ("weights", f"{self.parameters:,} in {precision} on {network.device}"),
            ("input", f"{config.image_width}×{config.image_height} pixels in patches of {config.patch_width}"),
            ("pictures", self.preprocessing.description),
            ("classes", f"{len(self.labels):,}: {several(self.labels)}" if self.labels else "no classifier"),
            *(("assumed", each) for each in self.assumptions),
        ]
        return html_table(rows)

    @named_arguments(ConfigError)
    def to(self, device: str | torch.device) -> Model:
        """Move the network to a device, such as ``"cuda"``; returns this model.

        Raises:
            ConfigError: there is no such device on this machine.
        """
        self.network.to(usable_device(device))
        return self

    @property
    def layout(self) -> TokenLayout:
        """The order of the tokens of an input of the model's own size."""
        config = self.network.config
        return config.layout(*self.preprocessing.whole_patches(config.patch_height, config.patch_width))

    @property
    def gives_probabilities(self) -> bool:
        """Whether its outputs give probabilities of classes; not those of a regression or features."""
        return why_no_probability(self.network.config) is None

    @property
    def engine(self) -> str:
        """``"own"`` for vitviz's own network, ``"module"`` for the user's module, watched."""
        return "own" if isinstance(self.network, VisionTransformer) else "module"

    @named_arguments(MethodError)
    def text(self, text: str) -> Target:
        """How well a picture fits a text, as the target of a map: ``analysis.relevance(target=model.text("a cat"))``.

        The score is the model's own logit of picture and text, the scaled cosine of the features of both. Radford et
        al. 2021, "Learning Transferable Visual Models From Natural Language Supervision"; SigLIP: Zhai et al. 2023,
        "Sigmoid Loss for Language Image Pre-Training".

        Raises:
            MethodError: the text is empty or too long, the model reads no texts, or its tokenizer is not known.
        """
        if self.tower is None:
            from vitviz.weights.text_tower import NO_TEXTS

            raise MethodError(f"{self.name}: {NO_TEXTS}")
        return self.tower.target(text)

    @property
    def reads_text(self) -> bool:
        """Whether a text can be a target, as of a network of pictures and texts."""
        return self.tower is not None

    @named_arguments(MethodError)
    def own_network(self, purpose: str) -> VisionTransformer:
        """The network, for what reads or writes the weights of vitviz's own.

        Args:
            purpose: start of the message.

        Raises:
            MethodError: the network is a watched module, or there is none.
        """
        if not isinstance(self.network, VisionTransformer):
            is_given = isinstance(self.network, GivenNetwork)
            raise MethodError(f"{purpose}: {NO_NETWORK if is_given else WATCHED_MODULE}")
        return self.network

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def nbytes(self) -> int:
        """Size of its weights in bytes."""
        return sum(parameter.nbytes for parameter in self.network.parameters())
