"""Prompts: pictures and a question, and the inputs that the network's processor makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image

from vitviz.errors.kinds import ConfigError, MethodError
from vitviz.errors.messages import describe
from vitviz.images.opening import open_image
from vitviz.models.watched.outputs import module_errors
from vitviz.visualization.arithmetic import is_same_picture
from vitviz.weights.language_model import LanguageModel

Question = str | Sequence[Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class Prompt:
    """A question about pictures.

    Args:
        model: that answers.
        pictures: RGB.
        question: of the user.
        arguments: further ones of the processor: the text, with the marks of the pictures in it; empty for a network
            that takes no text.
    """

    model: LanguageModel
    pictures: tuple[Image.Image, ...]
    question: Question
    arguments: Mapping[str, Any]

    @classmethod
    def of(cls, model: LanguageModel, pictures: Sequence[Image.Image], question: Any) -> Prompt:
        """The prompt that a model's chat template makes of a question or of messages, or the question itself.

        Raises:
            MethodError: the question is no text and no messages, these have other pictures, or the processor has no
                template for them.
        """
        processor, fields = model.processor, (model, tuple(pictures), question)
        has_template = getattr(processor, "chat_template", None) is not None
        marks = [
            mark for name in ("boi_token", "image_token") if isinstance(mark := getattr(processor, name, None), str)
        ]
        if isinstance(question, str):
            # A network that only describes has no text in which a token stands for the picture.
            reads_text = has_template or hasattr(getattr(model.module, "config", None), "image_token_id")
            if model.tokenizer is not None and (question or reads_text):
                model.ids(question, "question")
            # A question that has what stands for the picture is a prompt already.
            if any(mark in question for mark in marks):
                return cls(*fields, {"text": question})
            if not has_template:
                marked = cls(*fields, {"text": " ".join([*marks[:1] * len(pictures), question])} if question else {})
                try:
                    marked.inputs()
                except ConfigError:
                    # Some processors put it there themselves.
                    return cls(*fields, {"text": question})
                return marked
            question = [
                {
                    "role": "user",
                    "content": [*({"type": "image"} for _ in pictures), {"type": "text", "text": question}],
                }
            ]
        if (
            not question
            or not isinstance(question, Sequence)
            or not all(isinstance(each, Mapping) for each in question)
        ):
            raise MethodError(
                f"question {describe(question)}: expected a text that is not empty, or messages with 'role' and "
                "'content'"
            )
        # What transformers itself would open.
        parts = [part for each in question for part in each.get("content") or () if isinstance(part, Mapping)]
        own = [
            open_image(part[name]) for part in parts for name in ("image", "path", "url") if part.get(name) is not None
        ]
        if own and (len(own) != len(pictures) or not all(map(is_same_picture, own, pictures))):
            raise MethodError(
                "question: the pictures in its messages are not those of image; expected the same ones, or "
                "{'type': 'image'} alone for each"
            )
        with module_errors(f"question: {model.name} has no chat template that takes its messages", MethodError):
            text = processor.apply_chat_template(list(question), add_generation_prompt=True)
            begin = getattr(model.tokenizer, "bos_token", None)
            # A text that begins with it has all special tokens, as where transformers itself reads the messages.
            special = {"add_special_tokens": False} if begin and text.startswith(begin) else {}
            return cls(*fields, {"text": text, **special})

    def inputs(self, pictures: Sequence[Image.Image] | None = None) -> dict[str, Any]:
        """The network's inputs, for these pictures or for others of the same sizes.

        Raises:
            ConfigError: the processor fails.
        """
        images = list(pictures or self.pictures)
        with module_errors(f"{self.model.name}: its processor fails on the question and the picture", ConfigError):
            one_or_list = images[0] if len(images) == 1 else [images]
            return dict(self.model.processor(images=one_or_list, return_tensors="pt", **self.arguments))
