"""Maps for a class or another score are those of plain autograd through materialised attention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.attention import without_lowest
from tests.support.comparison import closeness
from tests.support.makers import MakeNetwork
from tests.support.networks import NETWORKS
from tests.support.pairs import every_pair
from tests.support.plain import normalised, plain, read_plainly, sharp
from vitviz import Target, TokenMap, VisionTransformer, contrast, margin
from vitviz.attention import softmax
from vitviz.attribution import AttributionInput, grad_cam, gradient_rollout, legrad, relevance
from vitviz.models.targets import LikenessScore, class_target

pytestmark = pytest.mark.parity

close = closeness(tolerance=1e-10, relative=1e-10, any_type=True)
LABELS = ("a", "b", "c", "d", "e")
TARGETS = ("class", "contrast", "margin", "likeness", "likeness to a patch")
POOLED = NETWORKS["attention pooling"]
KINDS: dict[str, dict[str, Any]] = {
    **NETWORKS,
    "CLS, norm after pooling": {"final_norm": "after pooling"},
    "attention pooling, registers": {**POOLED, "register_tokens": 2},
    "attention pooling, norm after pooling": {**POOLED, "final_norm": "after pooling"},
    "attention pooling, no norm, one head": {**POOLED, "final_norm": "none", "heads": 1, "head_width": 32},
    "attention pooling beside CLS": {"pooling": "attention"},
}
Score = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]


def formula(kind: str, subject: AttributionInput, other: torch.Tensor) -> tuple[Target, Score]:
    """A target, and a function from a layer's tokens to its score by formula, with the weights of the pooling."""
    network, config = subject.network, subject.network.config
    run = plain(network, subject.pixels)
    logits, prefix = run.output[0].detach(), run.layout.prefix_count
    there = plain(network, other).steps[-1].detach()
    bare = VisionTransformer(replace(config, classes=0)).double()
    bare.load_state_dict(network.state_dict(), strict=False)

    def final_patches(tokens: torch.Tensor) -> torch.Tensor:
        is_of_tokens = config.final_norm == "before pooling" or config.pooling != "cls and mean"
        return (normalised(tokens, network.norm, config.norm_epsilon) if is_of_tokens else tokens)[0, prefix:]

    def lead(logits: torch.Tensor) -> torch.Tensor:
        scores = list(logits)
        return scores.pop(int(run.output[0].argmax())) - torch.stack(scores).amax()

    if kind in ("class", "contrast", "margin"):
        targets = {"contrast": contrast("b", 3), "margin": margin()}
        target = class_target(1, 5) if kind == "class" else targets[kind].target(logits, LABELS)
        scores = {"class": lambda each: each[1], "contrast": lambda each: each[1] - each[3], "margin": lead}

        def of_logits(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            output, pooling = read_plainly(network, tokens, prefix)
            return scores[kind](output[0]), pooling

        return target, of_logits
    if kind == "likeness":
        features = read_plainly(bare, there, prefix)[0][0]

        def of_features(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
            output, pooling = read_plainly(bare, tokens, prefix)
            return torch.cosine_similarity(output[0], features, dim=0), pooling

        return Target(kind, LikenessScore(features / features.norm(), kind), "features", 1.0), of_features
    patch = final_patches(there)[7]
    target = Target(kind, LikenessScore(patch / patch.norm(), kind), "patches", 1.0)
    return target, lambda tokens: (torch.cosine_similarity(final_patches(tokens), patch[None]).mean(), None)


@every_pair(changes=KINDS, kind=TARGETS, chunk_bytes=[1, 3000, 2**22])
def test_maps_are_those_of_autograd_on_the_formula(
    make_network: MakeNetwork, changes: dict[str, Any], kind: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(softmax, "CHUNK_BYTES", chunk_bytes)
    subject = sharp(make_network, changes)
    target, score = formula(kind, subject, torch.randn_like(subject.pixels))
    subject, run = replace(subject, target=target), plain(subject.network, subject.pixels)
    layout, depth, identity = run.layout, len(run.weights), torch.eye(run.layout.token_count, dtype=torch.float64)
    value, pooling = score(run.steps[-1])
    inputs = [*run.weights, *run.normed, *([] if pooling is None else [pooling])]
    gradients = torch.autograd.grad(value, inputs, retain_graph=True)
    assert subject.gradients.score == pytest.approx(float(value.detach()), abs=1e-10)
    for layer, (attention, gradient) in enumerate(zip(run.weights, gradients, strict=False)):
        chunks = [(found.clone(), slope.clone()) for _, found, slope in subject.gradients.in_chunks(layer)]
        close(torch.cat([found for found, _ in chunks], 1), attention[0].detach())
        close(torch.cat([slope for _, slope in chunks], 1), gradient[0])

    def matches(found: TokenMap, tokens: torch.Tensor) -> None:
        close(found.values, layout.grid(tokens))
        assert list(found.prefix.values()) == pytest.approx(
            tokens[: layout.prefix_count].tolist(), abs=1e-10, rel=1e-10
        )

    products = [(one.detach() * slope)[0] for one, slope in zip(run.weights, gradients, strict=False)]
    # Where each query begins, for relevance and for gradient rollout.
    starts: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {
        query: (identity[layout.select(query)].mean(0),) * 2 for query in (0, "patches", layout.token_count - 1, (0, 1))
    }
    assert (subject.gradients.pooled is None) == (pooling is None)
    if pooling is None:
        starts[None] = starts["patches" if "cls" not in layout.prefix or target.reads == "patches" else 0]
    else:
        pooled = torch.nn.functional.pad((pooling.detach() * gradients[-1])[0, :, 0], (layout.prefix_count, 0))
        close(subject.gradients.pooled, pooled)
        shares = pooled.mean(0).relu()
        starts[None] = pooled.relu().mean(0), shares / (shares.sum() if shares.any() else 1)
    for start, end, residual, ratio in (
        (0, depth, 0.5, 0.0),
        (depth // 2, depth, 0.2, 0.6),
        (0, depth - 1 or 1, 1.0, 0.0),
    ):
        matrix = rollout = identity
        for product in products[start:end]:
            matrix = matrix + product.relu().mean(0) @ matrix
            step = without_lowest(product.mean(0).relu(), int(ratio * identity.numel()))
            step = (1 - residual) * step + residual * identity
            rollout = step / step.sum(-1, keepdim=True) @ rollout
        options = {"start_layer": start, "end_layer": end - 1}
        for query, (first, share) in starts.items():
            if query is None and pooling is not None and end < depth:
                continue
            found = gradient_rollout(subject.gradients, ratio, residual, query=query, **options)
            matches(relevance(subject.gradients, query, **options), first @ matrix)
            matches(found, share @ rollout)
            assert ("the pooling query" in found.description) == (query is None and pooling is not None)

    slopes = [
        torch.autograd.grad(score(step)[0], attention, retain_graph=True)[0][0].relu().mean((0, 1))
        for attention, step in zip(run.weights, run.steps[1:], strict=True)
    ]
    for start in (0, depth - 1):
        matches(legrad(subject, start), torch.stack(slopes[start:]).mean(0))
    for layer in (0, -1):
        features, slope = run.normed[layer][0].detach(), gradients[depth : 2 * depth][layer][0]
        strength = (features @ slope[layout.prefix_count :].mean(0))[layout.prefix_count :]
        assert strength.abs().max() > 1e-6
        close(grad_cam(subject, layer).values.flatten(), strength.relu())
