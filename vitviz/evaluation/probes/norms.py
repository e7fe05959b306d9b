"""Probes of token norms, outlier patches, and massive activations."""

from __future__ import annotations

import torch

from vitviz.analysis.analysis import Analysis
from vitviz.attention.precision import precise
from vitviz.attention.sinks import NO_NORMS, OutlierRule, norms_of_patches, outlier_count
from vitviz.attention.sinks import outlier_patches as find_outliers
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.kinds import MethodError
from vitviz.errors.number_text import digits
from vitviz.evaluation.probes.findings import Findings, Measurement, step_name
from vitviz.features.vectors import token_stream

# Sun et al. call activations massive that exceed both.
MASSIVE_VALUE = 100.0
MASSIVE_RATIO = 1000.0


def token_norms(trace: AttentionTrace) -> Findings:
    """The norm of every token before the first layer and after each one, measured during the analysis.

    Darcet et al. 2024, "Vision Transformers Need Registers", figure 4.

    Returns:
        ``norms``: ``"step token"``; NaN for tokens that the last layer does not compute.

    Raises:
        MethodError: the trace has no norms.
    """
    if trace.norms is None:
        raise MethodError(f"token_norms: {NO_NORMS}")
    norms, layout = trace.norms.cpu(), trace.layout
    rows = []
    for step, values in enumerate(norms):
        patches = values[layout.prefix_count :]
        valid = patches[~patches.isnan()]
        # torch refuses quantiles of an empty tensor.
        quantiles = torch.quantile(valid, torch.tensor([0, 0.5, 1], dtype=valid.dtype)).tolist() if len(valid) else []
        prefix = map(digits, values[: layout.prefix_count].tolist())
        rows.append((step_name(step), *prefix, *(map(digits, quantiles or [torch.nan] * 3))))
    highest = norms.nan_to_num(0).flatten().argmax()
    step, token = divmod(int(highest), layout.token_count)
    where = "before the first layer" if step == 0 else f"after layer {step - 1}"
    return Findings(
        "token_norms",
        f"The longest token is {layout.name(token)} {where}, with norm {digits(float(norms[step, token]))}.",
        {"norms": Measurement(norms, ("step", "token"), "norm")},
        ("after", *layout.prefix, "lowest patch", "median patch", "highest patch"),
        tuple(rows),
    )


def outlier_patches(trace: AttentionTrace) -> Findings:
    """The patches whose norm is an outlier where they enter the last layer, by :class:`OutlierRule`.

    Darcet et al. 2024, "Vision Transformers Need Registers", section 2.1, who set the threshold by hand for each model.

    Returns:
        ``norm``: ``"token"``, NaN for prefix tokens; ``outlier``: ``"token"``, whether each is one.

    Raises:
        MethodError: the trace has no norms.
    """
    layout, norms = trace.layout, norms_of_patches(trace).cpu()
    tokens, rule = find_outliers(trace), OutlierRule.of(norms)
    is_outlier = torch.zeros(layout.token_count, dtype=torch.bool)
    is_outlier[tokens] = True
    values = torch.cat([torch.full((layout.prefix_count,), torch.nan, dtype=norms.dtype), norms])
    longest = sorted(tokens, key=lambda token: -float(values[token]))
    rows = [
        (layout.name(token), digits(float(values[token])), digits(float(values[token]) / rule.median))
        for token in longest
    ]
    bounds = f"threshold {digits(rule.threshold)}, median {digits(rule.median)}, longest {digits(float(norms.max()))}"
    return Findings(
        "outlier_patches",
        f"{outlier_count(trace)} where the tokens enter the last layer: {bounds}.",
        {
            "norm": Measurement(values, ("token",), "norm"),
            "outlier": Measurement(is_outlier, ("token",), "outlier or not"),
        },
        ("patch", "norm", "times the median"),
        tuple(rows),
    )


def massive_activations(analysis: Analysis) -> Findings:
    """The features that are far larger than all others, and the tokens that have them.

    Sun et al. 2024, "Massive Activations in Large Language Models", section 2: magnitude above 100 and about 1,000
    times the median magnitude of all features; section 5 for Vision Transformers.

    Returns:
        ``largest``: ``"step feature"``, largest magnitude of each feature in any token; ``token``: index of that token,
        in the same shape; ``median``: ``"step"``, median of all magnitudes.
    """
    layout = analysis.trace.layout
    largest, tokens, medians = [], [], []
    for stream in token_stream(analysis.network, analysis.prepared.pixels):
        magnitudes = precise(stream).abs()
        highest, highest_tokens = magnitudes.max(0)
        largest.append(highest)
        tokens.append(highest_tokens)
        medians.append(magnitudes.flatten().median())
    values, owners, median = (torch.stack(parts).cpu() for parts in (largest, tokens, medians))
    massive = (values > MASSIVE_VALUE) & (values > MASSIVE_RATIO * median[:, None])
    rows = []
    for step, (magnitudes, step_owners) in enumerate(zip(values, owners, strict=True)):
        feature = int(magnitudes.argmax())
        ratio = float(magnitudes[feature] / median[step]) if median[step] > 0 else torch.inf
        name = layout.name(int(step_owners[feature]))
        row = (str(feature), name, digits(float(magnitudes[feature])), digits(ratio), str(int(massive[step].sum())))
        rows.append((step_name(step), *row))
    features = sorted({feature for _, feature in massive.nonzero().tolist()})
    listing = ", ".join(map(str, features[:8])) + ", …" * (len(features) > 8)
    summary = f"Massive in some layer: {'features' if len(features) > 1 else 'feature'} {listing}."
    return Findings(
        "massive_activations",
        summary if features else "No feature of any token is massive.",
        {
            "largest": Measurement(values, ("step", "feature"), "largest magnitude"),
            "token": Measurement(owners, ("step", "feature"), "index of the token", indexes="token"),
            "median": Measurement(median, ("step",), "median magnitude"),
        },
        ("after", "largest feature", "of", "magnitude", "times the median", "massive features"),
        tuple(rows),
    )
