"""Links: the state of a page as the part of its address behind ``?``, written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.attribution.parameters import INTEGER, Parameter, TokenQuery, decimal_of, integer_of, pair_of
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.errors.messages import nearest, quote
from vitviz.evaluation.probes import PROBES
from vitviz.models.targets import class_of
from vitviz.ui.state import ANYTHING, FIRST_VIEW, OWN_MODEL, PAIRED_LAYOUTS, TOKEN_METHOD, PageState, View

# Prefixes of the parameters of the map, of those of the probe, and of all keys of the second view.
PARAMETER, PROBE_PARAMETER, SECOND = "p.", "probe.", "second."
MAX_CHARS, MAX_ENTRIES = 2**16, 200
# The values that stand for None, by field, and for the default model.
DEFAULT_WORDS = {
    "step": "last", "frame": "none", "white": "format", "color_profile": "own", "fit": "own", "resolution": "trained",
}  # fmt: skip
START = "start"
# The keys of the fields of a page beside its views, with the fields' types.
PAGE_FIELDS = {
    "shared" if field.name == "shared_scale" else field.name: (field.name, type(getattr(PageState(), field.name)))
    for field in fields(PageState)
    if field.name != "views"
}
# The keys of the fields of a target.
TARGET_KEYS = {"text": "words", "like": "like", "patch": "like-patch", "against": "against", "margin": "margin"}
PRIVATE_CHECKPOINT = "This link shows a private checkpoint ({}). Open it under Model to see the same."
# Links of vitviz 0.1 had the maps behind "#", or behind "?" with tab=maps.
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
_PIN = TokenQuery("pins", "Pin", "")

State = TypeVar("State", View, PageState)


@dataclass(frozen=True)
class Link:
    """The state of a link.

    Args:
        state: legal for some model; its classes may still be labels.
        notes: a sentence for each part of the link that is left out.
    """

    state: PageState
    notes: tuple[str, ...] = ()


def print_link(state: PageState, own_names: Mapping[str, str], labels: Sequence[Sequence[str]] = ()) -> str:
    """The link of a state, with its ``?``: what differs from the page as it opens; empty if nothing does.

    Args:
        state: legal for its models.
        own_names: file names of visitors' own checkpoints, by the models' ids.
        labels: of the classes of each view's model, as far as they are known.
    """
    first_labels, second_labels, *_ = [*labels, (), ()]
    entries = _view_entries(state.views[0], FIRST_VIEW, "", own_names, first_labels)
    if len(state.views) > 1:
        entries |= {f"{SECOND}method": state.views[1].method}
        entries |= _view_entries(state.views[1], View(**state.views[0].input), SECOND, own_names, second_labels)
    default = PageState()
    for key, (field, _) in PAGE_FIELDS.items():
        if getattr(state, field) != getattr(default, field):
            entries[key] = _text(getattr(state, field))
    query = urlencode(entries, safe=",;:/")
    return f"?{query}" if query else ""


def _view_entries(
    view: View, default: View, prefix: str, own_names: Mapping[str, str], labels: Sequence[str]
) -> dict[str, str]:
    """Key and text of each field that differs from a default."""
    entries: dict[str, str] = {}
    if view.model != default.model:
        is_own = OWN_MODEL.fullmatch(view.model) is not None
        entries["own" if is_own else "model"] = own_names.get(view.model, "?") if is_own else view.model or START
    if view.picture != default.picture:
        kind, _, name = view.picture.partition(":")
        entries[kind] = name
    for field, default_word in DEFAULT_WORDS.items():
        value = getattr(view, field)
        if value != getattr(default, field):
            entries[field] = default_word if value is None else str(value)
    if view.method != default.method or view.parameters:
        entries["method"] = view.method
    for name, value in view.parameters.items():
        if isinstance(value, Mapping):
            # The first class has the same key as a target that is one class.
            entries |= {
                f"{PARAMETER}{name}" if field == "class" else TARGET_KEYS[field]: _class_text(item, labels)
                for field, item in value.items()
            }
        elif name == "target":
            entries[f"{PARAMETER}{name}"] = _class_text(value, labels)
        else:
            entries[f"{PARAMETER}{name}"] = _text(value)
    if view.probe != default.probe or view.probe_parameters:
        entries["probe"] = view.probe
        entries |= {f"{PROBE_PARAMETER}{name}": _text(value) for name, value in view.probe_parameters.items()}
    if view.pins:
        entries["pins"] = ";".join(map(_text, view.pins))
    for key, pairs in (("heads-off", view.heads_off), ("patches-off", view.patches_off)):
        if pairs:
            entries[key] = ";".join(f"{first}.{second}" for first, second in pairs)
    return {f"{prefix}{key}": text for key, text in entries.items()}


def _class_text(value: Any, labels: Sequence[str]) -> str:
    """The number of a class, or its label where another class is named by this number; else as :func:`_text`."""
    if type(value) is not int or value >= len(labels):
        return _text(value)
    try:
        if class_of(str(value), labels) == value:
            return str(value)
    except MethodError:
        # Several classes are named by this number.
        pass
    label = labels[value]
    return label if labels.count(label) == 1 else f"{label} ({value})"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ",".join(map(_text, value))
    # str of a float is the shortest text that reads back as the same number.
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def read_link(link: str) -> Link:
    """The state of a link; a note says what is not legal in it and left out.

    Args:
        link: the part of an address behind ``?`` and, in links of vitviz 0.1, behind ``#``, with both marks.

    Raises:
        MethodError: it is too long.
    """
    query, _, fragment = link.partition("#")
    entries, old_entries = (_entries(text) for text in (query.removeprefix("?"), fragment))
    if "map" in old_entries and entries.get("tab") != "maps":
        entries |= _translated(old_entries)
    reader = _Reader()
    views = [reader.view(entries, "", FIRST_VIEW)]
    if any(key.startswith(SECOND) for key in entries) or entries.get("layout") in PAIRED_LAYOUTS:
        views.append(reader.view(entries, SECOND, View(**views[0].input)))
    state = PageState(tuple(views))
    for key, (field, kind) in PAGE_FIELDS.items():
        if key in entries:
            read = {bool: _boolean, float: decimal_of, int: integer_of, tuple: _decimals}.get(kind, str)
            state = reader.replaced(state, key, field, entries[key], read)
    return Link(state, tuple(dict.fromkeys(reader.notes)))


def _entries(query: str) -> dict[str, str]:
    """Keys and texts of a query string; the first of a repeated key counts."""
    if len(query) > MAX_CHARS:
        raise MethodError(f"link of {len(query):,} characters: expected at most {MAX_CHARS:,}")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_ENTRIES)
    except ValueError:
        raise MethodError(f"link: expected at most {MAX_ENTRIES} words") from None
    return dict(reversed(pairs))


def _translated(old_entries: Mapping[str, str]) -> dict[str, str]:
    """The entries behind ``#`` of a link of vitviz 0.1 as those of today's links."""
    entries = {OLD_NAMES.get(key, key): text for key, text in old_entries.items() if key in {*PAGE_FIELDS, *OLD_NAMES}}
    for prefix in ("", SECOND) if entries.get("layout") in PAIRED_LAYOUTS else ("",):
        name = old_entries.get(f"{prefix}map", "row")
        method, fixed = OLD_MAPS.get(name, (name.removeprefix("map "), {}))
        if method not in METHODS:
            continue
        parameters = {**fixed, "layer": old_entries.get(f"{prefix}layer"), "head": old_entries.get(f"{prefix}head")}
        parameters["query"] = old_entries.get("token")
        legal = [parameter.name for parameter in METHODS[method].parameters]
        entries[f"{prefix}method"] = method
        entries |= {f"{prefix}{PARAMETER}{name}": text for name, text in parameters.items() if text and name in legal}
    return entries


