"""A network that writes, greedily or a text that is given, token by token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class Generation:
    """What a network wrote.

    Args:
        ids: numbers of the tokens.
        logits: ``"step token"``, as the network computed them, before any rules of writing.
    """

    ids: tuple[int, ...]
    logits: torch.Tensor


def generate(
    module: nn.Module,
    inputs: Mapping[str, Any],
    tokens: int,
    ids: Sequence[int] | None = None,
    on_step: Callable[[], Any] = lambda: None,
    needs_gradients: bool = False,
) -> Generation:
    """Let a network write.

    Args:
        module: of transformers.
        inputs: as its processor makes them.
        tokens: the most tokens to write.
        ids: numbers of the tokens that it has to write; None for those that it prefers.
        on_step: called after the calls of each step.
        needs_gradients: whether the logits keep what their gradients need.
    """
    given = iter(ids or ())

    def choose(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        on_step()
        if ids is None:
            return scores
        return torch.full_like(scores, -torch.inf).index_fill_(1, input_ids.new_tensor([next(given)]), 0)

    own: Any = getattr(type(module), "generate")  # noqa: B009
    # Below its decorators, of which one is no_grad.
    function = inspect.unwrap(own) if needs_gradients else own
    with nullcontext() if needs_gradients else torch.no_grad():
        result = function(
            module,
            **inputs,
            max_new_tokens=tokens if ids is None else len(ids),
            do_sample=False,
            num_beams=1,
            use_cache=True,
            logits_processor=[choose],
            output_logits=True,
            return_dict_in_generate=True,
            # The end may be among the tokens that are given.
            **({} if ids is None else {"eos_token_id": None}),
        )
    logits = torch.cat([each[:1].float() for each in result.logits])
    return Generation(tuple(result.sequences[0, -len(logits) :].tolist()), logits)
