"""A second pass that writes the same text, and what of it flows to a word through all layers.

It is the same generation, with the tokens given, so that the network computes the same numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from vitviz.attention.precision import plain_torch, precise
from vitviz.errors.kinds import MethodError
from vitviz.language.generation import generate
from vitviz.language.prompts import Prompt
from vitviz.language.record import Recorder, call_weights
from vitviz.models.watched.reader import fused_call

# The most numbers of attention that are computed at once.
MAX_NUMBERS = 2**24
NAMES = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")


@dataclass(eq=False)
class KeptCalls(TorchFunctionMode):
    """Keeps the decoder's calls of torch's attention, their arguments by name and their output.

    Args:
        skipped: number of calls before the decoder's, in the first step.
        needs_gradients: whether gradients with regard to the outputs are wanted; what is skipped needs none.
    """

    skipped: int
    needs_gradients: bool
    calls: list[tuple[dict[str, Any], torch.Tensor]] = field(default_factory=list)

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
        self.calls.append((dict(zip(NAMES, args, strict=False)) | given, output))
        return output


@torch.inference_mode(False)
@plain_torch()
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
    mode = KeptCalls(recorder.skipped, is_relevance)
    with mode:
        _, logits = generate(prompt, prompt.inputs(), ids=ids)
    outputs = [output for _, output in mode.calls]
    if len(outputs) != len(layers) * len(ids):
        raise MethodError(
            "rollout and relevance need attention by torch's scaled_dot_product_attention; expected a module that "
            "calls it, as with attn_implementation='sdpa'"
        )
    share, gradients = 0.5, tuple[torch.Tensor | None, ...]([None] * len(outputs))
    if is_relevance:
        with torch.enable_grad():
            scores = [factor * logits[step, token] for step in factors for token, factor in factors[step].items()]
        share, gradients = 1.0, torch.autograd.grad(scores, outputs, materialize_grads=True)
    own = next(layer.prompt for layer in layers if not layer.is_cross)
    row, crossed = torch.zeros(own + len(ids) - 1, device=logits.device), torch.zeros((), device=logits.device)
    row[[own - 1 + step for step in factors]] = 1 / len(factors)
    for number, layer in reversed([*enumerate(layers)]):
        read = torch.zeros_like(row)
        for step, place in enumerate(range(number, len(outputs), len(layers))):
            # The first step reads the prompt, each other one the token before.
            start, stop = own + step - 1 if step else 0, own + step
            added = share * _pass_on(row[start:stop], *mode.calls[place], gradients[place])
            if layer.is_cross:
                crossed = crossed + added
            else:
                # A sliding window has dropped the first tokens.
                read[stop - len(added) : stop] += added
        row = share * row + read
    return (crossed if crossed.ndim else row).cpu(), logits.detach()


def _pass_on(
    row: torch.Tensor, given: Mapping[str, Any], output: torch.Tensor, gradient: torch.Tensor | None
) -> torch.Tensor:
    """What a row ``"token"`` of those that ask passes on to the keys of a call, in the mean of the heads: ``"key"``.

    By the attention, or by its positive product with its gradient, which that of the output gives.
    """
    _, heads, count, _ = output.shape
    if count % len(row):
        raise MethodError(
            "rollout and relevance need layers that read for each token of the prompt; this network has some that read "
            "for the last one alone, by keys of other layers"
        )
    # The heads of a group may stand in place of queries if one token asks.
    asking, heads = row.expand(count), heads * count // len(row)
    size = max(1, MAX_NUMBERS // (heads * given["key"].shape[-2]))
    total = torch.zeros((), device=row.device)
    for start in range(0, count, size):
        rows = slice(start, start + size)
        call = fused_call(given, (output,), rows)
        # Padding before the prompt reads nothing. Any other NaN is in the word's probability, too, and refused.
        weights = call_weights(call)[0].nan_to_num()
        if gradient is not None:
            weights = (weights * (precise(gradient[0, :, rows]) @ precise(call.values[0]).mT)).clamp(min=0)
        total = total + (asking[rows] @ weights.to(row)).sum(0) / heads
    return total
