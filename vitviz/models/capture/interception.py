"""Observes every call of attention of a module during its own forward pass.

torch's function modes report the functions that a module calls, with their arguments, in this thread only: nothing is
hooked, replaced or set. Three kinds of attention are recognised: ``scaled_dot_product_attention``,
``torch.nn.MultiheadAttention``, and attention written out by hand.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

from vitviz.attention.softmax import attend_with_sums
from vitviz.models.capture.calls import AttentionCall, as_bias, causal_bias, repeat_groups
from vitviz.models.capture.eager_attention import EagerAttentionTracer, Function
from vitviz.models.capture.heads import HeadJoiner
from vitviz.models.capture.multi_head import multi_head_call

_POSITIONAL = Parameter.POSITIONAL_OR_KEYWORD
# torch's builtin function exposes no signature.
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
_CONVOLUTION = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
# Functions that take tokens in an order, which may depend on the picture.
_ORDERING = {
    *(torch.Tensor.__getitem__, torch.Tensor.gather, torch.gather, torch.Tensor.index_select, torch.index_select),
    *(torch.Tensor.take_along_dim, torch.take_along_dim, torch.Tensor.masked_select, torch.masked_select),
}


class Interception(TorchFunctionMode):
    """Passes every call of attention to a function, which returns the output for the module.

    Args:
        on_call: receives the calls in order, and returns the output with which the module continues, usually the
            call's own. An exception from it ends the forward pass.
        on_result: receives every function with its arguments and result, after ``on_call`` for the call that it
            completes, and returns the result with which the module continues. None to skip this.
    """

    def __init__(
        self,
        on_call: Callable[[AttentionCall], torch.Tensor],
        on_result: Callable[[Function, tuple[Any, ...], Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.on_call, self.on_result = on_call, on_result
        self.eager_attention, self.heads = EagerAttentionTracer(), HeadJoiner()
        self.calls = self.layers = 0
        """Number of calls so far, and without those whose heads were joined."""
        self.projection: tuple[torch.Tensor, torch.Tensor] | None = None
        """Input and output of the last linear map so far."""
        self.indices: list[int] = []
        """Hashes of the numbers by which tensors were taken in an order."""

    def __torch_function__(
        self, function: Function, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = self._result(function, args, dict(kwargs or {}))
        if function in _ORDERING:
            self.indices += [_hash(each) for each in _indices((*args[1:], *(kwargs or {}).values()))]
        joined = self.heads.observe(function, args, kwargs or {}, result)
        result = result if joined is None else self._report(joined)
        if self.on_result is None:
            return result
        return self.on_result(function, _convolution(args, kwargs) if function is F.conv2d else args, result)

    def _result(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function is F.scaled_dot_product_attention:
            return self._report(self._with_tokens(_fused_call(args, kwargs)))
        result = function(*args, **kwargs)
        if function is F.multi_head_attention_forward:
            output, weights = result
            return self._report(multi_head_call(args, kwargs, output)), weights
        if function is F.linear:
            self.projection = (args[0] if args else kwargs["input"], result)
            return result
        call = self.eager_attention.observe(function, args, kwargs, result, self.layers)
        return result if call is None else self._report(self._with_tokens(call))

    def _report(self, call: AttentionCall) -> torch.Tensor:
        call = replace(call, number=self.calls)
        self.calls += 1
        self.layers += 1 - len(call.parts)
        output = self.on_call(call)
        self.heads.add(call, output)
        return output

    def _with_tokens(self, call: AttentionCall) -> AttentionCall:
        """The call with the input of the last linear map, if that has as many tokens as there are keys."""
        tokens = None if self.projection is None else self.projection[0]
        if tokens is None or tokens.ndim < 3:
            return call.aligned()
        if tokens.shape[-2] == call.key_count:
            call = replace(call, tokens=tokens)
        windows, rest = divmod(math.prod(tokens.shape[:-1]), call.key_count)
        return call.aligned(1 if rest else windows)


def _convolution(args: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """All arguments of a convolution by place, with two numbers for each step."""
    given: dict[str, Any] = {"bias": None, "stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    given |= {**dict(zip(_CONVOLUTION, args, strict=False)), **(kwargs or {})}
    pairs = {name: (given[name],) * 2 for name in ("stride", "padding", "dilation") if isinstance(given[name], int)}
    return tuple((given | pairs)[name] for name in _CONVOLUTION)


def _indices(arguments: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors of whole numbers or of True and False among the arguments."""
    for each in arguments:
        if isinstance(each, tuple | list):
            yield from _indices(each)
        elif isinstance(each, torch.Tensor) and not each.is_floating_point():
            yield each


def _hash(index: torch.Tensor) -> int:
    # Of a number for all features, once.
    once = tuple(slice(0, 1 if stride == 0 else None) for stride in index.stride())
    return hash(index.detach()[once].cpu().numpy().tobytes())


def _fused_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AttentionCall:
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = bound.arguments
    queries, keys, values = arguments["query"], arguments["key"], arguments["value"]
    if _is_plain(arguments):
        output, log_sums = attend_with_sums(queries, keys, values, arguments["scale"])
    else:
        output, log_sums = F.scaled_dot_product_attention(*args, **kwargs), None
    bias = as_bias(arguments["attn_mask"], queries)
    if arguments["is_causal"]:
        bias = causal_bias(queries, keys)
    scale = queries.shape[-1] ** -0.5 if arguments["scale"] is None else arguments["scale"]
    if queries.ndim > 3 and keys.ndim > 3:
        keys, values = (repeat_groups(groups, queries.shape[-3]) for groups in (keys, values))
    return AttentionCall(queries, keys, values, scale, bias, output, log_sums=log_sums)


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    """Whether these arguments of the fused function are three tensors and a scale, without mask, dropout or groups."""
    tensors = [arguments[name] for name in ("query", "key", "value")]
    if arguments["attn_mask"] is not None or any(arguments[name] for name in ("dropout_p", "is_causal", "enable_gqa")):
        return False
    return all(type(tensor) is torch.Tensor and tensor.ndim == 4 for tensor in tensors)
