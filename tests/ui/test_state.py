"""A state of the page: only legal ones are made, and a link says one and gives it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import vitviz.ui.facts
import vitviz.ui.normalize
from vitviz import METHODS, Model
from vitviz.attention.layout import PATCHES, TokenLayout
from vitviz.attention.softmax import HEAD_FUSIONS
from vitviz.attribution.methods import Choice, ClassTarget, HeadNumber, LayerNumber, Number, Parameter, TokenQuery
from vitviz.errors.kinds import MethodError
from vitviz.evaluation.probes import PROBES
from vitviz.ui.facts import method_facts, model_facts
from vitviz.ui.links import SOMEBODYS_OWN, print_link, read_link
from vitviz.ui.normalize import ShownView, normalize
from vitviz.ui.pictures import EXAMPLES
from vitviz.ui.state import LAYOUTS, MAX_PINS, PANELS, PageState, View, is_model, is_picture, plain_json
from vitviz.visualization.heatmaps import COLORMAPS
from vitviz.visualization.scales import SCALES
from vitviz.weights.model import Snapshots

Make = Callable[..., Model]
FAST = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
KINDS: dict[str, dict[str, Any]] = {
    "classes": {},
    "registers": {"register_tokens": 2},
    "features": {"classes": 0},
    "mean": {"classes": 0, "cls_token": False, "register_tokens": 2, "pooling": "mean"},
    "pooled": {"cls_token": False, "pooling": "attention"},
    "texts": {"classes": 0},
    "snapshots": {},
}
STEPS = (0, 20, 1000)


@pytest.fixture(params=KINDS)
def seen(request: pytest.FixtureRequest, make_model: Make, monkeypatch: pytest.MonkeyPatch) -> ShownView:
    """A model of every kind, with a picture of other patches than those it was trained with."""
    model = make_model(**KINDS[request.param])
    monkeypatch.setattr(vitviz.ui.normalize, "reads_text", lambda model: request.param == "texts")
    if request.param == "snapshots":
        model = replace(model, snapshots=Snapshots(dict.fromkeys(STEPS, Path("none"))), step=STEPS[-1])
    return ShownView(model, model.network.config.layout(20, 28))


# ---- any JSON ----

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), st.text(max_size=9), st.sampled_from(["cls"])
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
PLAIN: Any = PageState().to_json()
FULL_VIEW = {"parameters": {"layer": 1, "head": 2, "query": [1, 2], "direction": "column"}, "pins": [[0, 1], "cls"]}


def is_sentence(error: MethodError) -> bool:
    text = str(error)
    return 0 < len(text) < 2000 and "\n" not in text


def is_legal(value: object, seen: ShownView) -> bool:
    """Whether a value is read as a state that is legal for a model once it is normalized, or refused in a sentence."""
    try:
        state = PageState.from_json(value)
    except MethodError as error:
        return is_sentence(error)
    found, notes = normalize(state, [seen] * len(state.views))
    again, none = normalize(found, [seen] * len(found.views))
    assert all(note.endswith(".") and "\n" not in note for note in notes)
    return found == again and none == [] and PageState.from_json(found.to_json()) == found


@FAST
@given(value=JSON)
def test_any_json_is_a_legal_state_or_one_sentence(seen: ShownView, value: object) -> None:
    assert is_legal(value, seen)


@FAST
@given(data=st.data())
def test_any_state_with_something_else_in_one_place_is_legal_or_one_sentence(
    seen: ShownView, data: st.DataObject
) -> None:
    state = {**PLAIN, "views": [{**PLAIN["views"][0], **FULL_VIEW}]}
    at = data.draw(st.sampled_from(["", "view", "parameters", "pins"]))
    other = data.draw(JSON)
    view = state["views"][0]
    if at == "":
        state[data.draw(st.sampled_from(list(PLAIN)))] = other
    elif at == "view":
        view[data.draw(st.sampled_from(list(view)))] = other
    elif at == "parameters":
        method = data.draw(st.sampled_from(list(METHODS)))
        names = [part.name for part in METHODS[method].parameters]
        view |= {"method": method, "parameters": {data.draw(st.sampled_from(names)): other}}
    else:
        view["pins"] = [other, [1, 1]]
    assert is_legal(state, seen)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layout": "three"}, "layout = 'three': expected 'one', 'slide', 'two' or 'difference'"),
        ({"opacity": 1.5}, "opacity = 1.5: expected a number from 0 to 1"),
        ({"opacity": float("nan")}, "opacity = nan: expected a number from 0 to 1"),
        ({"guide": 6}, "guide = 6: expected a whole number from 0 to 5"),
        ({"colour": "red"}, "state has no 'colour'"),
        ({"views": []}, r"views = \[\]: expected a list of 1 or 2 views"),
        ({"views": [{"model": "own:1"}]}, "model = 'own:1': expected"),
        ({"views": [{"model": "../../etc"}]}, "model = '../../etc': expected"),
        ({"views": [{"picture": "example:../x"}]}, "picture = 'example:../x': expected"),
        (
            {"views": [{"pins": [[n, n] for n in range(MAX_PINS + 1)]}]},
            "pins = 7 entries: expected a list of at most 6",
        ),
        ({"views": [{"parameters": {"layer": 1.5}}]}, "parameters.layer = 1.5: expected a whole number"),
        ({"views": [{"parameters": {"target": 1}}]}, "parameters has no 'target'"),
        (
            {"views": [{"method": "relevance", "parameters": {"target": {"text": "\ud800"}}}]},
            "expected whole characters",
        ),
        ({"views": [{"heads_off": [[0]]}]}, r"heads_off = \[0\]: expected a list of two whole numbers"),
    ],
)
def test_what_is_no_state_is_refused_in_words(change: dict[str, Any], words: str) -> None:
    with pytest.raises(MethodError, match=words):
        PageState.from_json({**PLAIN, **change})


def test_a_state_cannot_be_changed_and_leaves_out_what_is_null() -> None:
    state = PageState.from_json({"views": [{"parameters": {"layer": None, "head": 1}}]})
    assert state.views[0].parameters == {"head": 1}
    with pytest.raises(AttributeError):
        state.layout = "two"  # type: ignore[misc]


def test_what_may_stand_for_a_model_or_a_picture() -> None:
    legal = ["", "vitviz-cifar10", "dino_vits16", "hf:owner/name", "hf:owner/name@main", f"own:{'a' * 22}"]
    assert all(map(is_model, legal))
    assert not any(map(is_model, ["hf:owner", "hf:../..", "start", "own:", "/etc/passwd", None, 3, ["x"]]))
    assert all(map(is_picture, [f"example:{EXAMPLES[0]}", f"picture:{'-' * 22}"]))
    assert not any(map(is_picture, ["", "example:README.md", "picture:short", "/etc/passwd", None]))


# ---- what a model and a picture have ----


def test_a_state_gets_the_values_of_its_model_and_says_each_change(make_model: Make) -> None:
    model = make_model()
    seen = ShownView(model, model.network.config.layout(16, 24))
    view = View(
        step=20,
        fit="squash",
        resolution=18,
        method="relevance",
        parameters={"target": "class 9", "start_layer": -1, "query": 1},
        pins=("register 1", (3, 5), 7, (9, 9)),
        heads_off=((0, 0), (9, 0)),
        patches_off=((0, 0), (4, 0)),
    )
    state, notes = normalize(PageState((view,), "two"), [seen])
    first, second = state.views
    assert first == second
    assert first == View(
        method="relevance",
        parameters={"start_layer": 2, "query": (0, 0)},
        pins=((3, 5), (1, 0)),
        heads_off=((0, 0),),
        patches_off=((0, 0),),
    )
    assert notes == [
        "small has no snapshot of training step 20: the last state is shown.",
        "resolution = 18: expected a multiple of the patch's 4 pixels: 16 or 20. The trained resolution is used.",
        "class 'class 9': this model has no such class; expected its number. The default is shown.",
        "Of the pins, 2 are left out: this model and picture lack them.",
        "Of the heads switched off, 1 are left out: this model and picture lack them.",
        "Of the patches switched off, 1 are left out: this model and picture lack them.",
    ]


def test_a_class_map_of_a_model_without_classes_is_never_another_map_without_a_word(make_model: Make) -> None:
    model = make_model(classes=0)
    seen = ShownView(model, model.network.config.layout(16, 24))
    state, notes = normalize(read_link("?method=relevance&p.target=cat&p.query=3,5").state, [seen])
    # It can still be about likeness.
    assert state.views[0] == View(method="relevance", parameters={"query": (3, 5)})
    assert notes == ["small has no class 'cat'."]
    state, notes = normalize(read_link("?method=pooling_attention&p.query=3,5").state, [seen])
    assert state.views[0] == View()
    assert notes[0].endswith("Shown instead: token attention.")


PICTURE_TARGETS: list[tuple[dict[str, Any], str]] = [
    ({"like": "example:rocket.jpg"}, "like=example:rocket.jpg"),
    ({"like": f"picture:{'x' * 22}", "patch": (9, 9)}, f"like=picture:{'x' * 22}&like-patch=9,9"),
    ({"patch": (3, 5)}, "like-patch=3,5"),
]
CLASS_TARGETS: list[tuple[dict[str, Any], str]] = [
    ({"class": 1, "against": 3}, "p.target=1&against=3"),
    ({"against": 3}, "against=3"),
    ({"margin": True}, "margin=true"),
    ({"class": 2, "margin": True}, "p.target=2&margin=true"),
]


@pytest.mark.parametrize("classes", [5, 0])
@pytest.mark.parametrize(("target", "words"), PICTURE_TARGETS + CLASS_TARGETS)
def test_a_target_of_several_parts_is_a_state_and_a_link(
    make_model: Make, target: dict[str, Any], words: str, classes: int
) -> None:
    model = make_model(classes=classes)
    seen = ShownView(model, model.network.config.layout(16, 24))
    state = PageState((View(method="relevance", parameters={"target": target}),))
    found, notes = normalize(state, [seen])
    if not classes and "like" not in target and "patch" not in target:
        assert (found.views[0].parameters, len(notes)) == ({}, 1)
        return
    assert (found, notes) == (state, [])
    assert PageState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert print_link(state, {}) == f"?method=relevance&{words}"
    read = read_link(print_link(state, {}))
    assert (read.state, read.notes) == (state, ())


def test_the_classes_of_a_target_are_found_by_their_labels(make_model: Make) -> None:
    model = make_model()
    seen = ShownView(model, model.network.config.layout(16, 24))
    read = read_link("?method=grad_cam&p.target=class+1&against=class+4").state
    assert normalize(read, [seen])[0].views[0].parameters == {"target": {"class": 1, "against": 4}}
    for words, note in (
        ("p.target=class+1&against=1", "class and against are the same; expected two classes"),
        ("against=9", "Class = 9: expected a whole number from 0 to 4"),
        ("like-patch=4,0", "patch"),
    ):
        state, notes = normalize(read_link(f"?method=grad_cam&{words}").state, [seen])
        assert state.views[0].parameters == {} and len(notes) == 1 and note in notes[0]


def test_what_contradicts_itself_in_a_link_is_left_out_and_said() -> None:
    for words in ("like=nothing", "like=example:rocket.jpg&like-patch=3", "margin=maybe", "against=1&margin=true"):
        read = read_link(f"?method=relevance&{words}")
        assert read.state.views[0] == View(method="relevance") and read.notes
        assert all(note.startswith("Left out of this link: ") for note in read.notes)


def test_defaults_of_a_model_are_left_out_and_last_layers_are_counted_from_0(make_model: Make) -> None:
    for model, query in ((make_model(), "cls"), (make_model(cls_token=False, pooling="mean"), PATCHES)):
        seen = ShownView(model, model.network.config.layout(16, 24))
        for parameters in ({"layer": -1, "head": "mean", "query": query}, {"layer": 2, "direction": "row"}):
            state, notes = normalize(PageState((View(parameters=parameters),)), [seen])
            assert state.views[0].parameters == {} and notes == []
    pooled = make_model(cls_token=False, pooling="attention")
    seen = ShownView(pooled, pooled.network.config.layout(16, 24))
    # There the default starts from what is no token.
    assert normalize(PageState((View(parameters={"query": PATCHES}),)), [seen])[0].views[0].parameters == {
        "query": PATCHES
    }


def test_likeness_to_a_patch_is_seen_by_all_patches_unless_another_token_is_chosen(make_model: Make) -> None:
    model = make_model()
    seen = ShownView(model, model.network.config.layout(16, 24))
    for target, default, other in (
        ({"patch": (0, 1)}, PATCHES, "cls"),
        ({"like": "example:rocket.jpg"}, "cls", PATCHES),
    ):
        for query, kept in ((default, {}), (other, {"query": other})):
            view = View(method="relevance", parameters={"target": target, "query": query})
            found = normalize(PageState((view,)), [seen])[0].views[0].parameters
            assert found == {"target": target, **kept}


def test_what_is_not_known_yet_stays(make_model: Make) -> None:
    state = PageState((View(method="relevance", parameters={"target": "cat", "start_layer": 99}),))
    assert normalize(state) == (state, []) == normalize(state, [None])


# ---- links ----


def parameters(part: Parameter, seen: ShownView) -> st.SearchStrategy[Any]:
    """The values that a model and a picture have."""
    config, layout = seen.model.network.config, seen.layout
    match part:
        case Choice():
            return st.sampled_from([value for _, value in part.options])
        case Number():
            if part.whole:
                return st.integers(int(part.minimum), int(part.maximum))
            return st.floats(part.minimum, part.maximum)
        case LayerNumber():
            return st.integers(-config.depth, config.depth - 1)
        case HeadNumber():
            return st.sampled_from(list(HEAD_FUSIONS)) | st.integers(-config.heads, config.heads - 1)
        case TokenQuery():
            return tokens(layout)
        case ClassTarget():
            likeness = st.fixed_dictionaries({"like": st.sampled_from([f"example:{name}" for name in EXAMPLES])})
            own_patch = st.fixed_dictionaries({"patch": places(layout)})
            if not config.classes:
                return likeness | own_patch | st.fixed_dictionaries({"text": st.text(min_size=1, max_size=9)})
            classes = st.integers(0, config.classes - 2)
            against = st.fixed_dictionaries({"against": st.just(config.classes - 1)}, optional={"class": classes})
            margin = st.fixed_dictionaries({"margin": st.just(True)}, optional={"class": classes})
            return classes | against | margin | likeness | own_patch


def places(layout: TokenLayout) -> st.SearchStrategy[tuple[int, int]]:
    return st.tuples(st.integers(0, layout.grid_height - 1), st.integers(0, layout.grid_width - 1))


def tokens(layout: TokenLayout) -> st.SearchStrategy[Any]:
    patches = st.tuples(st.integers(0, layout.grid_height - 1), st.integers(0, layout.grid_width - 1))
    return patches | st.sampled_from([*layout.prefix, PATCHES])


@st.composite
def views(draw: Any, seen: ShownView) -> View:
    method = METHODS[draw(st.sampled_from(list(METHODS)))]
    given = {part.name: parameters(part, seen) for part in method.parameters}
    config, layout = seen.model.network.config, seen.layout
    heads = st.tuples(st.integers(0, config.depth - 1), st.integers(0, config.heads - 1))
    patches = st.tuples(st.integers(0, layout.grid_height - 1), st.integers(0, layout.grid_width - 1))
    values = draw(st.fixed_dictionaries({}, optional=given))
    probe = PROBES[draw(st.sampled_from(list(PROBES)))]
    asked = {part.name: parameters(part, seen) for part in probe.parameters}
    try:
        return View(
            model=draw(st.sampled_from(["", "vitviz-cifar10", "dino_vits16", "hf:owner/na.me"])),
            step=draw(st.sampled_from([None, *STEPS])),
            picture=draw(st.sampled_from([*(f"example:{name}" for name in EXAMPLES), f"picture:{'aB-_' * 5}xy"])),
            fit=draw(st.sampled_from([None, "crop", "squash", "native"])),
            resolution=draw(st.sampled_from([None, "native", 12, 16, 32])),
            method=method.name,
            parameters=values,
            pins=tuple(draw(st.lists(tokens(layout), max_size=MAX_PINS))),
            heads_off=tuple(draw(st.lists(heads, max_size=5))),
            patches_off=tuple(draw(st.lists(patches, max_size=5))),
            probe=probe.name,
            probe_parameters=draw(st.fixed_dictionaries({}, optional=asked)),
        )
    except MethodError:
        # A text of spaces alone.
        return View()


@st.composite
def states(draw: Any, seen: ShownView) -> PageState:
    return PageState(
        views=tuple(draw(st.lists(views(seen), min_size=1, max_size=2))),
        layout=draw(st.sampled_from(LAYOUTS)),
        divider=draw(st.floats(0, 1)),
        colormap=draw(st.sampled_from(COLORMAPS)),
        opacity=draw(st.floats(0, 1)),
        fade=draw(st.booleans()),
        smooth=draw(st.booleans()),
        grid=draw(st.booleans()),
        outliers=draw(st.booleans()),
        scale=draw(st.sampled_from([None, *SCALES])),
        percentiles=draw(st.tuples(st.floats(0, 49), st.floats(50, 100))),
        shared_scale=draw(st.booleans()),
        panel=draw(st.sampled_from(PANELS)),
        guide=draw(st.integers(0, 5)),
    )


@FAST
@given(data=st.data())
def test_a_link_gives_the_state_back_that_it_was_written_from(seen: ShownView, data: st.DataObject) -> None:
    state, _ = normalize(data.draw(states(seen)), [seen, seen])
    link = print_link(state, {})
    read = read_link(link)
    assert read.notes == ()
    found, notes = normalize(read.state, [seen] * len(read.state.views))
    assert (found, notes) == (state, []) and print_link(found, {}) == link
    assert PageState.from_json(plain_json(state.to_json())) == state


VIEW_WORDS = ["model", "own", "step", "example", "picture", "fit", "resolution", "method", "words", "pins", "heads-off"]
PAGE_WORDS = ["patches-off", "layout", "divider", "opacity", "grid", "shared", "guide", "panel", "outliers"]
OLD_WORDS = ["tab", "map", "token", "view", "layer", "head"]
PARAMETER_WORDS = ["p.layer", "p.head", "p.query", "p.target", "p.direction", "p.mass", "p.start_layer", "p.x"]
PROBE_WORDS = ["probe", "probe.layer", "probe.query", "probe.features"]
WORDS = st.sampled_from([*VIEW_WORDS, *PAGE_WORDS, *OLD_WORDS, *PARAMETER_WORDS, *PROBE_WORDS])
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
    seen: ShownView, pairs: list[tuple[str, str, bool]], rest: str, split: bool
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


LOOK: dict[str, Any] = {"scale": "robust", "percentiles": (5, 97.5)}


@pytest.mark.parametrize(
    ("link", "note"),
    [
        ("?scale=logarithm", "scale = 'logarithm': expected 'linear', 'robust', 'log', 'rank' or 'zero'"),
        ("?percentiles=98,2", "percentiles = (98.0, 2.0): expected two numbers from 0 to 100, the lower one first"),
        ("?percentiles=5", "percentiles = (5.0,): expected two numbers"),
        ("?percentiles=low,high", "percentiles = 'low,high' (expected a number)"),
    ],
)
def test_a_scale_that_there_is_not_is_left_out_of_a_link(link: str, note: str) -> None:
    read = read_link(link)
    assert read.state == PageState() and len(read.notes) == 1
    assert read.notes[0].startswith(f"Left out of this link: {note}")


def test_a_link_says_what_differs_and_nothing_else() -> None:
    first = View("dino_vits16", None, "example:rocket.jpg", "crop", 96, "relevance", {"target": 3, "query": (3, 5)})
    first = replace(first, pins=((3, 5), "cls"), heads_off=((0, 1), (2, 3)), patches_off=((3, 5),))
    second = View("", None, "example:rocket.jpg", None, None, "rollout", {"discard_ratio": 0.1})
    link = print_link(PageState((first, second), "difference", grid=True, opacity=0.25, shared_scale=True, **LOOK), {})
    assert link == (
        "?model=dino_vits16&example=rocket.jpg&fit=crop&resolution=96&method=relevance&p.target=3&p.query=3,5"
        "&pins=3,5;cls&heads-off=0.1;2.3&patches-off=3.5&second.method=rollout&second.model=start&second.fit=own"
        "&second.resolution=trained&second.p.discard_ratio=0.1&layout=difference&opacity=0.25&grid=true"
        "&scale=robust&percentiles=5,97.5&shared=true"
    )


def test_a_link_of_somebodys_own_checkpoint_says_so() -> None:
    own = f"own:{'a' * 22}"
    link = print_link(PageState((View(own, method="rollout"),)), {own: "mine & yours.safetensors"})
    assert link == "?own=mine+%26+yours.safetensors" and "a" * 22 not in link
    read = read_link(link)
    assert read.state == PageState() and read.notes == (SOMEBODYS_OWN.format("mine & yours.safetensors"),)


OLD_LINKS = {
    "?model=dino_vits16&example=rocket.jpg&fit=crop&resolution=96": View(
        "dino_vits16", None, "example:rocket.jpg", "crop", 96, "rollout"
    ),
    "?resolution=the+picture%27s+own&step=20": View(step=20, resolution="native", method="rollout"),
    "?resolution=as+trained": View(method="rollout"),
    "?tab=maps&method=relevance&p.target=cat&p.query=3%2C5#layer=2&head=0&map=row&token=cls": View(
        method="relevance", parameters={"target": "cat", "query": (3, 5)}
    ),
    "?tab=maps&method=relevance&p.target=crane+%28134%29": View(
        method="relevance", parameters={"target": "crane (134)"}
    ),
    "?tab=maps&method=relevance&words=a+photo+of+a+cat": View(
        method="relevance", parameters={"target": {"text": "a photo of a cat"}}
    ),
    "?tab=maps&p.direction=is+looked+at+by&p.head=max&p.layer=0": View(
        parameters={"direction": "column", "head": "max", "layer": 0}
    ),
    "?tab=maps&method=rollout&p.reference=rows+%28the+paper%29&p.query=pooling+query": View(method="rollout"),
    "?example=coffee.jpg#layer=2&head=0&map=column&token=register+1": View(
        picture="example:coffee.jpg",
        parameters={"direction": "column", "layer": 2, "head": 0, "query": "register 1"},
    ),
    "#layer=2&head=mean&map=rollout&token=3,5": View(method="rollout", parameters={"query": (3, 5)}),
    "#layer=2&head=mean&map=map+legrad&token=3,5": View(method="legrad"),
}


@pytest.mark.parametrize("link", OLD_LINKS)
def test_links_of_before_are_read(link: str) -> None:
    read = read_link(link)
    assert read.notes == () and read.state == PageState((OLD_LINKS[link],))


def test_the_look_and_the_second_map_of_links_of_before_are_read() -> None:
    old = (
        "#layer=1&head=0&map=row&token=3,5&second.layer=2&second.head=max&second.map=rollout&view=two&colormap=viridis"
    )
    state = read_link(f"?second.model=start&second.example=rocket.jpg{old}&opacity=0.3&grid=false&shared=true").state
    assert (state.layout, state.colormap, state.opacity, state.grid, state.shared_scale) == (
        "two",
        "viridis",
        0.3,
        False,
        True,
    )
    assert state.views == (
        View(parameters={"layer": 1, "head": 0, "query": (3, 5)}),
        View(picture="example:rocket.jpg", method="rollout", parameters={"query": (3, 5)}),
    )
    assert read_link("?layout=slide&divider=0.25").state == PageState(layout="slide", divider=0.25)


def test_what_a_link_says_wrongly_is_left_out_and_said() -> None:
    read = read_link("?model=../x&opacity=2&p.layer=one&heads-off=1&method=attention&pins=cls;3,5")
    assert read.state == PageState((View(pins=("cls", (3, 5))),))
    starts = ("model = '../x'", "p.layer = 'one'", "heads_off = '1'", "opacity = ")
    assert len(read.notes) == len(starts)
    for note, start in zip(read.notes, starts, strict=True):
        assert note.startswith(f"Left out of this link: {start}") and note.count(start) == 1
    assert read_link("?method=magic").notes == ("Link: there is no map 'magic'.",)


# ---- what the page is told ----


def test_every_method_says_all_that_its_controls_need(seen: ShownView) -> None:
    for name, method in METHODS.items():
        facts = method_facts(method)
        assert facts["group"] in ("token", "layers", "target") and facts["live"] == (name == "attention")
        assert facts["about_a_class"] == (facts["group"] == "target")
        for part, shown in zip(method.parameters, facts["parameters"], strict=True):
            assert shown["name"] == part.name and shown["default"] == part.default and shown["help"]
            if isinstance(part, Choice):
                assert [each["value"] for each in shown["options"]] == [value for _, value in part.options]
            if isinstance(part, Number):
                assert (shown["minimum"], shown["maximum"], shown["step"]) == (part.minimum, part.maximum, part.step)
    groups = {name: method_facts(METHODS[name])["group"] for name in ("attention_mass", "rollout", "attention_flow")}
    assert groups == {"attention_mass": "token", "rollout": "layers", "attention_flow": "layers"}
    facts = model_facts("", "mine", seen.model)
    assert facts["labels"] == list(seen.model.labels) and facts["layers"] == 3 and facts["patch"] == [4, 4]
    # Every model can be asked about likeness.
    assert set(facts["refusals"]) <= {"pooling_attention"}
    assert facts["steps"] == (list(STEPS) if seen.model.snapshots else None)


def test_classes_of_one_name_are_told_apart(make_model: Make) -> None:
    model = replace(make_model(), labels=("crane", "cat", "crane", "dog", "eel"))
    assert model_facts("", "", model)["labels"] == ["crane (0)", "cat", "crane (2)", "dog", "eel"]
    seen = ShownView(model, model.network.config.layout(16, 24))
    for label, index in (("crane (2)", 2), ("cat", 1)):
        state = PageState((View(method="relevance", parameters={"target": label}),))
        assert normalize(state, [seen])[0].views[0].parameters == {"target": index}
    _, notes = normalize(PageState((View(method="relevance", parameters={"target": "crane"}),)), [seen])
    assert notes == ["class 'crane': this model has 2 such class; expected its number. The default is shown."]


def test_a_parameter_that_a_link_alone_knows_is_said() -> None:
    read = read_link("?method=relevance&p.tarket=cat&second.method=rollout&second.p.layer=2&utm_source=x&probe.speed=1")
    assert [view.parameters for view in read.state.views] == [{}, {}]
    assert read.notes == (
        "Left out of this link: 'p.tarket' (did you mean 'p.target'?).",
        "Left out of this link: 'probe.speed'.",
        "Left out of this link: 'p.layer' (did you mean 'p.start_layer'?).",
    )
