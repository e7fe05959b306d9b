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
from vitviz.errors.kinds import MethodError
from vitviz.language.generation import generate
from vitviz.language.prompts import Prompt
from vitviz.language.record import Recorder, call_weights
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


@torch.no_grad()
def flow(
    prompt: Prompt, ids: Sequence[int], recorder: Recorder, factors: Mapping[int, Mapping[int, float]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """What flows to the tokens with factors, from each token that the layers read, and the logits of the pass.

    Rollout: ``r ← r (Ā + I) / 2`` from the last layer down, where r is a row that begins with 1 at the tokens whose
    logits are asked for, and Ā is the mean attention of the heads (Abnar & Zuidema 2020, "Quantifying Attention Flow in
    Transformers"). Relevance: ``r ← r + r Ā`` with ``Ā = mean(relu(A ⊙ ∂y/∂A))`` (Chefer et al. 2021, "Generic
    Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers"); ``∂y/∂A`` is the
    gradient of a call's output times its values. Of a decoder that reads an encoder's tokens, what flows from these.

    Args:
        prompt: pictures and question.
        ids: numbers of the tokens to write.
        recorder: of the first pass.
        factors: for each step that counts, the factors of logits in the score y, by number of the token; without
            any, it is rollout in place of relevance.

    Returns:
        ``"token"`` and ``"step logit"``.

    Raises:
        MethodError: the decoder's attention is not that of torch's kernel.
    """
    layers, is_relevance = recorder.layers, any(factors.values())
    kept = KeptCalls(recorder.skipped, is_relevance)
    with torch.no_grad(), kept:
        _, logits = generate(prompt, prompt.inputs(), 0, ids, lambda: kept.steps.append([]), is_relevance)
    steps = kept.steps[:-1]
    if any(len(calls) != len(layers) for calls in steps):
        raise MethodError(
            "rollout and relevance need attention by torch's scaled_dot_product_attention; expected a module that "
            "calls it, as with attn_implementation='sdpa'"
        )
    if is_relevance:
        gradient = torch.zeros_like(logits)
        for step, each in factors.items():
            gradient[step, list(each)] = gradient.new_tensor(list(each.values()))
        logits.backward(gradient, inputs=[output for calls in steps for _, output in calls])
    own = next(layer.prompt for layer in layers if not layer.is_cross)
    row, share = torch.zeros(own + len(steps) - 1, device=logits.device), 1.0 if is_relevance else 0.5
    row[[own - 1 + step for step in factors]] = 1 / len(factors)
    crossed = torch.zeros((), device=logits.device)
    for number, layer in reversed([*enumerate(layers)]):
        read = torch.zeros_like(row)
        for step, calls in enumerate(steps):
            first, count = (0, own) if step == 0 else (own + step - 1, 1)
            for rows, weights in _mean_weights(*calls[number], count, is_relevance):
                added = row[first + rows.start : first + rows.stop] @ weights
                if layer.is_cross:
                    crossed = crossed + share * added
                else:
                    # A sliding window has dropped the first tokens.
                    read[first + count - len(added) : first + count] += added
        row = share * (row + read)
    return (crossed if crossed.ndim else row).cpu(), logits.detach()


def _mean_weights(
    given: Mapping[str, Any], output: torch.Tensor, count: int, is_relevance: bool
) -> Iterator[tuple[slice, torch.Tensor]]:
    """The mean over heads of the attention, or of its positive product with its gradient, ``"query key"`` in parts."""
    tensors = {name: given.get(name) for name in ("query", "attn_mask")} | {"output": output, "gradient": output.grad}
    if is_relevance and output.grad is None:
        return
    if count == 1:
        # The heads of a group may stand in place of queries.
        tensors = {name: each if each is None else each.flatten(1, 2)[:, :, None] for name, each in tensors.items()}
    call: dict[str, Any] = {**given, **tensors}
    size = max(1, MAX_NUMBERS // (call["query"].shape[1] * call["key"].shape[-2]))
    for start in range(0, count, size):
        rows = slice(start, min(count, start + size))
        part = fused_call(call, (call["output"], output.new_zeros(0)), rows)
        weights = call_weights(part)[0]
        if is_relevance:
            slopes = precise(call["gradient"][0, :, rows]) @ precise(part.values[0]).mT
            weights = (weights * slopes).clamp(min=0)
        yield rows, weights.mean(0)
