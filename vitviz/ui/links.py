"""The state of a page as the part of its address behind ``?``, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, urlencode

from vitviz.attention.layout import Query
from vitviz.attribution import METHODS
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.errors.messages import nearest, quote
from vitviz.evaluation.probes import PROBES
from vitviz.ui.arguments import parameter_of, target_json
from vitviz.ui.state import ANYTHING, FIRST_VIEW, OWN_MODEL, TOKEN_METHOD, PageState, View

# Before the name of a parameter of the map, of one of the probe, and before what is said of the second view.
PARAMETER, PROBE_PARAMETER, SECOND = "p.", "probe.", "second."
MAX_CHARS, MAX_WORDS = 2**16, 200
# The words for what a view has by itself, where the first view has another.
START, OWN_FIT, TRAINED, LAST, STILL = "start", "own", "trained", "last", "none"
FIELD = {"shared": "shared_scale"}
# The words for what a page has beside its views.
LOOKS = tuple(
    {field: name for name, field in FIELD.items()}.get(part.name, part.name)
    for part in fields(PageState)
    if part.name != "views"
)
# The words for the parts of a target.
TARGET_WORDS = {"text": "words", "like": "like", "patch": "like-patch", "against": "against", "margin": "margin"}
WHOLE = re.compile(r"-?\d{1,12}", re.ASCII)
DECIMAL = re.compile(r"\d{1,6}(\.\d{1,20})?(e-?\d{1,3})?", re.ASCII)
PAIR = re.compile(r"(\d{1,6})[.,](\d{1,6})", re.ASCII)
SOMEBODYS_OWN = "This link shows a checkpoint of somebody's own ({}). Open it under Model to see the same."
# How links of vitviz 0.1 say the same; they had the maps behind "#", or behind "?" with tab=maps.
OLD_RESOLUTIONS = {"as trained": None, "the picture's own": "native"}
OLD_MAPS = {
    "row": (TOKEN_METHOD, {}),
    "column": (TOKEN_METHOD, {"direction": "column"}),
    "rollout": ("rollout", {}),
}
OLD_VALUES = {
    ("query", "pooling query"): None,
    ("target", "most probable"): None,
    ("direction", "looks at"): "row",
    ("direction", "is looked at by"): "column",
    ("reference", "rows (the paper)"): None,
}
OLD_NAMES = {"view": "layout"}


@dataclass(frozen=True)
class Link:
    """What a link says.

    Args:
        state: legal for some model; its classes may still be labels.
        notes: one sentence for every part that could not be read.
    """

    state: PageState
    notes: tuple[str, ...] = ()


def print_link(state: PageState, own_names: Mapping[str, str]) -> str:
    """The part of an address behind ``?``, with it, or nothing: what differs from the page as it opens.

    Args:
        state: legal for its models.
        own_names: what the files of visitors' own checkpoints are called, by the models' ids.
    """
    words = _view_words(state.views[0], FIRST_VIEW, "", own_names)
    if len(state.views) > 1:
        first = state.views[0]
        alike = _alike(first)
        words |= {f"{SECOND}method": state.views[1].method}
        words |= _view_words(state.views[1], alike, SECOND, own_names)
    plain = PageState()
    for name in LOOKS:
        chosen = getattr(state, FIELD.get(name, name))
        if chosen != getattr(plain, FIELD.get(name, name)):
            words[name] = _word(chosen)
    query = urlencode(words, safe=",;:/")
    return f"?{query}" if query else ""


def _alike(first: View) -> View:
    """A second view of the same analysis."""
    same = {name: getattr(first, name) for name in ("model", "step", "picture", "frame", "fit", "resolution")}
    return View(**same)


def _view_words(view: View, plain: View, before: str, own_names: Mapping[str, str]) -> dict[str, str]:
    words: dict[str, str] = {}
    if view.model != plain.model:
        is_own = OWN_MODEL.fullmatch(view.model) is not None
        words["own" if is_own else "model"] = own_names.get(view.model, "?") if is_own else view.model or START
    if view.step != plain.step:
        words["step"] = LAST if view.step is None else str(view.step)
    if view.picture != plain.picture:
        kind, _, name = view.picture.partition(":")
        words[kind] = name
    if view.frame != plain.frame:
        words["frame"] = STILL if view.frame is None else str(view.frame)
    if view.fit != plain.fit:
        words["fit"] = view.fit or OWN_FIT
    if view.resolution != plain.resolution:
        words["resolution"] = TRAINED if view.resolution is None else str(view.resolution)
    if view.method != plain.method or view.parameters:
        words["method"] = view.method
    for name, value in view.parameters.items():
        if isinstance(value, Mapping):
            # One class is written as where there is no other.
            words |= {
                f"{PARAMETER}{name}" if part == "class" else TARGET_WORDS[part]: _word(each)
                for part, each in value.items()
            }
        else:
            words[f"{PARAMETER}{name}"] = _word(value)
    if view.probe != plain.probe or view.probe_parameters:
        words["probe"] = view.probe
        words |= {f"{PROBE_PARAMETER}{name}": _word(value) for name, value in view.probe_parameters.items()}
    if view.pins:
        words["pins"] = ";".join(map(_word, view.pins))
    for name, pairs in (("heads-off", view.heads_off), ("patches-off", view.patches_off)):
        if pairs:
            words[name] = ";".join(f"{first}.{second}" for first, second in pairs)
    return {f"{before}{name}": word for name, word in words.items()}


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(_word, value))
    # The shortest number that is read back as the same.
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def read_link(link: str) -> Link:
    """The state that a link asks for; what is not legal in it is left out, and said.

    Args:
        link: what stands behind ``?`` and, in links of vitviz 0.1, behind ``#``, with both marks.

    Raises:
        MethodError: it is too long.
    """
    query, _, rest = link.partition("#")
    words, old = (_words(part) for part in (query.removeprefix("?"), rest))
    if "map" in old and words.get("tab") != "maps":
        words |= _of_today(old)
    reader = _Reader()
    views = [reader.view(words, "", FIRST_VIEW)]
    if any(name.startswith(SECOND) for name in words) or words.get("layout") in ("two", "difference"):
        views.append(reader.view(words, SECOND, _alike(views[0])))
    state = PageState(tuple(views))
    for name in LOOKS:
        if name in words:
            state = reader.with_look(state, name, words[name])
    return Link(state, tuple(dict.fromkeys(reader.notes)))


def _words(text: str) -> dict[str, str]:
    """The words of a query string; of two of one name the first."""
    if len(text) > MAX_CHARS:
        raise MethodError(f"link of {len(text):,} characters: expected at most {MAX_CHARS:,}")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_WORDS)
    except ValueError:
        raise MethodError(f"link: expected at most {MAX_WORDS} words") from None
    return dict(reversed(pairs))


def _of_today(old: Mapping[str, str]) -> dict[str, str]:
    """What stood behind ``#`` as words behind ``?``."""
    words = {OLD_NAMES.get(name, name): word for name, word in old.items() if name in (*LOOKS, *OLD_NAMES)}
    for before in ("", SECOND) if words.get("layout") in ("two", "difference") else ("",):
        name = old.get(f"{before}map", "row")
        method, parameters = OLD_MAPS.get(name, (name.removeprefix("map "), {}))
        if method not in METHODS:
            continue
        given = {**parameters, "layer": old.get(f"{before}layer"), "head": old.get(f"{before}head")}
        given["query"] = old.get("token")
        legal = [parameter.name for parameter in METHODS[method].parameters]
        words[f"{before}method"] = method
        words |= {f"{before}{PARAMETER}{each}": word for each, word in given.items() if word and each in legal}
    return words


