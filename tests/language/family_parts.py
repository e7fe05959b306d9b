"""What small random vision-language models have in common: sizes, and a tokenizer of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

from tests.reference_packages import transformers as hf

WORDS = ("what", "is", "this", "a", "cat", "dog", "describe", "the", "picture", ":", "\n")
QUESTION = "what is this"
EDGE, PATCH, WIDTH = 56, 14, 32
VISION = {
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": EDGE,
    "patch_size": PATCH,
}
TEXT = {
    "vocab_size": 256,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 8192,
    "pad_token_id": 1,
    "bos_token_id": 2,
    "eos_token_id": 3,
}
BART = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
SQUARE = {"height": EDGE, "width": EDGE}
Made = tuple[Any, Any, str]
"""A module, its processor, and a question with what stands for the picture."""


def tokenizer(*special: str, **named: str) -> Any:
    """A tokenizer of words, with special tokens; ``image_token="<image>"`` also sets ``image_token_id``."""
    vocabulary = dict.fromkeys(["<unk>", "<pad>", "<s>", "</s>", *special, *named.values(), *WORDS])
    for number in range(len(vocabulary), 200):
        vocabulary[f"w{number}"] = None
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(vocabulary)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    found: Any = hf.PreTrainedTokenizerFast(tokenizer_object=core, **names)
    found.add_special_tokens({"additional_special_tokens": list(dict.fromkeys([*special, *named.values()]))})
    for name, word in named.items():
        setattr(found, name, word)
        setattr(found, f"{name}_id", found.convert_tokens_to_ids(word))
    return found


def ids_of(words: Any, names: Sequence[str], tokens: Sequence[str]) -> dict[str, int]:
    """The numbers of tokens by the names of a configuration."""
    return {name: words.convert_tokens_to_ids(token) for name, token in zip(names, tokens, strict=True)}
