"""A link says a state of the page and gives it back, and any text is a legal state or one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import MakeModel
from tests.support.page_states import FAST, STEPS, is_legal, is_sentence, shown
from vitviz import METHODS, Analysis
from vitviz.attention.layout import PATCHES
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution.parameters import Choice, ClassTarget, HeadNumber, Kind, LayerNumber, Number, Switch, Token
from vitviz.errors.kinds import MethodError
from vitviz.errors.messages import choices
from vitviz.evaluation.probes import PROBES
from vitviz.ui.links import PRIVATE_CHECKPOINT, print_link, read_link
from vitviz.ui.normalize import bounds_of, normalize
from vitviz.ui.pictures import EXAMPLES, EXPIRED
from vitviz.ui.state import (
    MAX_PINS,
    ModelName,
    PageState,
    Percentiles,
    PictureName,
    Place,
    Resolution,
    Several,
    View,
    Views,
    fields_of,
)

# ---- links ----


def values(kind: Kind, seen: Analysis) -> st.SearchStrategy[Any]:
    """Values of a kind, most of which the model and the picture have."""
    config, layout = seen.model.network.config, seen.trace.layout
    patches = st.tuples(st.integers(0, layout.grid_height - 1), st.integers(0, layout.grid_width - 1))
    match kind:
        case Choice():
            return st.sampled_from([value for _, value in kind.options])
        case Resolution():
            return st.sampled_from(["native", 12, 16, 32])
        case Number():
            numbers = st.integers if kind.whole else st.floats
            return numbers(kind.minimum, kind.maximum)  # type: ignore[arg-type, operator]
        case Switch():
            return st.booleans()
        case LayerNumber():
            return st.integers(-config.depth, config.depth - 1)
        case HeadNumber():
            return st.sampled_from(list(HEAD_FUSIONS)) | st.integers(-config.heads, config.heads - 1)
        case Token():
            return patches | st.sampled_from([*layout.prefix, PATCHES])
        case Place():
            return patches
        case Percentiles():
            return st.tuples(st.floats(0, 49), st.floats(50, 100))
        case ModelName():
            return st.sampled_from(["", "vitviz-photos", "dino_vits16", "hf:owner/na.me"])
        case PictureName():
            return st.sampled_from([*(f"example:{name}" for name in EXAMPLES), f"picture:{'aB-_' * 5}xy"])
        case Several():
            return st.lists(values(kind.each, seen), max_size=min(kind.most, MAX_PINS)).map(tuple)
        case Views():
            return st.lists(views(seen), min_size=1, max_size=2).map(tuple)
        case ClassTarget():
            likeness = st.fixed_dictionaries({"like": st.sampled_from([f"example:{name}" for name in EXAMPLES])})
            own_patch = st.fixed_dictionaries({"patch": patches})
            if not config.classes:
                texts = st.text(min_size=1, max_size=9).filter(str.strip)
                return likeness | own_patch | st.fixed_dictionaries({"text": texts})
            classes = st.integers(0, config.classes - 2)
            against = st.fixed_dictionaries({"against": st.just(config.classes - 1)}, optional={"class": classes})
            margin = st.fixed_dictionaries({"margin": st.just(True)}, optional={"class": classes})
            return classes | against | margin | likeness | own_patch
    raise NotImplementedError(kind)


def some_of(fields: Mapping[str, tuple[Kind, str]], seen: Analysis) -> st.SearchStrategy[dict[str, Any]]:
    """Values of some fields, whose kinds and words for None are given."""
    optional = {
        name: values(kind, seen) | (st.none() if none else st.nothing()) for name, (kind, none) in fields.items()
    }
    return st.fixed_dictionaries({}, optional=optional)


def some_of_state(cls: type, seen: Analysis) -> st.SearchStrategy[dict[str, Any]]:
    kinds = {each.name: (each.metadata["kind"], each.metadata["none"]) for each in fields_of(cls).values()}
    return some_of(kinds, seen)


@st.composite
def views(draw: Any, seen: Analysis) -> View:
    view = View(**draw(some_of_state(View, seen)))
    given = [
        draw(some_of({part.name: (part.kind, "") for part in record.parameters}, seen))
        for record in (METHODS[view.method], PROBES[view.probe])
    ]
    step = draw(st.none() | st.sampled_from(STEPS))
    return replace(view, step=step, parameters=given[0], probe_parameters=given[1])


@FAST
@given(data=st.data())
def test_a_link_gives_the_state_back_that_it_was_written_from(seen: Analysis, data: st.DataObject) -> None:
    state, _ = normalize(PageState(**data.draw(some_of_state(PageState, seen))), [seen, seen])
    link = print_link(state, {})
    read = read_link(link)
    assert read.notes == ()
    found, notes = normalize(read.state, [seen] * len(read.state.views))
    assert (found, notes) == (state, []) and print_link(found, {}) == link
    assert PageState.from_json(state.to_json()) == state
    # One that names method, token and layer in any case says the same, whatever the defaults are by then.
    named = print_link(state, {}, bounds=[bounds_of(seen)] * 2)
    assert normalize(read_link(named).state, [seen] * len(state.views)) == (state, [])


@pytest.mark.parametrize("method", METHODS)
def test_a_link_names_method_token_and_layer_even_where_they_are_the_defaults(
    make_model: MakeModel, method: str
) -> None:
    seen = shown(make_model())
    link = print_link(PageState((View(method=method),)), {}, bounds=[bounds_of(seen)])
    named = {"layer": f"&p.layer={seen.trace.layers - 1}", "start_layer": "&p.start_layer=0", "query": "&p.query=cls"}
    expected = [named.get(each.name, "") for each in METHODS[method].parameters]
    assert link == f"?method={method}{''.join(expected)}"


VIEW_WORDS = ["model", "own", "step", "example", "picture", "fit", "resolution", "method", "words", "pins", "heads-off"]
PAGE_WORDS = ["patches-off", "layout", "divider", "opacity", "grid", "shared", "own-scales", "guide", "panel"]
PARAMETER_WORDS = ["p.layer", "p.head", "p.query", "p.target", "p.direction", "p.mass", "p.start_layer", "p.x"]
PROBE_WORDS = ["probe", "probe.layer", "probe.query", "probe.features"]
WORDS = st.sampled_from([*VIEW_WORDS, *PAGE_WORDS, *PARAMETER_WORDS, *PROBE_WORDS])
VALUES = st.one_of(
    st.sampled_from(
        [
            "maps",
            "relevance",
            "row",
            "column",
            "map legrad",
            "3,5",
            "patch_similarity",
            "keys",
            "cls",
            "0",
            "1.5",
            "true",
            "",
            "-1",
        ]
    ),
    st.sampled_from(["looks at", "the picture's own", "difference", "two", "9" * 20, "٣", "1e5", "%", "&"]),
    st.text(max_size=12),
)


@FAST
@given(
    pairs=st.lists(st.tuples(WORDS, VALUES, st.booleans()), max_size=12), rest=st.text(max_size=20), split=st.booleans()
)
def test_any_link_is_a_legal_state_or_one_sentence(
    seen: Analysis, pairs: list[tuple[str, str, bool]], rest: str, split: bool
) -> None:
    words = [f"{'second.' * second}{name}={value}" for name, value, second in pairs]
    middle = len(words) // 2 if split else len(words)
    try:
        read = read_link(f"?{'&'.join(words[:middle])}#{'&'.join(words[middle:])}{rest}")
    except MethodError as error:
        assert is_sentence(error)
        return
    assert all(note.endswith(".") and "\n" not in note for note in read.notes)
    assert is_legal(read.state.to_json(), seen)


@pytest.mark.parametrize("link", ["?" + "a" * 2**17, "?" + "&".join(["a=1"] * 300)])
def test_what_is_too_long_for_a_link_is_refused(link: str) -> None:
    with pytest.raises(MethodError, match=r"link.*: expected at most"):
        read_link(link)


def test_an_empty_link_is_the_page_as_it_opens() -> None:
    assert read_link("") == read_link("?#") == read_link("?__theme=light&unknown=1")
    assert read_link("").state == PageState() and print_link(PageState(), {}) == ""


LOOK: dict[str, Any] = {"scale": "robust", "percentiles": (5, 97.5), "low": 0.0, "high": 0.25}


def test_a_link_says_what_differs_and_nothing_else() -> None:
    first = View("dino_vits16", None, "example:rocket.jpg", "crop", 96, "relevance", {"target": 3, "query": (3, 5)})
    first = replace(first, pins=((3, 5), "cls"), heads_off=((0, 1), (2, 3)), patches_off=((3, 5),))
    second = View("", None, "example:rocket.jpg", None, None, "rollout", {"discard_ratio": 0.1})
    link = print_link(PageState((first, second), "difference", grid=True, opacity=0.25, shared_scale=True, **LOOK), {})
    assert link == (
        "?model=dino_vits16&example=rocket.jpg&fit=crop&resolution=96&method=relevance&pins=3,5;cls"
        "&heads-off=0.1;2.3&patches-off=3.5&p.target=3&p.query=3,5&second.method=rollout&second.model=start&second.fit=own"
        "&second.resolution=trained&second.p.discard_ratio=0.1&layout=difference&opacity=0.25&grid=true"
        "&scale=robust&percentiles=5,97.5&low=0&high=0.25&shared=true"
    )


def test_a_link_of_a_private_checkpoint_says_so() -> None:
    own = f"own:{'a' * 22}"
    link = print_link(PageState((View(own, method="rollout"),)), {own: "mine & yours.safetensors"})
    assert link == "?own=mine+%26+yours.safetensors" and "a" * 22 not in link
    read = read_link(link)
    assert read.state == PageState() and read.notes == (PRIVATE_CHECKPOINT.format("mine & yours.safetensors"),)


# What a link says stays: no line is changed or removed.
STABLE_LINKS = {
    "?model=dino_vits16&example=rocket.jpg&fit=crop&resolution=96": View(
        "dino_vits16", None, "example:rocket.jpg", "crop", 96, "rollout"
    ),
    "?model=hf:facebook/dino-vits8&resolution=native&step=20": View(
        "hf:facebook/dino-vits8", 20, resolution="native", method="rollout"
    ),
    "?white=4095&frame=7&color_profile=ignore": View(frame=7, white=4095, color_profile="ignore", method="rollout"),
    "?method=attention&p.layer=4&p.head=2&p.query=4,5": View(parameters={"layer": 4, "head": 2, "query": (4, 5)}),
    "?method=attention&p.direction=column&p.head=max&p.query=register+1": View(
        parameters={"direction": "column", "head": "max", "query": "register 1"}
    ),
    "?method=rollout&p.discard_ratio=0.9&p.exclude=sinks": View(
        method="rollout", parameters={"discard_ratio": 0.9, "exclude": "sinks"}
    ),
    "?method=relevance&p.target=crane+(134)": View(method="relevance", parameters={"target": "crane (134)"}),
    "?method=legrad&p.target=3&against=dog": View(
        method="legrad", parameters={"target": {"class": "3", "against": "dog"}}
    ),
    "?method=legrad&margin=true": View(method="legrad", parameters={"target": {"margin": True}}),
    "?method=relevance&words=a+photo+of+a+cat": View(
        method="relevance", parameters={"target": {"text": "a photo of a cat"}}
    ),
    "?method=grad_cam&like=example:rocket.jpg&like-patch=3,4": View(
        method="grad_cam", parameters={"target": {"like": "example:rocket.jpg", "patch": (3, 4)}}
    ),
    "?pins=3,4;cls&heads-off=0.1;2.3&patches-off=3.5": View(
        method="rollout", pins=((3, 4), "cls"), heads_off=((0, 1), (2, 3)), patches_off=((3, 5),)
    ),
    "?probe=patch_similarity&probe.query=3,4": View(
        method="rollout", probe="patch_similarity", probe_parameters={"query": (3, 4)}
    ),
}
STABLE_LOOKS: dict[str, dict[str, Any]] = {
    "?layout=slide&divider=0.25": {"layout": "slide", "divider": 0.25},
    "?colormap=viridis&opacity=0.3&fade=false&smooth=true&grid=true&outliers=true": {
        "colormap": "viridis", "opacity": 0.3, "fade": False, "smooth": True, "grid": True, "outliers": True,
    },
    "?scale=robust&percentiles=5,97.5&low=-1.5&high=own&shared=true": {
        "scale": "robust", "percentiles": (5, 97.5), "low": -1.5, "shared_scale": True,
    },
    "?own-scales=true": {"own_scales": True},
    "?own-scales=false": {"own_scales": False},
    "?panel=guide&guide=2": {"panel": "guide", "guide": 2},
}  # fmt: skip


@pytest.mark.parametrize("link", [*STABLE_LINKS, *STABLE_LOOKS])
def test_links_stay_as_they_are(link: str) -> None:
    read = read_link(link)
    expected = PageState((STABLE_LINKS[link],)) if link in STABLE_LINKS else PageState(**STABLE_LOOKS[link])
    assert read.notes == () and read.state == expected
    # What a link reads is also what is written, in the order of the fields.
    again = read_link(print_link(expected, {}))
    assert again.notes == () and again.state == expected


@pytest.mark.parametrize(
    ("link", "notes"),
    [
        (
            "?model=../x&opacity=2&p.layer=one&heads-off=1",
            ("model = '../x'", "heads-off = '1'", "p.layer = 'one'", "opacity = "),
        ),
        ("?white=0", ("white = 0",)),
        ("?words=cat&p.target=3", ("'p.target'", "'words'")),
        ("?color_profile=keep", ("color_profile = 'keep'",)),
        ("?scale=logarithm", ("scale = 'logarithm': expected 'linear', 'robust', 'log', 'rank' or 'zero'",)),
        ("?percentiles=98,2", ("percentiles = (98, 2): expected two numbers from 0 to 100, the lower one first",)),
        (
            "?low=dark&high=1e99",
            ("low = 'dark': expected a number from", "high = 1e+99: expected a number from -1e+30"),
        ),
        ("?white=much&percentiles=5", ("white = 'much'", "percentiles = (5,): expected two numbers")),
        ("?percentiles=low,high", ("percentiles = ('low', 'high'): expected two numbers",)),
    ],
)
def test_what_a_link_says_wrongly_is_left_out_and_said(link: str, notes: tuple[str, ...]) -> None:
    read = read_link(f"{link}&method=attention&pins=cls;3,5")
    assert read.state == PageState((View(pins=("cls", (3, 5))),))
    for note, start in zip(read.notes, notes, strict=True):
        assert note.startswith(f"Left out of this link: {start}") and note.count(start) == 1
    [note] = read_link("?method=magic").notes
    assert note.startswith("Left out of this link: method = 'magic': expected 'attention'")


def test_a_picture_that_is_not_there_is_named_as_the_link_has_it_and_the_usual_one_is_shown() -> None:
    for words, sentence in (
        ("example=nothere.jpg&picture=x", f"There is no example 'nothere.jpg': expected {choices(EXAMPLES)}."),
        ("picture=example:short", EXPIRED),
    ):
        read = read_link(f"?{words}&method=attention")
        assert (read.state, read.notes) == (PageState((View(),)), (sentence,))