class _Reader:
    """Reads the words of a link, and remembers what it could not read."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def view(self, words: Mapping[str, str], before: str, plain: View) -> View:
        """A view, by the words that begin so; what it does not say is as in another one."""
        own = {name.removeprefix(before): word for name, word in words.items() if name.startswith(before)}
        view = plain
        if "own" in own:
            self.notes.append(SOMEBODYS_OWN.format(" ".join(own["own"].split())[:120]))
        for name, read in _INPUT.items():
            if name in own:
                view = self._with(view, name, own[name], read)
        # Links of vitviz 0.1 have a layer, a head or a token without the name of the map.
        has_parameters = any(name.startswith(PARAMETER) for name in own)
        method = own.get("method", TOKEN_METHOD if has_parameters else plain.method)
        if method not in METHODS:
            self.notes.append(f"Link: there is no map {quote(method)}.")
            return view
        view = replace(view, method=method, parameters=self._parameters(method, own))
        probe = own.get("probe", plain.probe)
        if probe in PROBES:
            given = self._values(PROBES[probe].parameters, PROBE_PARAMETER, own)
            view = replace(view, probe=probe, probe_parameters=given)
        else:
            self.notes.append(f"Link: there is no probe {quote(probe)}.")
        for name, field, read in _LISTS:
            if name in own:
                view = self._with(view, field, own[name], partial(_list, read=read))
        return view

    def _parameters(self, method: str, own: Mapping[str, str]) -> dict[str, Any]:
        found = self._values(METHODS[method].parameters, PARAMETER, own)
        if METHODS[method].class_specific:
            self._read_target(method, own, found)
        return found

    def _values(self, parameters: Sequence[Parameter], before: str, own: Mapping[str, str]) -> dict[str, Any]:
        """Parameters by the words that are called as they are, behind what stands before them."""
        found: dict[str, Any] = {}
        legal = [f"{before}{part.name}" for part in parameters]
        for name in own:
            if name.startswith(before) and name not in legal:
                meant = nearest(name, legal)
                hint = "" if meant is None else f" (did you mean {meant!r}?)"
                self.notes.append(f"Left out of this link: {quote(name)}{hint}.")
        for part in parameters:
            word = own.get(f"{before}{part.name}")
            word = None if word is None else OLD_VALUES.get((part.name, word), word)
            if word is None:
                continue
            try:
                value = parameter_of(part, _read(part, word), ANYTHING)
                found[part.name] = target_json(value) if isinstance(part, ClassTarget) else value
            except VitvizError as error:
                self._leave_out(f"{before}{part.name}", word, error)
        return found

    def _read_target(self, method: str, own: Mapping[str, str], found: dict[str, Any]) -> None:
        """Put a target of several words in the place of a class."""
        first = {"class": found["target"]} if "target" in found else {}
        for kind, others in ((("text",), {}), (("like", "patch"), {}), (("against", "margin"), first)):
            given = {part: own[TARGET_WORDS[part]].strip() for part in kind if own.get(TARGET_WORDS[part], "").strip()}
            if not given:
                continue
            try:
                target = {**others, **{part: _TARGET[part](word) for part, word in given.items()}}
                View(method=method, parameters={"target": target})
            except VitvizError as error:
                for part, word in given.items():
                    self._leave_out(TARGET_WORDS[part], word, error)
                continue
            found["target"] = target
            return

    def _with(self, view: View, name: str, word: str, read: Callable[[str], Any]) -> View:
        field = "picture" if name == "example" else name
        try:
            return replace(view, **{field: read(word)})
        except VitvizError as error:
            self._leave_out(name, word, error)
            return view

    def with_look(self, state: PageState, name: str, word: str) -> PageState:
        """A state with one word of its look."""
        field = FIELD.get(name, name)
        kinds = {part.name: getattr(PageState(), part.name) for part in fields(PageState)}
        read = {bool: _flag, float: _decimal, int: _whole, tuple: _decimals}.get(type(kinds[field]), str)
        try:
            changed: dict[str, Any] = {field: read(word)}
            return replace(state, **changed)
        except VitvizError as error:
            self._leave_out(name, word, error)
            return state

    def _leave_out(self, name: str, word: str, error: VitvizError) -> None:
        message = str(error)
        self.notes.append(
            f"Left out of this link: {message if message.startswith(name) else f'{name} = {quote(word)} ({message})'}."
        )


def _read(parameter: Parameter, word: str) -> Any:
    """A parameter's value by its word in a link."""
    match parameter:
        case Choice():
            return word
        case Number():
            return _whole(word) if parameter.whole and WHOLE.fullmatch(word) else _decimal(word)
        case LayerNumber():
            return _whole(word)
        case HeadNumber():
            return _whole(word) if WHOLE.fullmatch(word) else word
        case TokenQuery():
            return _token(word)
        case ClassTarget():
            return _whole(word) if WHOLE.fullmatch(word) else word


