"""The logit lens: the classification of every layer's tokens, as if they were the last layer's."""

from __future__ import annotations

import torch

from vitviz.analysis.analysis import Analysis
from vitviz.errors.number_text import percent
from vitviz.evaluation.probes.findings import Findings, Measurement, step_name
from vitviz.features.vectors import token_stream
from vitviz.models.network import NetworkConfig
from vitviz.models.probability import class_probabilities, why_no_probability

# Tokens to classify at a time: with thousands of classes, the logits of all tokens would take too much memory.
CHUNK_TOKENS = 256


def why_no_lens(config: NetworkConfig) -> str | None:
    """Why a model has no logit lens; None if it has one."""
    reason = why_no_probability(config)
    return None if reason is None else f"this model {reason}, so tokens have no class"


def logit_lens(analysis: Analysis) -> Findings:
    """Final norm and classifier on every layer's tokens: the prediction after each layer, and each token's class.

    Vilas et al. 2023, "Analyzing Vision Transformers for Image Classification in Class Embedding Space"; nostalgebraist
    2020, "interpreting GPT: the logit lens". A layer's prediction pools its tokens as the model pools
    those of its last layer. A single token is classified as if pooling had returned it. These measurements are left out
    for a model that classifies two tokens side by side, and for a watched module, which can only classify all tokens
    of a layer together.

    Returns:
        ``probability``: ``"step class"``, the layer's prediction; at the last step, the model's. ``token_class``:
        ``"step token"``, index of each token's most probable class; ``token_probability``: its probability.

    Raises:
        MethodError: the model has no classifier, or is a regression.
    """
    network, layout = analysis.network, analysis.trace.layout
    function = network.config.probability
    steps, classes, probabilities = token_stream(network, analysis.prepared.pixels), [], []
    if not network.config.classifies_tokens:
        with torch.inference_mode():
            logits = network.read(torch.stack(list(steps)), layout)
        return _findings(analysis, class_probabilities(logits, function).cpu(), None, None)
    predictions = []
    for tokens in steps:
        with torch.inference_mode():
            predictions.append(class_probabilities(network.read(tokens[None], layout)[0], function))
            best = [
                class_probabilities(network.classify_each(chunk), function).max(-1)
                for chunk in tokens.split(CHUNK_TOKENS)
            ]
            classes.append(torch.cat([chunk.indices for chunk in best]))
            probabilities.append(torch.cat([chunk.values for chunk in best]))
    return _findings(
        analysis, torch.stack(predictions).cpu(), torch.stack(classes).cpu(), torch.stack(probabilities).cpu()
    )


def _findings(
    analysis: Analysis,
    probability: torch.Tensor,
    classes: torch.Tensor | None,
    probabilities: torch.Tensor | None,
) -> Findings:
    """The findings with summary and table.

    Args:
        analysis: analysis of the image.
        probability: ``"step class"``, prediction of each layer.
        classes, probabilities: ``"step token"``; None if single tokens cannot be classified.
    """
    labels, layout = analysis.model.labels, analysis.trace.layout
    measurements = {"probability": Measurement(probability, ("step", "class"), "probability", {"class": labels})}
    if classes is not None and probabilities is not None:
        measurements["token_class"] = Measurement(classes, ("step", "token"), "index of the class", indexes="class")
        measurements["token_probability"] = Measurement(probabilities, ("step", "token"), "probability")
    final = int(probability[-1].argmax())
    rows = []
    for step, values in enumerate(probability):
        best_class = int(values.argmax())
        patches = None if classes is None else classes[step][layout.prefix_count :]
        share = "–" if patches is None else percent(float((patches == final).double().mean()))
        row = (labels[best_class], percent(float(values[best_class])), percent(float(values[final])), share)
        rows.append((step_name(step), *row))
    first = next(step for step in range(len(rows)) if (probability[step:].argmax(-1) == final).all())
    since = "before the first layer" if first == 0 else f"layer {first - 1}"
    return Findings(
        "logit_lens",
        f"The prediction is {labels[final]} from {since} on.",
        measurements,
        ("after", "prediction", "probability", f"of {labels[final]}", "patches that agree"),
        tuple(rows),
    )
