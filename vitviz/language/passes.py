"""A second pass that writes the same text, and what of it flows to a word through all layers.

It is the same generation, with the tokens given, so that the network computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from vitviz.attention.precision import precise
from vitviz.attention.softmax import attention_weights
from vitviz.errors.kinds import MethodError
from vitviz.language.generation import generate
from vitviz.models.watched.reader import fused_call

# The most numbers of attention that are computed at once.
MAX_NUMBERS = 2**24
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")
_Call = tuple[dict[str, Any], torch.Tensor]


class KeptCalls(TorchFunctionMode):
    """Keeps the decoder's calls of torch's attention, for each step their arguments by name and their output.

    Args:
        skipped: number of calls before the decoder's, in the first step.
        needs_gradients: whether gradients with regard to the outputs are wanted; what is skipped needs none.
    """

    def __init__(self, skipped: int, needs_gradients: bool) -> None:
        super().__init__()
        self.skipped, self.needs_gradients, self.steps = skipped, needs_gradients, list[list[_Call]]([[]])

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if function is not F.scaled_dot_product_attention or self.skipped:
            # nn.MultiheadAttention hides the kernel in a function of its own.
            self.skipped -= function in (F.scaled_dot_product_attention, F.multi_head_attention_forward)
            return function(*args, **given)
        torch.set_grad_enabled(self.needs_gradients)
        output = function(*args, **given)
        if self.needs_gradients and not output.requires_grad:
            output.requires_grad_()
        self.steps[-1].append((dict(zip(NAMES, args, strict=False)) | given, output))
        return output


def flow(
    module: Any,
    inputs: Mapping[str, Any],
    ids: Sequence[int],
    kinds: Sequence[bool],
    skipped: int,
    asked: Mapping[int, Mapping[int, float]],
    is_relevance: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What flows to the tokens that are asked for, from each token that the layers read, and the logits of the pass.

    Rollout: ``r ← r (Ā + I) / 2`` from the last layer down, where r is a row that begins with 1 at the tokens whose
    logits are asked for, and Ā is the mean attention of the heads (Abnar & Zuidema 2020, "Quantifying Attention Flow in
    Transformers"). Relevance: ``r ← r + r Ā`` with ``Ā = mean(relu(A ⊙ ∂y/∂A))`` (Chefer et al. 2021, "Generic
    Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers"); ``∂y/∂A`` is the
    gradient of a call's output times its values. Of a decoder that reads an encoder's tokens, what flows from these.

    Args:
        module, inputs: as :func:`generate` takes them.
        ids: numbers of the tokens to write.
        kinds: for each of the decoder's calls in a step, whether it reads an encoder's tokens.
        skipped: number of calls before them.
        asked: for each step that is asked for, the factors of logits in the score y, by number of the token.
        is_relevance: relevance in place of rollout.

    Returns:
        ``"token"`` and ``"step logit"``.

    Raises:
        MethodError: the decoder's attention is not that of torch's kernel.
    """
    kept = KeptCalls(skipped, is_relevance)
    with torch.no_grad(), kept:
        logits = generate(module, inputs, 0, ids, lambda: kept.steps.append([]), is_relevance).logits
    steps = kept.steps[:-1]
    if any(len(calls) != len(kinds) for calls in steps):
        raise MethodError(
            "rollout and relevance need attention by torch's kernel: expected a module that was opened with "
            "attn_implementation='sdpa'"
        )
    outputs, gradients = [output for calls in steps for _, output in calls], list[torch.Tensor | None]()
    if is_relevance:
        with torch.enable_grad():
            score = torch.stack(
                [factor * logits[step, token] for step, each in asked.items() for token, factor in each.items()]
            ).sum()
        gradients += torch.autograd.grad(score, outputs, allow_unused=True)
    prompt = steps[0][kinds.index(False)][0]["key"].shape[-2]
    row = torch.zeros(prompt + len(steps) - 1, device=outputs[0].device)
    row[[prompt - 1 + step for step in asked]] = 1 / len(asked)
    share, crossed = (1.0, None) if is_relevance else (0.5, None)
    for number in reversed(range(len(kinds))):
        read = torch.zeros_like(row)
        for step, calls in enumerate(steps):
            first, count = (0, prompt) if step == 0 else (prompt + step - 1, 1)
            gradient = gradients[step * len(kinds) + number] if is_relevance else None
            if is_relevance and gradient is None:
                continue
            for rows, weights in _mean_weights(*calls[number], count, gradient):
                added = row[first + rows.start : first + rows.stop] @ weights
                if kinds[number]:
                    crossed = share * added if crossed is None else crossed + share * added
                else:
                    end = first + count
                    read[end - len(added) : end] += added
        row = share * row if not is_relevance and kinds[number] else row
        row = row if kinds[number] else share * (row + read)
    return (row if crossed is None else crossed).cpu(), logits.detach()


def _mean_weights(
    given: Mapping[str, Any], output: torch.Tensor, count: int, gradient: torch.Tensor | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The mean over heads of the attention, or of its positive product with its gradient, ``"query key"`` in parts."""
    tensors = {name: given.get(name) for name in ("query", "attn_mask")} | {"output": output, "gradient": gradient}
    if count == 1:
        # The heads of a group may stand in place of queries.
        tensors |= {name: each.flatten(1, 2)[:, :, None] for name, each in tensors.items() if each is not None}
    call = {**given, "query": tensors["query"], "attn_mask": tensors["attn_mask"]}
    call = {name: each.detach() if isinstance(each, torch.Tensor) else each for name, each in call.items()}
    heads, keys = call["query"].shape[1], call["key"].shape[-2]
    size = max(1, MAX_NUMBERS // (heads * keys))
    for start in range(0, count, size):
        rows = slice(start, min(count, start + size))
        part = fused_call(call, (tensors["output"].detach(), output.new_zeros(0)), rows)  # type: ignore[union-attr]
        bias = None if part.bias is None else precise(part.bias).expand(*part.queries.shape[:-1], keys)[0]
        weights = attention_weights(precise(part.queries[0]), precise(part.keys[0]), part.scale, bias)
        if gradient is not None:
            slopes = precise(tensors["gradient"])[0, :, rows] @ precise(part.values[0]).mT  # type: ignore[arg-type]
            weights = (weights * slopes).clamp(min=0)
        yield rows, weights.mean(0)