def _whole(word: str) -> int:
    if WHOLE.fullmatch(word) is None:
        raise MethodError("expected a whole number")
    return int(word)


def _decimal(word: str) -> float:
    if DECIMAL.fullmatch(word) is None:
        raise MethodError("expected a number")
    return float(word)


def _decimals(word: str) -> tuple[float, ...]:
    return tuple(map(_decimal, word.split(",")))


def _flag(word: str) -> bool:
    if word not in ("true", "false"):
        raise MethodError("expected true or false")
    return word == "true"


def _token(word: str) -> Query:
    return _pair(word) if PAIR.fullmatch(word) else word


def _pair(word: str) -> tuple[int, int]:
    found = PAIR.fullmatch(word)
    if found is None:
        raise MethodError("expected two whole numbers")
    return int(found[1]), int(found[2])


def _list(word: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    return tuple(read(each) for each in word.split(";") if each)


_INPUT: dict[str, Callable[[str], Any]] = {
    "model": lambda word: "" if word == START else word,
    "step": lambda word: None if word == LAST else _whole(word),
    "example": lambda word: f"example:{word}",
    "picture": lambda word: f"picture:{word}",
    "frame": lambda word: None if word == STILL else _whole(word),
    "fit": lambda word: None if word == OWN_FIT else word,
    "resolution": lambda word: OLD_RESOLUTIONS.get(
        word, None if word == TRAINED else _whole(word) if WHOLE.fullmatch(word) else word
    ),
}
_TARGET: dict[str, Callable[[str], Any]] = {
    "text": str,
    "like": str,
    "patch": _pair,
    "against": lambda word: _whole(word) if WHOLE.fullmatch(word) else word,
    "margin": _flag,
}
_LISTS: tuple[tuple[str, str, Callable[[str], Any]], ...] = (
    ("pins", "pins", _token),
    ("heads-off", "heads_off", _pair),
    ("patches-off", "patches_off", _pair),
)
