"""The logit lens: what every layer's tokens would be classified as, if they were the last."""

from __future__ import annotations

import torch

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import precise
from vitviz.errors.number_text import percent
from vitviz.evaluation.probes.findings import Findings, Measurement, step_name
from vitviz.evaluation.probes.tokens import stream_of
from vitviz.models.capture import CapturedNetwork
from vitviz.models.own import own_network
from vitviz.models.pooling import POOLINGS

NO_LENS = "this model has no classifier, so that no token speaks for a class"
# Logits of so many tokens at a time: of thousands of classes, those of all tokens are more than the image.
TOKENS_AT_ONCE = 256


def logit_lens(analysis: Analysis) -> Findings:
    """Final norm and classifier on every layer's tokens: how the prediction forms, and which class each token says.

    Vilas et al. 2023, "Analyzing Vision Transformers for Image Classification in Class Embedding Space"; nostalgebraist
    2020, "interpreting GPT: the logit lens". The whole is pooled as the model pools its last layer. A token alone is
    classified as if it were all that is pooled; where the model classifies two tokens side by side there is no such
    thing, and the measurements of tokens are left out. So they are of a captured module, which classifies all tokens
    of a layer as if they were its last layer's.

    Returns:
        ``probability``: ``"step class"``, of the whole; its last step is what the model predicts. ``token_class``:
        ``"step token"``, the index of the class that each token says; ``token_probability``: of that class.

    Raises:
        MethodError: the model has no classifier.
    """
    network, layout = analysis.model.network, analysis.trace.layout
    if isinstance(network, CapturedNetwork):
        return _findings(analysis, _module_probability(network, analysis.prepared.pixels), [], [])
    network = own_network(network, "logit_lens")
    has_tokens = POOLINGS[network.config.pooling].width_factor == 1
    whole, classes, probabilities = [], [], []
    for tokens in stream_of(analysis):
        with torch.inference_mode():
            whole.append(precise(network.read(tokens[None], layout)[0]).softmax(-1).cpu())
            if has_tokens:
                best = [
                    precise(network.classify_each(part)).softmax(-1).max(-1) for part in tokens.split(TOKENS_AT_ONCE)
                ]
                classes.append(torch.cat([part.indices for part in best]).cpu())
                probabilities.append(torch.cat([part.values for part in best]).cpu())
    return _findings(analysis, torch.stack(whole), classes, probabilities)


def _module_probability(network: CapturedNetwork, pixels: torch.Tensor) -> torch.Tensor:
    """What a captured module predicts of each layer's tokens as if they were its last layer's, ``"step class"``."""
    logits = network.read(torch.cat(network.stream(pixels)), pixels)
    return precise(logits.detach()).softmax(-1).cpu()


def _findings(
    analysis: Analysis, probability: torch.Tensor, classes: list[torch.Tensor], probabilities: list[torch.Tensor]
) -> Findings:
    """In words and rows.

    Args:
        analysis: of the image.
        probability: ``"step class"``, of the whole.
        classes, probabilities: ``"token"`` of every step; empty where no token has any.
    """
    labels, layout, has_tokens = analysis.model.labels, analysis.trace.layout, len(classes) > 0
    measurements = {"probability": Measurement(probability, ("step", "class"), "probability", {"class": labels})}
    if has_tokens:
        measurements["token_class"] = Measurement(
            torch.stack(classes), ("step", "token"), "index of the class", indexes="class"
        )
        measurements["token_probability"] = Measurement(torch.stack(probabilities), ("step", "token"), "probability")
    final = int(probability[-1].argmax())
    rows = []
    for step, values in enumerate(probability):
        best_class = int(values.argmax())
        patches = classes[step][layout.prefix_count :] if has_tokens else None
        share = "–" if patches is None else percent(float((patches == final).double().mean()))
        row = (labels[best_class], percent(float(values[best_class])), percent(float(values[final])), share)
        rows.append((step_name(step), *row))
    first = next(step for step in range(len(rows)) if (probability[step:].argmax(-1) == final).all())
    since = "before the first layer" if first == 0 else f"layer {first - 1}"
    return Findings(
        "logit_lens",
        f"The prediction is {labels[final]} from {since} on.",
        measurements,
        ("after", "prediction", "probability", f"of {labels[final]}", "patches that say so"),
        tuple(rows),
    )
