"""Links: the state of a page as the part of its address behind ``?``, written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode

from vitviz.attribution import METHODS
from vitviz.attribution.methods import MethodName
from vitviz.attribution.parameters import Parameter, Switch, pair_of, text_of
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.errors.messages import nearest, quote
from vitviz.evaluation.probes import PROBES
from vitviz.models.targets import class_of
from vitviz.ui.state import (
    ANYTHING,
    FIRST_VIEW,
    INPUT_FIELDS,
    OWN_MODEL,
    PAIRED_LAYOUTS,
    TOKEN_METHOD,
    PageState,
    View,
    field_text,
    fields_of,
    parse_field,
)

# Prefixes of the parameters of the map, of those of the probe, and of all keys of the second view.
PARAMETER, PROBE_PARAMETER, SECOND = "p.", "probe.", "second."
MAX_CHARS, MAX_ENTRIES = 2**16, 200
PAGE_FIELDS = {key: each for key, each in fields_of(PageState).items() if key != "views"}
VIEW_FIELDS = fields_of(View)
# The keys of a picture are the words before its name.
PICTURE_KEYS = ("example", "picture")
# The keys of the fields of a target.
TARGET_KEYS = {"text": "words", "like": "like", "patch": "like-patch", "against": "against", "margin": "margin"}
PRIVATE_CHECKPOINT = "This link shows a private checkpoint ({}). Open it under Model to see the same."

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
    entries |= _changed(PAGE_FIELDS, state, PageState())
    query = urlencode(entries, safe=",;:/")
    return f"?{query}" if query else ""


def _changed(fields: Mapping[str, Field[Any]], state: Any, default: Any) -> dict[str, str]:
    """Key and text of each field that differs from a default."""
    return {
        key: field_text(each, getattr(state, each.name))
        for key, each in fields.items()
        if getattr(state, each.name) != getattr(default, each.name)
    }


def _view_entries(
    view: View, default: View, prefix: str, own_names: Mapping[str, str], labels: Sequence[str]
) -> dict[str, str]:
    """Key and text of each field that differs from a default."""
    entries: dict[str, str] = {}
    for key, text in _changed(VIEW_FIELDS, view, default).items():
        if key == "model" and OWN_MODEL.fullmatch(view.model):
            entries["own"] = own_names.get(view.model, "?")
        elif key == "picture":
            kind, _, name = text.partition(":")
            entries[kind] = name
        else:
            entries[key] = text
    if view.parameters:
        entries["method"] = view.method
    for name, value in view.parameters.items():
        if isinstance(value, Mapping):
            # The first class has the same key as a target that is one class.
            entries |= {
                f"{PARAMETER}{name}" if field == "class" else TARGET_KEYS[field]: _class_text(item, labels)
                for field, item in value.items()
            }
        else:
            entries[f"{PARAMETER}{name}"] = _class_text(value, labels) if name == "target" else text_of(value)
    if view.probe_parameters:
        entries["probe"] = view.probe
        entries |= {f"{PROBE_PARAMETER}{name}": text_of(value) for name, value in view.probe_parameters.items()}
    return {f"{prefix}{key}": text for key, text in entries.items()}


def _class_text(value: Any, labels: Sequence[str]) -> str:
    """The number of a class, or its label where another class is named by this number; else as any value."""
    if type(value) is not int or value >= len(labels):
        return text_of(value)
    try:
        if class_of(str(value), labels) == value:
            return str(value)
    except MethodError:
        # Several classes are named by this number.
        pass
    label = labels[value]
    return label if labels.count(label) == 1 else f"{label} ({value})"


def read_link(link: str) -> Link:
    """The state of a link; a note says what is not legal in it and left out.

    Args:
        link: the part of an address behind ``?``, with or without it.

    Raises:
        MethodError: it is too long.
    """
    entries = _entries(link.partition("#")[0].removeprefix("?"))
    reader = _Reader()
    views = [reader.view(entries, "", FIRST_VIEW)]
    if any(key.startswith(SECOND) for key in entries) or entries.get("layout") in PAIRED_LAYOUTS:
        views.append(reader.view(entries, SECOND, View(**views[0].input)))
    state = PageState(tuple(views))
    for key, each in PAGE_FIELDS.items():
        if key in entries:
            state = reader.replaced(state, key, each, entries[key])
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
        for kind in PICTURE_KEYS:
            if kind in entries:
                entries = {**entries, "picture": f"{kind}:{entries[kind]}"}
                break
        for name in INPUT_FIELDS:
            if name in entries:
                view = self.replaced(view, name, VIEW_FIELDS[name], entries[name])
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
        for key in ("pins", "heads-off", "patches-off"):
            if key in entries:
                view = self.replaced(view, VIEW_FIELDS[key].name, VIEW_FIELDS[key], entries[key])
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
            key = f"{prefix}{record.name}"
            if key in entries:
                try:
                    value = record.kind.kept(record.kind.parse(entries[key]), ANYTHING, f"parameters.{record.name}")
                    parameters[record.name] = value
                except VitvizError as error:
                    self._leave_out(key, entries[key], error)
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

    def replaced(self, state: State, key: str, each: Field[Any], text: str) -> State:
        """A view or a state with one field as the link has it; unchanged where that is not legal."""
        try:
            changes: dict[str, Any] = {each.name: parse_field(each, text)}
            return replace(state, **changes)
        except VitvizError as error:
            self._leave_out(key, text, error)
            return state

    def _leave_out(self, key: str, text: str, error: VitvizError) -> None:
        message = str(error)
        self.notes.append(
            f"Left out of this link: {message if message.startswith(key) else f'{key} = {quote(text)} ({message})'}."
        )


_TARGET_READERS: dict[str, Callable[[str], Any]] = {
    "text": str,
    "like": str,
    "patch": pair_of,
    "against": str,
    "margin": Switch().parse,
}
