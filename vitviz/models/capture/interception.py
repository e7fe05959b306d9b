"""Every call of attention of a module, while its own forward pass runs.

torch's function modes see what a module calls, with its arguments, in this thread alone: nothing is hooked, replaced or
set. Three ways to attend are known: ``scaled_dot_product_attention``, ``torch.nn.MultiheadAttention``, and attention
written out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode

from vitviz.attention.softmax import attend_with_sums, tells_sums
from vitviz.models.capture.calls import AttentionCall, as_bias, causal_bias, repeated
from vitviz.models.capture.multi_head import multi_head_call
from vitviz.models.capture.written_out import Function, WrittenOut

_POSITIONAL = Parameter.POSITIONAL_OR_KEYWORD
# torch's builtin has no signature of its own.
_SIGNATURE = Signature(
    [
        *(Parameter(name, _POSITIONAL) for name in ("query", "key", "value")),
        *(
            Parameter(name, _POSITIONAL, default=default)
            for name, default in (
                *(("attn_mask", None), ("dropout_p", 0.0), ("is_causal", False)),
                *(("scale", None), ("enable_gqa", False)),
            )
        ),
    ]
)


class Interception(TorchFunctionMode):
    """Hands every call of attention to a function, which says what the module gets instead.

    Args:
        on_call: receives the calls in order, and returns what the module goes on with: the call's own output, as a
            rule. An exception that it raises ends the forward pass.
        on_result: receives every function with its arguments and result, behind the calls that it completes, and
            returns what the module goes on with. None for nothing.
    """

    def __init__(
        self,
        on_call: Callable[[AttentionCall], torch.Tensor],
        on_result: Callable[[Function, tuple[Any, ...], Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.on_call, self.on_result = on_call, on_result
        self.written_out = WrittenOut()
        self.projection: tuple[torch.Tensor, torch.Tensor] | None = None
        """Input and output of the last linear map."""

    def __torch_function__(
        self, function: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = self._result(function, args, dict(kwargs or {}))
        return result if self.on_result is None else self.on_result(function, args, result)

    def _result(self, function: Function, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        if function is F.scaled_dot_product_attention:
            return self.on_call(self._with_tokens(_fused_call(args, named)))
        result = function(*args, **named)
        if function is F.multi_head_attention_forward:
            output, weights = result
            return self.on_call(multi_head_call(args, named, output)), weights
        if function is F.linear:
            self.projection = (args[0] if args else named["input"], result)
            return result
        call = self.written_out.observe(function, args, named, result)
        return result if call is None else self.on_call(self._with_tokens(call))

    def _with_tokens(self, call: AttentionCall) -> AttentionCall:
        """With what was projected last, if that has as many tokens as there are keys."""
        tokens = None if self.projection is None else self.projection[0]
        if tokens is None or tokens.ndim < 3:
            return call.aligned()
        if tokens.shape[-2] == call.key_count:
            call = replace(call, tokens=tokens)
        windows, rest = divmod(math.prod(tokens.shape[:-1]), call.key_count)
        return call.aligned(1 if rest else windows)


def _fused_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AttentionCall:
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    queries, keys, values = given["query"], given["key"], given["value"]
    if _is_plain(given):
        output, log_sums = attend_with_sums(queries, keys, values, given["scale"])
    else:
        output, log_sums = F.scaled_dot_product_attention(*args, **kwargs), None
    bias = as_bias(given["attn_mask"], queries)
    if given["is_causal"]:
        bias = causal_bias(queries, keys)
    scale = queries.shape[-1] ** -0.5 if given["scale"] is None else given["scale"]
    if queries.ndim > 3 and keys.ndim > 3:
        keys, values = (repeated(part, queries.shape[-3]) for part in (keys, values))
    return AttentionCall(queries, keys, values, scale, bias, output, log_sums=log_sums)


def _is_plain(given: Mapping[str, Any]) -> bool:
    """Whether torch hands these arguments of the fused function to the kernel that tells the sums, as they are."""
    parts = [given[name] for name in ("query", "key", "value")]
    if given["attn_mask"] is not None or given["dropout_p"] or given["is_causal"] or given["enable_gqa"]:
        return False
    if not all(type(part) is torch.Tensor and part.ndim == 4 for part in parts) or not tells_sums(*parts):
        return False
    return torch._fused_sdp_choice(*parts, scale=given["scale"]) == SDPBackend.FLASH_ATTENTION.value