class _Reader:
    """Reads the entries of a link, and notes those that it leaves out."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def view(self, entries: Mapping[str, str], prefix: str, default: View) -> View:
        """The view of the entries with a prefix; a default has the fields that the link does not set."""
        entries = {key.removeprefix(prefix): text for key, text in entries.items() if key.startswith(prefix)}
        view = default
        if "own" in entries:
            self.notes.append(PRIVATE_CHECKPOINT.format(" ".join(entries["own"].split())[:120]))
        for key, read in _INPUT_READERS.items():
            if key in entries:
                view = self.replaced(view, key, "picture" if key == "example" else key, entries[key], read)
        # Links of vitviz 0.1 have a layer, a head or a token without the name of the map.
        has_parameters = any(key.startswith(PARAMETER) for key in entries)
        method = entries.get("method", TOKEN_METHOD if has_parameters else default.method)
        if method not in METHODS:
            self.notes.append(f"Link: there is no map {quote(method)}.")
            return view
        record = METHODS[method]
        parameters = self._parameters(record.parameters, PARAMETER, entries)
        if record.class_specific:
            parameters |= self._target(record.name, entries, parameters)
        view = replace(view, method=record.name, parameters=parameters)
        probe = entries.get("probe", default.probe)
        if probe in PROBES:
            parameters = self._parameters(PROBES[probe].parameters, PROBE_PARAMETER, entries)
            view = replace(view, probe=probe, probe_parameters=parameters)
        else:
            self.notes.append(f"Link: there is no probe {quote(probe)}.")
        for field, read in {"pins": _PIN.parse, "heads_off": pair_of, "patches_off": pair_of}.items():
            text = entries.get(field.replace("_", "-"))
            if text is not None:
                view = self.replaced(view, field, field, text, partial(_list, read=read))
        return view

    def _parameters(self, records: Sequence[Parameter], prefix: str, entries: Mapping[str, str]) -> dict[str, Any]:
        """The legal parameters of a method or a probe."""
        parameters: dict[str, Any] = {}
        legal = [f"{prefix}{record.name}" for record in records]
        for key in entries:
            if key.startswith(prefix) and key not in legal:
                suggestion = nearest(key, legal)
                hint = "" if suggestion is None else f" (did you mean {suggestion!r}?)"
                self.notes.append(f"Left out of this link: {quote(key)}{hint}.")
        for record in records:
            text = entries.get(f"{prefix}{record.name}")
            text = None if text is None else OLD_VALUES.get((record.name, text), text)
            if text is None:
                continue
            try:
                parameters[record.name] = record.kept(record.parse(text), ANYTHING, f"parameters.{record.name}")
            except VitvizError as error:
                self._leave_out(f"{prefix}{record.name}", text, error)
        return parameters

    def _target(self, method: MethodName, entries: Mapping[str, str], parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The target that several entries describe, as a parameter; empty if there is none."""
        first = {"class": parameters["target"]} if "target" in parameters else {}
        for kind, others in ((("text",), {}), (("like", "patch"), {}), (("against", "margin"), first)):
            texts = {field: text for field in kind if (text := entries.get(TARGET_KEYS[field], "").strip())}
            if not texts:
                continue
            try:
                target = {**others, **{field: _TARGET_READERS[field](text) for field, text in texts.items()}}
                View(method=method, parameters={"target": target})
                return {"target": target}
            except VitvizError as error:
                for field, text in texts.items():
                    self._leave_out(TARGET_KEYS[field], text, error)
        return {}

    def replaced(self, state: State, key: str, field: str, text: str, read: Callable[[str], Any]) -> State:
        """A view or a state with one field as the link has it; unchanged where that is not legal."""
        try:
            changes: dict[str, Any] = {field: read(text)}
            return replace(state, **changes)
        except VitvizError as error:
            self._leave_out(key, text, error)
            return state

    def _leave_out(self, key: str, text: str, error: VitvizError) -> None:
        message = str(error)
        self.notes.append(
            f"Left out of this link: {message if message.startswith(key) else f'{key} = {quote(text)} ({message})'}."
        )


