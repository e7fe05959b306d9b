"""Probes of attention: sinks, prefix tokens, distance, entropy, and the similarity of a layer's heads."""

from __future__ import annotations

import math

import torch

from vitviz.attention.sinks import SINK_RATIO, received_attention, sink_patches
from vitviz.attention.trace import AttentionTrace
from vitviz.errors.number_text import digits, percent
from vitviz.evaluation.head_table import MEASURES, measure_heads
from vitviz.evaluation.probes.findings import Findings, Measurement

NO_PREFIX = "this model has no prefix tokens, so that no attention goes to them"
ONE_HEAD = "this model has one head in a layer, which has no other to be compared with"


def sink_tokens(trace: AttentionTrace) -> Findings:
    """The attention that every token receives, in multiples of an even share.

    Xiao et al. 2024, "Efficient Streaming Language Models with Attention Sinks"; the mean over all query tokens as in
    Gu et al. 2025, "When Attention Sink Emerges in Language Models", section 3.

    Returns:
        ``received``: ``"layer head token"``; 1 is an even share, and the mean over tokens is 1.
    """
    layout = trace.layout
    received = received_attention(trace) * layout.token_count
    rows = []
    for layer, shares in enumerate(received.mean(1)):
        token = int(shares.argmax())
        patch = layout.prefix_count + int(shares[layout.prefix_count :].argmax())
        head = int(received[layer, :, token].argmax())
        cells = (layout.name(token), digits(float(shares[token])), str(head))
        rows.append((str(layer), *cells, layout.name(patch), digits(float(shares[patch]))))
    sinks = [layout.name(token) for token in sink_patches(trace)]
    names = ", ".join(sinks[:8]) + ", …" * (len(sinks) > 8)
    rule = f"more than {SINK_RATIO:g} even shares of the attention in some layer, in the mean of its heads"
    verb = "receives" if len(sinks) < 2 else "receive"
    return Findings(
        "sink_tokens",
        f"{names[:1].upper()}{names[1:]} {verb} {rule}." if sinks else f"No patch receives {rule}.",
        {"received": Measurement(received.float(), ("layer", "head", "token"), "even shares of the attention")},
        ("layer", "most attended token", "even shares", "most by head", "most attended patch", "even shares"),
        tuple(rows),
    )


def sink_mass(trace: AttentionTrace) -> Findings:
    """The share of each head's attention to sinks, the tokens that receive more than ten even shares of it.

    Gu et al. 2025, "When Attention Sink Emerges in Language Models", section 3, with the threshold in even shares.

    Returns:
        ``mass``: ``"layer head"``, in [0, 1]; 0 for a head without sinks.
    """
    received = received_attention(trace)
    is_sink = received * trace.layout.token_count > SINK_RATIO
    return _head_findings(
        *("sink_mass", "mass", (received * is_sink).sum(-1), "send most attention to sinks", "share"),
        if_zero=f"No head has a sink: no token receives more than {SINK_RATIO:g} even shares of its attention.",
    )


def prefix_mass(trace: AttentionTrace) -> Findings:
    """The share of the patches' attention that goes to each prefix token.

    Darcet et al. 2024, "Vision Transformers Need Registers", section 3: registers take over from outlier patches.

    Returns:
        ``mass``: ``"layer head prefix"``, in [0, 1].
    """
    layout = trace.layout
    mass = received_attention(trace, layout.prefix_count)[..., : layout.prefix_count]
    rows = [
        (str(layer), *map(digits, values.mean(0).tolist()), digits(float(values.sum(-1).mean())))
        for layer, values in enumerate(mass)
    ]
    layer, head = divmod(int(mass.sum(-1).argmax()), trace.heads)
    highest = digits(float(mass[layer, head].sum()))
    return Findings(
        "prefix_mass",
        f"Head {head} of layer {layer} sends most, {highest} of the patches' attention, to prefix tokens.",
        {"mass": Measurement(mass.float(), ("layer", "head", "prefix"), "share", {"prefix": layout.prefix})},
        ("layer", *layout.prefix, "all of them"),
        tuple(rows),
    )


