"""Suggestions in messages: names of checkpoints, and patterns of keys to leave out."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from collections.abc import Collection, Iterable, Mapping

from vitviz.errors.messages import choices, describe, nearest
from vitviz.system.paths import missing
from vitviz.weights.formats.names import is_weight_file
from vitviz.weights.model import Model

HUB = "hf:"
# Before a package's own name: "timm:vit_small_patch16_dinov3.lvd1689m", "open_clip:ViT-B-32/laion2b_s34b_b79k".
PACKAGES = ("timm:", "open_clip:")
# A repository as other packages and browsers write it, or only its name.
HUB_ADDRESS = re.compile(
    r"(?:hf[-_]hub:|huggingface:|hf:|hf://|https?://(?:www\.)?(?:huggingface\.co|hf\.co)/)?([\w-][\w.-]*/[\w.-]+?)/?",
    re.ASCII | re.IGNORECASE,
)
# Limits of proposed patterns: prefixes of a key that are tried, and letters of all patterns.
MAX_STARTS, MAX_PATTERN_CHARS = 4, 300
# Names of checkpoints that a message proposes.
MAX_NAMES = 4


def no_checkpoint(source: object, names: Iterable[str], bundled: str) -> str:
    """The message for a source that is neither a checkpoint's name nor a path.

    Args:
        source: of any type.
        names: of the named checkpoints.
        bundled: the name of the bundled one.
    """
    if isinstance(source, Mapping):
        return (
            "a dictionary, such as a state dict: it names no architecture; expected its module, vitviz.load(module) "
            "after module.load_state_dict(…), or its file, after torch.save(…, 'model.pth')"
        )
    if isinstance(source, type):
        return f"the class {source.__name__}: expected a module made of it, with weights, in evaluation mode"
    if isinstance(source, Model):
        return f"{source!r}: loaded already; expected it as it is, such as vitviz.analyze(image, model)"
    suggestion = place = ""
    text = str(source) if isinstance(source, os.PathLike) else source
    if isinstance(text, str):
        close, repository = close_names(text, names), HUB_ADDRESS.fullmatch(text)
        suggestion = f"did you mean {choices(close)}? " if close else ""
        if is_weight_file(text) or (repository is None and "/" in text):
            place = f" ({missing(text)})"
        elif repository is not None:
            suggestion += f"of the hub, write {HUB + repository[1]!r}; "
        elif "_patch" in text:
            suggestion += f"of timm, write {PACKAGES[0] + text!r}; "
    return (
        f"{describe(text)}: neither a checkpoint's name nor a file or folder{place}; {suggestion}"
        f"vitviz.list_models() or `vitviz models` lists the names, {bundled!r} is bundled"
    )


def close_names(text: str, names: Iterable[str]) -> list[str]:
    """Names that a text is a part of, or that are a part of it; else the most similar one, if there is one.

    >>> close_names("dino", ["dino_vits16", "mae_vitb16", "dino_vits8"])
    ['dino_vits16', 'dino_vits8']
    """
    plain = {name: re.sub(r"\W|_", "", name.casefold()) for name in (text, *names)}
    query = plain.pop(text, "")
    close = [name for name, letters in plain.items() if len(query) > 2 and (query in letters or letters in query)]
    return close[:MAX_NAMES] or [name for name in [nearest(text, plain)] if name is not None]


def ignore_argument(keys: Iterable[str], needed: Collection[str]) -> str:
    """An argument of ``load`` to paste that leaves out these keys, such as ``"ignore=['decoder.*']"``.

    Without patterns for keys that would take too many of them.

    Args:
        keys: to leave out.
        needed: keys that no pattern may match.
    """
    patterns: list[str] = []
    for key in keys:
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns):
            continue
        literal = glob.escape(key)
        # All that begins like it, the same in every layer, or the key itself.
        starts = [f"{glob.escape(key[: match.end()])}*" for match in re.finditer(r"[./]", key)]
        possible = [*starts[:MAX_STARTS], re.sub(r"\.[0-9]{1,6}\.", ".*.", literal, count=1), literal]
        patterns.append(next(each for each in possible if each == literal or not fnmatch.filter(needed, each)))
        if len(str(patterns)) > MAX_PATTERN_CHARS:
            return "ignore=[…]"
    return f"ignore={patterns}"
