"""A generative vision-language model in memory, with what prepares its pictures and texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.models.watched.state import check_device, check_state


@dataclass(frozen=True, eq=False)
class LanguageModel(AttributeAdvice):
    """A network that writes about pictures: :func:`vitviz.ask` asks it.

    Args:
        name: the user's name for it, or its own.
        module: of transformers, in evaluation mode; it is not changed.
        processor: makes its inputs of pictures and a text.
        tokenizer: makes texts of its tokens; None for tokens that have numbers alone.

    Raises:
        ConfigError: the module writes nothing, or it cannot be watched in its state.

    >>> vitviz.load(module, processor=processor)
    LanguageModel(name='LlavaForConditionalGeneration')
    """

    name: str
    module: nn.Module = field(repr=False)
    processor: Any = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not callable(getattr(self.module, "generate", None)):
            raise ConfigError(
                f"{self.name}: processor: expected a model of transformers that writes, which has generate()"
            )
        check_state(self.module)

    @classmethod
    def of(cls, module: nn.Module, processor: Any, tokenizer: Any, device: str | torch.device | None) -> LanguageModel:
        """The model of a module, as :func:`vitviz.load` takes it."""
        from vitviz.weights.modules.load import module_name
        from vitviz.weights.modules.unwrap import unwrap

        module = unwrap(module)
        if device is not None:
            check_device(module, torch.device(device))
        tokenizer = getattr(processor, "tokenizer", None) if tokenizer is None else tokenizer
        return cls(module_name(module), module, processor, tokenizer)

    def ids(self, text: str) -> tuple[int, ...]:
        """Numbers of the tokens of a text that it is to write.

        Raises:
            MethodError: its tokenizer is not known, or the text is empty.
        """
        ids = () if self.tokenizer is None else tuple(self.tokenizer.encode(text, add_special_tokens=False))
        if not ids:
            raise MethodError(f"text {text!r}: no token of a known tokenizer; expected load(…, tokenizer=tokenizer)")
        return ids