def attention_distance(trace: AttentionTrace) -> Findings:
    """The mean distance of each head's attention: from a patch to those to which it attends, in patches.

    Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words", figure 7.

    Returns:
        ``distance``: ``"layer head"``, from 0 to the diagonal of the grid; NaN for a head that attends to no patch.
    """
    return _head_findings("attention_distance", "distance", measure_heads(trace)["distance"], "look farthest")


def attention_entropy(trace: AttentionTrace) -> Findings:
    """The mean entropy of the patches' rows in each head, in nats.

    Clark et al. 2019, "What Does BERT Look At?", section 3.2.

    Returns:
        ``entropy``: ``"layer head"``, from 0 (one token) to the logarithm of the number of tokens (all equal).
    """
    return _head_findings("attention_entropy", "entropy", measure_heads(trace)["entropy"], "look most widely")


def head_similarity(trace: AttentionTrace) -> Findings:
    """The distance between any two heads of a layer: the mean Jensen-Shannon divergence of their rows.

    Clark et al. 2019, "What Does BERT Look At?", section 6. The unit is its bound, the logarithm of 2.

    Returns:
        ``divergence``: ``"layer head other head"``, from 0 for equal heads to 1 for heads that have no token in
        common.
    """
    heads = trace.heads
    divergence = trace.keys.new_zeros((trace.layers, heads, heads), dtype=trace.dtype)
    for layer in range(trace.layers):
        for _, weights in trace.weights_in_chunks(layer):
            entropy = torch.special.entr(weights).sum((-1, -2))
            for head in range(heads - 1):
                pair_entropy = torch.special.entr((weights[head] + weights[head + 1 :]) / 2).sum((-1, -2))
                distance = pair_entropy - (entropy[head] + entropy[head + 1 :]) / 2
                divergence[layer, head, head + 1 :] += distance
                divergence[layer, head + 1 :, head] += distance
    # Rounding may push values slightly below zero.
    divergence = (divergence.cpu() / (trace.layout.token_count * math.log(2))).clamp(0, 1)
    rows, pairs = [], torch.triu_indices(heads, heads, 1)
    for layer, values in enumerate(divergence):
        distances = values[pairs[0], pairs[1]]
        nearest, farthest = (
            f"{int(pairs[0, index])} and {int(pairs[1, index])}" for index in (distances.argmin(), distances.argmax())
        )
        low, mean, high = (digits(float(value)) for value in (distances.min(), distances.mean(), distances.max()))
        rows.append((str(layer), nearest, low, mean, farthest, high))
    means = divergence.sum((-1, -2)) / (heads * (heads - 1))
    layer = int(means.argmin())
    return Findings(
        "head_similarity",
        f"The heads of layer {layer} are most alike, on average {digits(float(means[layer]))} apart.",
        {"divergence": Measurement(divergence.float(), ("layer", "head", "other head"), "Jensen-Shannon divergence")},
        ("layer", "most alike", "apart", "mean apart", "least alike", "apart"),
        tuple(rows),
    )


def _head_findings(
    probe: str, measure: str, values: torch.Tensor, verb: str, unit: str = "", if_zero: str = ""
) -> Findings:
    """Findings for a measure ``"layer head"``; the unit defaults to that in :data:`MEASURES`."""
    unit = unit or MEASURES[measure].unit
    rows = []
    for layer, heads in enumerate(values):
        valid = heads[~heads.isnan()]
        cells = [digits(float(value)) for value in (valid.min(), valid.mean(), valid.max())] if len(valid) else []
        rows.append((str(layer), *(cells or ["–"] * 3)))
    means = values.nanmean(1).nan_to_num(0)
    layer = int(means.argmax())
    mean = float(means[layer])
    amount = percent(mean) if unit == "share" else f"{digits(mean)} {unit}"
    return Findings(
        probe,
        f"The heads of layer {layer} {verb}, on average {amount}." if mean or not if_zero else if_zero,
        {measure: Measurement(values.float(), ("layer", "head"), unit)},
        ("layer", "lowest head", f"mean, in {unit}", "highest head"),
        tuple(rows),
    )
