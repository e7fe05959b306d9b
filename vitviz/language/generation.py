"""A network that writes, greedily or a text that is given, token by token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from vitviz.attention.precision import plain_torch
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.language.prompts import Prompt
from vitviz.models.watched.module_state import device_of, dtype_of

# Settings of transformers that end a text, or hasten its end.
ENDS = ("eos_token_id", "stop_strings", "max_time", "exponential_decay_length_penalty")


@torch.inference_mode(False)
@plain_torch()
@torch.no_grad()
def generate(
    prompt: Prompt,
    inputs: Mapping[str, Any],
    limit: int = 0,
    ids: Sequence[int] | None = None,
    on_step: Callable[[], Any] = lambda: None,
) -> tuple[tuple[int, ...], torch.Tensor]:
    """Let a network write, without gradients; what runs inside may switch them on.

    Args:
        prompt: with the network.
        inputs: as :meth:`Prompt.inputs` makes them.
        limit: the most tokens to write.
        ids: numbers of the tokens that it has to write; None for those that it prefers.
        on_step: called after the calls of each step.

    Returns:
        Numbers of the tokens, and ``"step token"``, the logits as the network computed them, before any rules of
        writing.
    """
    given = iter(ids or ())

    def choose(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if len(scores) > 1:
            raise ConfigError(f"it writes {len(scores)} texts, each about one picture; expected one picture")
        on_step()
        return (
            scores
            if ids is None
            else torch.full_like(scores, -torch.inf).index_fill_(1, input_ids.new_tensor([next(given)]), 0)
        )

    module: Any = prompt.model.module
    # Below its decorators, of which one is no_grad.
    own = inspect.unwrap(type(module).generate)
    result = own(
        module,
        **tree_map_only(
            torch.Tensor,
            lambda each: each.to(device_of(module), dtype_of(module) if each.is_floating_point() else None),
            dict(inputs),
        ),
        max_new_tokens=limit if ids is None else len(ids),
        do_sample=False,
        num_beams=1,
        num_return_sequences=1,
        use_cache=True,
        # Each step is read as one call of each layer.
        prefill_chunk_size=None,
        # A static one has keys of tokens that are not written yet.
        cache_implementation="dynamic",
        # Other ways to write, which the module's own settings may ask for.
        prompt_lookup_num_tokens=None,
        penalty_alpha=None,
        dola_layers=None,
        logits_processor=[choose],
        # For stop strings.
        tokenizer=prompt.model.tokenizer,
        output_logits=True,
        return_dict_in_generate=True,
        # What ends a text may be among the tokens that are given. Functions of a class's own set it themselves.
        **dict.fromkeys(ENDS if ids is not None and own.__qualname__ == "GenerationMixin.generate" else ()),
    )
    # A function of a class's own has left the gradients of what it called.
    with torch.enable_grad():
        logits = torch.cat([each.float() for each in result.logits])
    if len(logits) < len(ids or ()):
        raise MethodError("text: the network ends before all of it is written; expected one without what ends its own")
    return tuple(result.sequences[0, -len(logits) :].tolist()), logits
