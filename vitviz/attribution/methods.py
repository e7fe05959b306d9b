"""The table of methods, which defines the app's controls, the command and the README's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, cast

from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attention.token_map import TokenMap
from vitviz.attribution.attention import DIRECTIONS, attention
from vitviz.attribution.batched_rollout import rollouts
from vitviz.attribution.exclusion import EXCLUSIONS
from vitviz.attribution.flow import attention_flow
from vitviz.attribution.grad_cam import grad_cam
from vitviz.attribution.gradient_rollout import gradient_rollout
from vitviz.attribution.legrad import legrad
from vitviz.attribution.mass import attention_mass
from vitviz.attribution.parameters import (
    Choice,
    ClassTarget,
    HeadNumber,
    LayerNumber,
    Number,
    Parameter,
    Switch,
    Token,
)
from vitviz.attribution.pixels import CAPTUM, integrated_gradients, occlusion
from vitviz.attribution.pooling_attention import NO_ATTENTION_POOLING, pooling_attention
from vitviz.attribution.propagation import REFERENCES
from vitviz.attribution.relevance import relevance
from vitviz.attribution.rollout import rollout
from vitviz.attribution.value_attention import value_attention
from vitviz.caching import cached_property
from vitviz.errors.arguments import checked_parameters, word
from vitviz.errors.extras import needs
from vitviz.errors.messages import choices, did_you_mean, nearest
from vitviz.errors.tables import html_table, text_table
from vitviz.models.given import NO_NETWORK, GivenConfig
from vitviz.models.network import NetworkConfig
from vitviz.models.targets import NO_CLASSIFIER
from vitviz.models.watched import NO_STREAM

Requirement = Literal["trace", "gradients", "inputs"]
Computer = Literal["page", "rollouts", "quick", "run"]
MethodName = Literal[
    "attention",
    "pooling_attention",
    "attention_mass",
    "value_attention",
    "rollout",
    "attention_flow",
    "gradient_rollout",
    "relevance",
    "legrad",
    "grad_cam",
    "integrated_gradients",
    "occlusion",
]


@dataclass(frozen=True)
class Method:
    """A method that computes maps.

    Args:
        name: name in :meth:`vitviz.Analysis.map` and, with hyphens, in the command.
        title: label in menus.
        requires: its input: an :class:`vitviz.AttentionTrace`, a :class:`vitviz.models.gradients.GradientTrace` or a
            :class:`vitviz.attribution.AttributionInput`.
        compute: function of the input and the parameters, except the target, that returns a map. A slow one also takes
            ``report``, which receives a :class:`vitviz.progress.Progress` now and then.
        parameters: in the order of the controls.
        citation: its source.
        interpretation: one line on what the map shows, and what it does not.
        package: package that computes it, installed by the extra of the same name; None for vitviz itself.
        pooling: pooling that a model must have, a name in :data:`vitviz.models.pooling.POOLINGS`, and the reason; None
            for any pooling.
        begins_with_identity: whether the map of a patch includes an identity term, which usually gives that patch the
            highest value; the page leaves it out of the colour range.
        reads_layers: whether it reads the tokens between the layers, which not every watched module allows.
        reads_values: whether it reads the norms of values, which attention of one's own has not.
        compute_batch: computes the maps for a list of inputs faster than one by one; None if there is no faster way.
        computed_by: who computes its maps for the app's page: the ``"page"`` itself, from files of the analysis; the
            server in one ``"quick"`` answer; or the server in a ``"run"``, with progress.
        page_parameters: those that may be set where the page computes; with any other, a quick answer does.
    """

    name: MethodName
    title: str
    requires: Requirement
    compute: Callable[..., TokenMap]
    parameters: tuple[Parameter, ...]
    citation: str
    interpretation: str
    pooling: tuple[str, str] | None = None
    package: str | None = None
    begins_with_identity: bool = False
    reads_layers: bool = False
    reads_values: bool = False
    compute_batch: Callable[..., list[TokenMap]] | None = None
    computed_by: Computer = "run"
    page_parameters: tuple[str, ...] = ()

    @property
    def class_specific(self) -> bool:
        """Whether its maps are about a class."""
        return self.requires != "trace"

    @cached_property
    def reports(self) -> bool:
        """Whether ``compute`` takes ``report``, so that it reports progress and an exception can end it."""
        return "report" in signature(self.compute).parameters

    def refusal(self, config: NetworkConfig, *, has_target: bool = False) -> str | None:
        """The reason why the method does not apply to a model of this configuration, or None if it does.

        Args:
            config: configuration of the model.
            has_target: whether there is a target that needs no classifier, such as a text.
        """
        if (self.class_specific or self.reads_values) and isinstance(config, GivenConfig):
            return NO_NETWORK
        if self.reads_layers and not config.has_stream:
            return NO_STREAM
        if self.package is not None and find_spec(self.package) is None:
            return needs("this", self.package)
        if self.pooling is not None and config.pooling != self.pooling[0]:
            return self.pooling[1]
        return NO_CLASSIFIER if self.class_specific and not (config.classes or has_target) else None


class MethodTable(dict[MethodName, Method]):
    """Methods by name, which a notebook shows as a table.

    >>> vitviz.METHODS["rollout"].citation
    'Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers'
    """

    def __getitem__(self, name: str) -> Method:
        return super().__getitem__(cast(MethodName, name))

    def __missing__(self, name: str) -> Method:
        raise KeyError(f"no method {name!r}: expected {choices(self)}{did_you_mean(name, self)}")

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            code = f"; did you mean METHODS[{nearest(name, self)!r}]?" if nearest(name, self) else ""
            raise AttributeError(f"METHODS has no attribute {name!r}{code}", name=name, obj=None)

    def __repr__(self) -> str:
        return text_table(row[:3] for row in self._rows())

    def _repr_html_(self) -> str:
        return html_table(self._rows(), ("name", "method", "parameters", "what its maps show", "source"))

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                name,
                each.title,
                ", ".join(parameter.name for parameter in each.parameters),
                each.interpretation,
                each.citation,
            )
            for name, each in self.items()
        ]


_QUERY = Parameter("query", "Token", "the token whose map is shown", Token())
_TARGET = Parameter("target", "Class", "what the map is about", ClassTarget())
_LAYER = Parameter("layer", "Layer", "encoder layer, 0 is nearest to the image", LayerNumber(), -1)
_HEAD = Parameter("head", "Head", "one head, or all heads fused", HeadNumber(), "mean")
_START = Parameter("start_layer", "Start layer", "the first layer that counts", LayerNumber(), 0)
_END = Parameter("end_layer", "End layer", "the last layer that counts", LayerNumber(on_page=False), -1)
_DISCARD = Parameter(
    "discard_ratio", "Discard ratio", "share of the lowest weights that is set to zero", Number(0, 0.99, 0.01), 0
)
_RESIDUAL = Parameter("residual_weight", "Residual weight", "share of the residual connection", Number(0, 1, 0.05), 0.5)
_EXCLUDE = Parameter(
    "exclude",
    "Ignore",
    "patches that nobody may attend to: those of outlying norm, or those that take most of the attention",
    Choice(EXCLUSIONS, none="nothing"),
)
_SIGNED = Parameter("signed", "Negative values", "keep what lowers the score, below zero", Switch(), False)
_REFERENCE = Parameter(
    "reference",
    "Normalisation",
    "rows that sum to 1, or the numbers of a widely copied implementation",
    Choice(REFERENCES, none="rows (the paper)"),
)

METHODS = MethodTable(
    (method.name, method)
    for method in (
        Method(
            "attention",
            "Token attention",
            "trace",
            attention,
            (
                Parameter(
                    "direction",
                    "Direction",
                    "the token's own attention, or the attention it gets from every patch",
                    Choice(DIRECTIONS, ("attends to", "is attended by")),
                    "row",
                ),
                _LAYER,
                _HEAD,
                _EXCLUDE,
                _QUERY,
            ),
            "Vaswani et al. 2017, Attention Is All You Need",
            "Which tokens a layer reads; not how it uses them, and not what decides the class.",
            computed_by="page",
            page_parameters=("direction", "layer", "head", "query"),
        ),
        Method(
            "pooling_attention",
            "Pooling attention",
            "trace",
            pooling_attention,
            (_HEAD,),
            "Lee et al. 2019, Set Transformer; Zhai et al. 2023, Sigmoid Loss for Language Image Pre-Training",
            "What the model's learned query attends to after the last layer: the counterpart of CLS attention.",
            ("attention", NO_ATTENTION_POOLING),
            computed_by="quick",
        ),
        Method(
            "attention_mass",
            "Attention mass",
            "trace",
            attention_mass,
            (
                Parameter(
                    "mass", "Mass", "share of the token's attention that the patches hold", Number(0.05, 1, 0.05), 0.6
                ),
                _LAYER,
                _HEAD,
                _QUERY,
            ),
            "Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers",
            "The fewest patches that together hold this share of a token's attention; each is in or out.",
            computed_by="quick",
        ),
        Method(
            "value_attention",
            "Attention × values",
            "trace",
            value_attention,
            (_LAYER, _HEAD, _EXCLUDE, _QUERY),
            "Kobayashi et al. 2020, Attention is Not Only a Weight: Analyzing Transformers with Vector Norms",
            "How much of each token a head reads, before the output projection: a vector near zero counts for nothing.",
            reads_values=True,
            computed_by="quick",
        ),
        Method(
            "rollout",
            "Attention rollout",
            "trace",
            rollout,
            (
                Parameter(
                    "head_fusion", "Head fusion", "how the heads of a layer become one", Choice(HEAD_FUSIONS), "mean"
                ),
                _DISCARD,
                _RESIDUAL,
                _START,
                _END,
                _REFERENCE,
                _EXCLUDE,
                _QUERY,
            ),
            "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
            "Where information may have come from through all layers; not class-specific, and blind to the values.",
            begins_with_identity=True,
            compute_batch=rollouts,
            computed_by="rollouts",
            page_parameters=("query",),
        ),
        Method(
            "attention_flow",
            "Attention flow",
            "trace",
            attention_flow,
            (
                Parameter("most_patches", "Cells", "most cells that patches are pooled into", Number(1, 1024), 64),
                _START,
                _END,
                _QUERY,
            ),
            "Abnar & Zuidema 2020, Quantifying Attention Flow in Transformers",
            "How much information can reach a token through all layers; smoother than rollout, not class-specific.",
        ),
        Method(
            "gradient_rollout",
            "Gradient rollout",
            "gradients",
            gradient_rollout,
            (_TARGET, _DISCARD, _RESIDUAL, _START, _END, _REFERENCE, _QUERY),
            "Chefer, Gur & Wolf 2021, Transformer Interpretability Beyond Attention Visualization",
            "Rollout along the attention that would raise the score; the residual weight is a choice.",
            begins_with_identity=True,
        ),
        Method(
            "relevance",
            "Relevance (TransMM)",
            "gradients",
            relevance,
            (_TARGET, _START, _END, _QUERY),
            "Chefer, Gur & Wolf 2021, Generic Attention-model Explainability for Interpreting Bi-Modal and "
            "Encoder-Decoder Transformers",
            "What raises the score, followed through all layers; what lowers it is left out.",
            begins_with_identity=True,
        ),
        Method(
            "legrad",
            "LeGrad",
            "inputs",
            legrad,
            (_TARGET, _START, _END),
            "Bousselham et al. 2025, LeGrad: An Explainability Method for Vision Transformers via Feature Formation "
            "Sensitivity",
            "Where more attention in any layer would raise the score, however much there is already.",
            reads_layers=True,
        ),
        Method(
            "grad_cam",
            "Grad-CAM",
            "inputs",
            grad_cam,
            (_TARGET, _LAYER),
            "Selvaraju et al. 2017, Grad-CAM: Visual Explanations from Deep Networks via Gradient-based Localization",
            "Where features that raise the score are strong; based on features, not on attention.",
        ),
        Method(
            "integrated_gradients",
            "Integrated gradients",
            "inputs",
            integrated_gradients,
            (_TARGET, Parameter("steps", "Steps", "of the integral", Number(4, 128, 4), 32), _SIGNED),
            "Sundararajan, Taly & Yan 2017, Axiomatic Attribution for Deep Networks",
            "What the pixels add to the score on the way from a blank image; negative values are left out unless kept. "
            "Based on pixels, not on attention.",
            package=CAPTUM,
        ),
        Method(
            "occlusion",
            "Occlusion",
            "inputs",
            occlusion,
            (_TARGET, _SIGNED),
            "Zeiler & Fergus 2014, Visualizing and Understanding Convolutional Networks",
            "How far the score falls when one patch is hidden; negative values are left out unless kept. Patches that "
            "repeat each other all score low.",
            package=CAPTUM,
        ),
    )
)


def record_and_arguments(method: str, options: Mapping[str, Any]) -> tuple[Method, dict[str, Any]]:
    """The record of a method, and the options that are not None."""
    record = METHODS[word("method", method, METHODS)]
    return record, checked_parameters(method, [parameter.name for parameter in record.parameters], options)
