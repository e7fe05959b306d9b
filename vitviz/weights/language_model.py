"""A generative vision-language model in memory, with what prepares its pictures and texts."""

from __future__ import annotations

from dataclasses import dataclass, field
from inspect import signature
from typing import Any

import torch
from torch import nn

from vitviz.errors.attributes import AttributeAdvice
from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.models.watched.module_state import check_device, check_state


@dataclass(frozen=True, eq=False)
class LanguageModel(AttributeAdvice):
    """A network that writes about pictures: :func:`vitviz.ask` asks it.

    Args:
        name: the user's name for it, or its own.
        module: of transformers, in evaluation mode; it is not changed.
        processor: makes its inputs of pictures and a text.
        tokenizer: makes texts of its tokens; None for tokens that have numbers alone.

    Raises:
        ConfigError: the module writes nothing or takes no pictures, the processor makes no inputs of a picture and a
            text, or the module cannot be watched in its state.

    >>> vitviz.load(module, processor=processor)
    LanguageModel(name='LlavaForConditionalGeneration')
    """

    name: str
    module: nn.Module = field(repr=False)
    processor: Any = field(repr=False)
    tokenizer: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        found, config = self.processor, getattr(self.module, "config", None)
        folder = repr(found if isinstance(found, str) else getattr(config, "_name_or_path", "") or "my_model")
        whole = f"expected what prepares pictures and texts, AutoProcessor.from_pretrained({folder})"
        problems = {
            "expected a model of transformers that writes, which has generate()": not hasattr(self.module, "generate"),
            "the model takes no pictures; expected one of AutoModelForImageTextToText": not any(
                any(word in name for word in ("pixel", "image", "patches"))
                for name in signature(self.module.forward).parameters
            ),
            # A tokenizer, or an image processor where the text has a token for the picture.
            f"{describe(found)} found; {whole}": not callable(found)
            or hasattr(found, "convert_tokens_to_ids")
            or (hasattr(found, "preprocess") and hasattr(config, "image_token_id")),
        }
        for problem in [problem for problem, is_found in problems.items() if is_found]:
            raise ConfigError(f"{self.name}: processor: {problem}")
        check_state(self.module)

    @classmethod
    def of(cls, module: nn.Module, processor: Any, tokenizer: Any, device: str | torch.device | None) -> LanguageModel:
        """The model of a module, as :func:`vitviz.load` takes it."""
        from vitviz.weights.modules.as_model import module_name
        from vitviz.weights.modules.unwrap import unwrap

        module = unwrap(module)
        if device is not None:
            check_device(module, torch.device(device))
        tokenizer = getattr(processor, "tokenizer", None) if tokenizer is None else tokenizer
        return cls(module_name(module), module, processor, tokenizer)

    def ids(self, text: str, name: str = "text") -> tuple[int, ...]:
        """Numbers of the tokens of a text; ``name`` is that of the argument.

        Raises:
            MethodError: its tokenizer is not known, or the text is none, empty or not in its vocabulary.
        """
        if self.tokenizer is None or not isinstance(text, str) or not text.strip():
            expected = "load(…, tokenizer=tokenizer)" if self.tokenizer is None else "a text that is not empty"
            raise MethodError(f"{name} {describe(text)}: expected {expected}")
        numbers = tuple(self.tokenizer.encode(text, add_special_tokens=False))
        if getattr(self.tokenizer, "unk_token_id", None) in numbers and self.tokenizer.unk_token not in text:
            raise MethodError(
                f"{name} {describe(text)}: {self.name} reads it as {describe(self.tokenizer.decode(list(numbers)))}; "
                "expected words of its vocabulary"
            )
        return numbers
