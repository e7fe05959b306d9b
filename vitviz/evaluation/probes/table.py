"""The table of probes, which defines the command and the documentation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import plain_torch
from vitviz.attribution.parameters import Choice, LayerNumber, Parameter, Token
from vitviz.errors.arguments import checked_parameters, instance, word
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.probes.attention_probes import (
    NO_PREFIX,
    ONE_HEAD,
    attention_distance,
    attention_entropy,
    head_similarity,
    prefix_mass,
    sink_mass,
    sink_tokens,
)
from vitviz.evaluation.probes.features import patch_components, patch_similarity
from vitviz.evaluation.probes.findings import Findings
from vitviz.evaluation.probes.lens import logit_lens, why_no_lens
from vitviz.evaluation.probes.norms import massive_activations, outlier_patches, token_norms
from vitviz.evaluation.probes.weight_probes import NO_POSITIONS, patch_filters, position_similarity
from vitviz.features import KINDS
from vitviz.models.config import ViTConfig
from vitviz.models.given import NO_NETWORK, GivenConfig
from vitviz.models.network import NetworkConfig
from vitviz.models.watched import NO_STREAM, WATCHED_MODULE

Requirement = Literal["trace", "tokens", "model"]


@dataclass(frozen=True)
class Probe:
    """A measurement of a model's internals.

    Args:
        name: name of its function and of the command's option.
        title: heading.
        requires: its input: an :class:`vitviz.AttentionTrace`; the tokens of a :class:`vitviz.Analysis`, for which the
            model runs once more; or a :class:`vitviz.Model` alone.
        compute: function of the input and the parameters that returns findings.
        citation: its source.
        interpretation: one line on how to read it.
        parameters: in the order of the controls.
        unsupported_reason: returns the reason why the probe does not apply to a configuration, or None if it does.
        reads_norms: whether it reads the token norms of the trace.
    """

    name: str
    title: str
    requires: Requirement
    compute: Callable[..., Findings]
    citation: str
    interpretation: str
    parameters: tuple[Parameter, ...] = ()
    unsupported_reason: Callable[[NetworkConfig], str | None] = lambda config: None
    reads_norms: bool = False

    def refusal(self, config: NetworkConfig) -> str | None:
        """The reason why the probe does not apply to a model of this configuration, or None if it does."""
        if isinstance(config, GivenConfig) and (self.requires != "trace" or self.reads_norms):
            return NO_NETWORK
        if self.requires == "model" and not isinstance(config, ViTConfig):
            return WATCHED_MODULE
        if (self.requires == "tokens" or self.reads_norms) and not config.has_stream:
            return NO_STREAM
        return self.unsupported_reason(config)


_LAYER = Parameter("layer", "Layer", "encoder layer, 0 is nearest to the image", LayerNumber(), -1)
_DARCET = "Darcet et al. 2024, Vision Transformers Need Registers"
_DOSOVITSKIY = "Dosovitskiy et al. 2021, An Image is Worth 16x16 Words"
_CLARK = "Clark et al. 2019, What Does BERT Look At?"

PROBES = {
    probe.name: probe
    for probe in (
        Probe(
            "token_norms",
            "Token norms",
            "trace",
            token_norms,
            _DARCET,
            "How long each token is after every layer; a few patches far above all others are the model's own storage.",
            reads_norms=True,
        ),
        Probe(
            "outlier_patches",
            "Outlier patches",
            "trace",
            outlier_patches,
            _DARCET,
            "Patches of outlying norm where they enter the last layer: they say little of their place in the picture.",
            reads_norms=True,
        ),
        Probe(
            "sink_tokens",
            "Attention sinks",
            "trace",
            sink_tokens,
            "Xiao et al. 2024, Efficient Streaming Language Models with Attention Sinks; Gu et al. 2025, When "
            "Attention Sink Emerges in Language Models",
            "How many even shares of attention each token receives; a sink dominates the map unless it is left out.",
        ),
        Probe(
            "sink_mass",
            "Attention to sinks",
            "trace",
            sink_mass,
            "Gu et al. 2025, When Attention Sink Emerges in Language Models",
            "How much of a head's attention its sinks take: near 1, the head adds next to nothing for this picture.",
        ),
        Probe(
            "logit_lens",
            "Logit lens",
            "tokens",
            logit_lens,
            "Vilas et al. 2023, Analyzing Vision Transformers for Image Classification in Class Embedding Space",
            "What the classifier reads in every layer's tokens; lower layers were never trained to be read by it.",
            unsupported_reason=why_no_lens,
        ),
        Probe(
            "patch_components",
            "Principal components of patches",
            "tokens",
            patch_components,
            "Oquab et al. 2023, DINOv2: Learning Robust Visual Features without Supervision",
            "Patches of one colour have similar tokens; the colour itself means nothing.",
            (_LAYER,),
        ),
        Probe(
            "patch_similarity",
            "Patch similarity",
            "tokens",
            patch_similarity,
            "Caron et al. 2021, Emerging Properties in Self-Supervised Vision Transformers; Amir et al. 2021, Deep ViT "
            "Features as Dense Visual Descriptors",
            "Which patches the model takes for the same thing, or the same place, as one patch.",
            (
                Parameter("query", "Token", "what all are compared with", Token("the patch in the middle")),
                _LAYER,
                Parameter(
                    "features",
                    "Features",
                    "what is compared: the output of the layer, or the keys, queries or values of its attention",
                    Choice(KINDS),
                    KINDS[0],
                ),
            ),
        ),
        Probe(
            "massive_activations",
            "Massive activations",
            "tokens",
            massive_activations,
            "Sun et al. 2024, Massive Activations in Large Language Models",
            "Single features far above all others, the same for every image; they act as biases of attention.",
        ),
        Probe(
            "prefix_mass",
            "Attention to prefix tokens",
            "trace",
            prefix_mass,
            _DARCET,
            "How much of the patches' attention goes to the CLS token and the registers, and so to no patch.",
            unsupported_reason=lambda config: None if config.prefix else NO_PREFIX,
        ),
        Probe(
            "attention_distance",
            "Mean attention distance",
            "trace",
            attention_distance,
            _DOSOVITSKIY,
            "How far every head looks; low layers of trained models have near-sighted and far-sighted heads.",
        ),
        Probe(
            "attention_entropy",
            "Attention entropy",
            "trace",
            attention_entropy,
            _CLARK,
            "How widely every head looks: 0 where each patch attends to one token alone.",
        ),
        Probe(
            "head_similarity",
            "Similarity of heads",
            "trace",
            head_similarity,
            _CLARK,
            "How different the attention of two heads of a layer is: 0 for the same, 1 for nothing in common.",
            unsupported_reason=lambda config: None if config.heads > 1 else ONE_HEAD,
        ),
        Probe(
            "position_similarity",
            "Similarity of positions",
            "model",
            position_similarity,
            _DOSOVITSKIY,
            "How similar the embeddings of two places are: those of near places, rows and columns should be.",
            unsupported_reason=lambda config: NO_POSITIONS if isinstance(config, ViTConfig) and config.rotary else None,
        ),
        Probe(
            "patch_filters",
            "Filters of the patch embedding",
            "model",
            patch_filters,
            _DOSOVITSKIY,
            "The patterns that the patch embedding detects; smooth ones are a sign of much training data.",
        ),
    )
}


@plain_torch()
def probe(analysis: Analysis, name: str, **parameters: Any) -> Findings:
    """The findings of a probe for an analysis.

    Args:
        analysis: analysis of one image.
        name: name of the probe in :data:`PROBES`.
        parameters: parameters of the probe; None for the default.

    Raises:
        MethodError: there is no such probe, it has no such parameter, or it does not apply to the model.
        QueryError: the model has no such layer or token.
        LimitError: the machine does not have enough free memory.
    """
    instance("analysis", analysis, Analysis, "vitviz.analyze(image, model)")
    record = PROBES[word("probe", name, PROBES)]
    arguments = checked_parameters(name, [parameter.name for parameter in record.parameters], parameters)
    refusal = record.refusal(analysis.model.network.config)
    if refusal is not None:
        raise MethodError(f"{name}: {refusal}")
    source = {"trace": analysis.trace, "tokens": analysis, "model": analysis.model}[record.requires]
    return record.compute(source, **arguments)