def _integer_or_word(text: str) -> int | str:
    return int(text) if INTEGER.fullmatch(text) else text


def _decimals(text: str) -> tuple[float, ...]:
    return tuple(map(decimal_of, text.split(",")))


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise MethodError("expected true or false")
    return text == "true"


def _list(text: str, read: Callable[[str], Any]) -> tuple[Any, ...]:
    return tuple(read(item) for item in text.split(";") if item)


_INPUT_READERS: dict[str, Callable[[str], Any]] = {
    "model": lambda text: "" if text == START else text,
    "step": lambda text: None if text == DEFAULT_WORDS["step"] else integer_of(text),
    "example": lambda text: f"example:{text}",
    "picture": lambda text: f"picture:{text}",
    "frame": lambda text: None if text == DEFAULT_WORDS["frame"] else integer_of(text),
    "white": lambda text: None if text == DEFAULT_WORDS["white"] else integer_of(text),
    "color_profile": lambda text: None if text == DEFAULT_WORDS["color_profile"] else text,
    "fit": lambda text: None if text == DEFAULT_WORDS["fit"] else text,
    "resolution": lambda text: OLD_RESOLUTIONS.get(
        text, None if text == DEFAULT_WORDS["resolution"] else _integer_or_word(text)
    ),
}
_TARGET_READERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "like": str,
    "patch": pair_of,
    "against": str,
    "margin": _boolean,
}
