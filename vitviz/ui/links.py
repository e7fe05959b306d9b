"""Links: the state of a page as the part of its address behind ``?``, written and read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field, dataclass, replace
from itertools import zip_longest
from typing import Any
from urllib.parse import parse_qsl, urlencode

from vitviz.attribution import METHODS
from vitviz.attribution.parameters import ClassTarget, Kind, LayerNumber, Parameter, Switch, Token, pair_of, text_of
from vitviz.attribution.requests import Bounds
from vitviz.errors.kinds import MethodError, VitvizError
from vitviz.errors.messages import choices, nearest, quote
from vitviz.evaluation.probes import PROBES
from vitviz.models.targets import class_of
from vitviz.ui.pictures import EXAMPLES, EXPIRED, picture_name
from vitviz.ui.state import ANYTHING, FIRST_VIEW, OWN_MODEL, PAIRED_LAYOUTS, TOKEN_METHOD, PageState, View, fields_of

# Prefixes of the parameters of the map, of those of the probe, and of all keys of the second view.
PARAMETER, PROBE_PARAMETER, SECOND = "p.", "probe.", "second."
MAX_CHARS, MAX_ENTRIES = 2**16, 200
PAGE_FIELDS = {key: each for key, each in fields_of(PageState).items() if key != "views"}
VIEW_FIELDS = fields_of(View)
# The keys of a picture are the words before its name; what is said where there is none of this name.
PICTURE_KEYS = {"example": f"There is no example {{}}: expected {choices(EXAMPLES)}.", "picture": EXPIRED}
# The keys of the fields of a target, and what reads them; a class alone has the key of its first class.
TARGET_KEYS = {
    "text": "words",
    "like": "like",
    "patch": "like-patch",
    "class": "p.target",
    "against": "against",
    "margin": "margin",
}
TARGET_KINDS = (("text",), ("like", "patch"), ("class", "against", "margin"))
TARGET_PARSERS: Mapping[str, Callable[[str], Any]] = {"patch": pair_of, "margin": Switch().parse}
PRIVATE_CHECKPOINT = "This link shows a private checkpoint ({}). Open it so under Model to see the same."


@dataclass(frozen=True)
class Link:
    """The state of a link.

    Args:
        state: legal for some model; its classes may still be labels.
        notes: a sentence for each part of the link that is left out.
        missing: of each view, the note about the model that it names and nobody can open; empty for all others.
    """

    state: PageState
    notes: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def print_link(
    state: PageState,
    own_names: Mapping[str, str],
    labels: Sequence[Sequence[str]] = (),
    bounds: Sequence[Bounds | None] = (),
) -> str:
    """The link of a state, with its ``?``: what differs from the page as it opens; empty if nothing does.

    Args:
        state: legal for its models.
        own_names: of visitors' own checkpoints, with their settings, by the models' ids.
        labels: of the classes of each view's model, as far as they are known.
        bounds: of each view's model and picture, as far as they are known. Of these views, the link names method, token
            and layer even where they are the defaults, so that other defaults change no link.
    """
    known = [*zip_longest(labels, bounds), (None, None), (None, None)]
    entries = _view_entries(state.views[0], FIRST_VIEW, own_names, *known[0])
    for view in state.views[1:]:
        second = _view_entries(view, View(**state.views[0].input), own_names, *known[1])
        entries |= {f"{SECOND}{key}": text for key, text in {"method": view.method, **second}.items()}
    entries |= _changed(PAGE_FIELDS, state, PageState())
    query = urlencode(entries, safe=",;:/")
    return f"?{query}" if query else ""


def _changed(fields: Mapping[str, Field[Any]], state: Any, default: Any) -> dict[str, str]:
    """Key and text of each field that differs from a default."""
    values = {key: getattr(state, each.name) for key, each in fields.items()}
    return {
        key: each.metadata["none"] if values[key] is None else each.metadata["kind"].text(values[key])
        for key, each in fields.items()
        if values[key] != getattr(default, each.name)
    }


def _view_entries(
    view: View, default: View, own_names: Mapping[str, str], labels: Sequence[str] | None, bounds: Bounds | None
) -> dict[str, str]:
    """Key and text of each field that differs from a default, and of what a link names in any case."""
    kind, _, name = view.picture.partition(":")
    renamed = {"picture": (kind, name)}
    if OWN_MODEL.fullmatch(view.model):
        renamed["model"] = "own", own_names.get(view.model, "?")
    entries = dict(renamed.get(key, (key, text)) for key, text in _changed(VIEW_FIELDS, view, default).items())
    if view.parameters or bounds:
        entries["method"] = view.method
    for name, value in (_named(view, bounds) if bounds else view.parameters).items():
        if isinstance(value, Mapping):
            entries |= {TARGET_KEYS[field]: _class_text(item, labels or ()) for field, item in value.items()}
        else:
            entries[f"{PARAMETER}{name}"] = _class_text(value, labels or ()) if name == "target" else text_of(value)
    if view.probe_parameters:
        entries["probe"] = view.probe
        entries |= {f"{PROBE_PARAMETER}{name}": text_of(value) for name, value in view.probe_parameters.items()}
    return entries


def _named(view: View, bounds: Bounds) -> dict[str, Any]:
    """The parameters of a view, with token and layers even where they are the defaults."""
    named = {
        each.name: each.default_for(bounds, view.parameters.get("target"))
        for each in METHODS[view.method].parameters
        if isinstance(each.kind, Token) or (isinstance(each.kind, LayerNumber) and each.kind.on_page)
    }
    # A learned query has no name.
    return {name: value for name, value in {**named, **view.parameters}.items() if value is not None}


def _class_text(value: Any, labels: Sequence[str]) -> str:
    """The number of a class, or its label where another class is named by this number; else as any value."""
    if type(value) is not int or value >= len(labels):
        return text_of(value)
    # Several classes may be named by this number.
    with suppress(MethodError):
        if class_of(str(value), labels) == value:
            return str(value)
    label = labels[value]
    return label if labels.count(label) == 1 else f"{label} ({value})"


def read_link(link: str) -> Link:
    """The state of a link; a note says what is not legal in it and left out.

    Args:
        link: the part of an address behind ``?``, with or without it.

    Raises:
        MethodError: it is too long.
    """
    reader = _Reader(_entries(link.partition("#")[0].removeprefix("?")))
    views = [reader.view(FIRST_VIEW)]
    second = _Reader({key.removeprefix(SECOND): text for key, text in reader.entries.items() if key.startswith(SECOND)})
    if second.entries or reader.entries.get("layout") in PAIRED_LAYOUTS:
        views.append(second.view(View(**views[0].input)))
    state = PageState(tuple(views), **reader.fields(PAGE_FIELDS))
    # A second view without a model has that of the first.
    missing = (reader.missing, second.missing or reader.missing * ("model" not in second.entries))[: len(views)]
    return Link(state, tuple(dict.fromkeys([*reader.notes, *second.notes])), missing)


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

    def __init__(self, entries: dict[str, str]) -> None:
        self.entries, self.notes, self.missing = entries, list[str](), ""

    def view(self, default: View) -> View:
        """The view of the entries; a default has the fields that the link does not set."""
        entries = self.entries
        if "own" in entries:
            self.missing = PRIVATE_CHECKPOINT.format(" ".join(entries["own"].split())[:400])
            self.notes.append(self.missing)
        for kind, refusal in PICTURE_KEYS.items():
            if kind in entries:
                name = entries[kind]
                try:
                    entries["picture"] = picture_name(kind, f"{kind}:{name}")
                except MethodError:
                    entries.pop("picture", None)
                    self.notes.append(refusal.format(quote(name)))
                break
        # Links of vitviz 0.1 have a layer, a head or a token without the name of the map.
        if any(key.startswith(PARAMETER) for key in entries):
            entries.setdefault("method", TOKEN_METHOD)
        view = replace(default, **self.fields(VIEW_FIELDS))
        parameters = self.parameters(METHODS[view.method].parameters, PARAMETER)
        return replace(
            view,
            parameters=parameters,
            probe_parameters=self.parameters(PROBES[view.probe].parameters, PROBE_PARAMETER),
        )

    def fields(self, fields: Mapping[str, Field[Any]]) -> dict[str, Any]:
        """The fields that the link sets, by name."""
        values: dict[str, Any] = {}
        for key, each in fields.items():
            none = each.metadata["none"]
            if none and self.entries.get(key) == none:
                values[each.name] = None
            elif key in self.entries:
                values |= self.value(each.name, key, each.metadata["kind"])
        return values

    def parameters(self, records: Sequence[Parameter], prefix: str) -> dict[str, Any]:
        """The legal parameters of a method or a probe."""
        parameters: dict[str, Any] = {}
        legal = [f"{prefix}{record.name}" for record in records]
        others = () if any(isinstance(record.kind, ClassTarget) for record in records) else TARGET_KEYS.values()
        for key in self.entries:
            if (key.startswith(prefix) and key not in legal) or (key in others and prefix == PARAMETER):
                suggestion = nearest(key, legal)
                hint = "" if suggestion is None else f" (did you mean {suggestion!r}?)"
                self.notes.append(f"Left out of this link: {quote(key)}{hint}.")
        for key, record in zip(legal, records, strict=True):
            target = self.target(record.name, record.kind) if isinstance(record.kind, ClassTarget) else {}
            parameters |= target or (self.value(record.name, key, record.kind) if key in self.entries else {})
        return parameters

    def target(self, name: str, kind: ClassTarget) -> dict[str, Any]:
        """The target that several entries describe, as a parameter; empty if there is none."""
        for fields in TARGET_KINDS:
            texts = {field: text for field in fields if (text := self.entries.get(TARGET_KEYS[field], "").strip())}
            if texts.keys() <= {"class"}:
                continue
            try:
                target = {field: TARGET_PARSERS.get(field, str)(text) for field, text in texts.items()}
                return {name: kind.keep(target, ANYTHING, "target")}
            except VitvizError as error:
                for field in texts.keys() - {"class"}:
                    self.leave_out(TARGET_KEYS[field], error)
        return {}

    def value(self, name: str, key: str, kind: Kind) -> dict[str, Any]:
        """The value of a key under a name, if it is legal."""
        try:
            return {name: kind.keep(kind.parse(self.entries[key]), ANYTHING, key)}
        except VitvizError as error:
            self.leave_out(key, error)
            return {}

    def leave_out(self, key: str, error: VitvizError) -> None:
        """Note that a key is left out, and why."""
        message = str(error)
        sentence = message if message.startswith(key) else f"{key} = {quote(self.entries[key])} ({message})"
        self.notes.append(f"Left out of this link: {sentence}.")
        if key == "model":
            self.missing = self.notes[-1]
