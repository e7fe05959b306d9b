"""A state of the page: only legal ones are made, and a link says one and gives it back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.makers import MakeModel
from tests.support.page_states import FAST, STEPS, is_legal, shown
from vitviz import METHODS, Analysis
from vitviz.attention.layout import PATCHES
from vitviz.errors.kinds import MethodError
from vitviz.ui.facts import method_facts, model_facts
from vitviz.ui.links import print_link, read_link
from vitviz.ui.normalize import normalize
from vitviz.ui.pictures import EXAMPLES, picture_name
from vitviz.ui.state import ANYTHING, MAX_PINS, ModelName, PageState, View

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


@FAST
@given(data=st.data())
def test_any_state_with_something_else_in_one_place_is_legal_or_one_sentence(
    seen: Analysis, data: st.DataObject
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
        ({"layout": "three"}, "layout = 'three': expected 'one', 'slide', 'two', 'difference' or 'alike'"),
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
    legal = [
        "",
        "vitviz-photos",
        "dino_vits16",
        "hf:owner/name",
        "hf:owner/name@main",
        "timm:vit_small.tag",
        "open_clip:ViT-B-32/laion2b",
        f"own:{'a' * 22}",
    ]
    assert [ModelName().read(each, ANYTHING, "model") for each in legal] == legal
    for name in (
        "hf:owner",
        "hf:../..",
        "timm:",
        "timm:a/b",
        "open_clip:ViT-B-32",
        "start",
        "own:",
        "/etc/passwd",
        None,
        3,
        ["x"],
    ):
        with pytest.raises(MethodError, match=r"^model = .*: expected a name of the menu"):
            ModelName().read(name, ANYTHING, "model")
    legal = [f"example:{EXAMPLES[0]}", f"picture:{'-' * 22}"]
    assert [picture_name("picture", each) for each in legal] == legal
    for name in ("", "example:README.md", "picture:short", "/etc/passwd", None):
        with pytest.raises(MethodError, match=r"^picture = .*: expected example:NAME, or picture: and"):
            picture_name("picture", name)


# ---- what a model and a picture have ----


def test_a_state_gets_the_values_of_its_model_and_says_each_change(make_model: MakeModel) -> None:
    model = make_model()
    seen = shown(model)
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
        "Resolution 18: expected a multiple of the patch's 4 pixels: 16 or 20. The trained resolution is used.",
        "class 'class 9': this model has no such class; expected a label or a number to 4: 'class 0', 'class 1', "
        "'class 2', 'class 3' or 'class 4'. The default is shown.",
        "Left out of the pins: 2, which this model and picture lack.",
        "Left out of the heads switched off: 1, which this model and picture lack.",
        "Left out of the patches switched off: 1, which this model and picture lack.",
    ]


def test_a_class_map_of_a_model_without_classes_is_never_another_map_without_a_word(make_model: MakeModel) -> None:
    seen = shown(make_model(classes=0))
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
    make_model: MakeModel, target: dict[str, Any], words: str, classes: int
) -> None:
    seen = shown(make_model(classes=classes))
    state = PageState((View(method="relevance", parameters={"target": target}),))
    found, notes = normalize(state, [seen])
    if not classes and "like" not in target and "patch" not in target:
        assert (found.views[0].parameters, len(notes)) == ({}, 1)
        return
    assert (found, notes) == (state, [])
    assert PageState.from_json(json.loads(json.dumps(state.to_json()))) == state
    assert print_link(state, {}) == f"?method=relevance&{words}"
    read = read_link(print_link(state, {}))
    assert (normalize(read.state, [seen])[0], read.notes) == (state, ())


def test_the_classes_of_a_target_are_found_by_their_labels(make_model: MakeModel) -> None:
    model = make_model()
    seen = shown(model)
    read = read_link("?method=grad_cam&p.target=class+1&against=class+4").state
    assert normalize(read, [seen])[0].views[0].parameters == {"target": {"class": 1, "against": 4}}
    for words, note in (
        ("p.target=class+1&against=1", "class and against are the same; expected two classes"),
        ("against=9", "class '9': this model has no such class; expected a label or a number to 4"),
        ("like-patch=4,0", "patch"),
    ):
        state, notes = normalize(read_link(f"?method=grad_cam&{words}").state, [seen])
        assert state.views[0].parameters == {} and len(notes) == 1 and note in notes[0]


def test_what_contradicts_itself_in_a_link_is_left_out_and_said() -> None:
    for words in ("like=nothing", "like=example:rocket.jpg&like-patch=3", "margin=maybe", "against=1&margin=true"):
        read = read_link(f"?method=relevance&{words}")
        assert read.state.views[0] == View(method="relevance") and read.notes
        assert all(note.startswith("Left out of this link: ") for note in read.notes)


def test_defaults_of_a_model_are_left_out_and_last_layers_are_counted_from_0(make_model: MakeModel) -> None:
    for model, query in ((make_model(), "cls"), (make_model(cls_token=False, pooling="mean"), PATCHES)):
        seen = shown(model)
        for parameters in ({"layer": -1, "head": "mean", "query": query}, {"layer": 2, "direction": "row"}):
            state, notes = normalize(PageState((View(parameters=parameters),)), [seen])
            assert state.views[0].parameters == {} and notes == []
    seen = shown(make_model(cls_token=False, pooling="attention"))
    # There the default starts from what is no token.
    assert normalize(PageState((View(parameters={"query": PATCHES}),)), [seen])[0].views[0].parameters == {
        "query": PATCHES
    }


def test_likeness_to_a_patch_is_seen_by_all_patches_unless_another_token_is_chosen(make_model: MakeModel) -> None:
    seen = shown(make_model())
    for target, default, other in (
        ({"patch": (0, 1)}, PATCHES, "cls"),
        ({"like": "example:rocket.jpg"}, "cls", PATCHES),
    ):
        for query, kept in ((default, {}), (other, {"query": other})):
            view = View(method="relevance", parameters={"target": target, "query": query})
            found = normalize(PageState((view,)), [seen])[0].views[0].parameters
            assert found == {"target": target, **kept}


def test_what_is_not_known_yet_stays(make_model: MakeModel) -> None:
    state = PageState((View(method="relevance", parameters={"target": "cat", "start_layer": 99}),))
    assert normalize(state) == (state, []) == normalize(state, [None])


# ---- what the page is told ----


def test_every_method_says_all_that_its_controls_need(seen: Analysis) -> None:
    for method in METHODS.values():
        facts = method_facts(method)
        assert facts["group"] in ("token", "layers", "target")
        # Gradients, and what reports progress, take longer than a page waits without a word.
        assert (method.computed_by == "run") == (method.requires != "trace" or method.reports)
        assert {part.name for part in method.parameters}.issuperset(facts["page_parameters"])
        assert facts["about_a_class"] == (facts["group"] == "target")
        for part, told in zip(method.parameters, facts["parameters"], strict=True):
            assert (told["name"], told["default"]) == (part.name, part.default) and told["help"] and told["kind"]
    groups = {name: method_facts(METHODS[name])["group"] for name in ("attention_mass", "rollout", "attention_flow")}
    assert groups == {"attention_mass": "token", "rollout": "layers", "attention_flow": "layers"}
    facts = model_facts("", "mine", seen.model)
    assert facts["labels"] == list(seen.model.labels) and facts["patch"] == [4, 4]
    # Every model can be asked about likeness.
    assert set(facts["refusals"]) <= {"pooling_attention"}
    assert facts["steps"] == (list(STEPS) if seen.model.snapshots else None)


def test_classes_of_one_name_are_told_apart(make_model: MakeModel) -> None:
    model = replace(make_model(), labels=("crane", "cat", "crane", "dog", "eel"))
    assert model_facts("", "", model)["labels"] == ["crane (0)", "cat", "crane (2)", "dog", "eel"]
    seen = shown(model)
    for label, index in (("crane (2)", 2), ("cat", 1)):
        state = PageState((View(method="relevance", parameters={"target": label}),))
        assert normalize(state, [seen])[0].views[0].parameters == {"target": index}
    _, notes = normalize(PageState((View(method="relevance", parameters={"target": "crane"}),)), [seen])
    assert notes[0].startswith("class 'crane': this model has 2 classes of this name, numbers 0, 2; expected a label")


@pytest.mark.parametrize("target", [0, 1, 2, 3, 4, {"class": 1, "against": 3}, {"class": 3, "margin": True}])
def test_a_link_to_classes_that_are_named_by_numbers_shows_the_same_ones(make_model: MakeModel, target: Any) -> None:
    model = replace(make_model(), labels=("10", "3", "7", "1", "7"))
    seen = shown(model)
    state = PageState((View(method="relevance", parameters={"target": target}),))
    assert normalize(read_link(print_link(state, {}, [model.labels])).state, [seen]) == (state, [])
    # A name comes before a number.
    written = normalize(read_link("?method=relevance&p.target=3").state, [seen])[0]
    assert written.views[0].parameters == {"target": 1}


def test_a_parameter_that_a_link_alone_knows_is_said() -> None:
    read = read_link("?method=relevance&p.tarket=cat&second.method=rollout&second.p.layer=2&utm_source=x&probe.speed=1")
    assert [view.parameters for view in read.state.views] == [{}, {}]
    assert read.notes == (
        "Left out of this link: 'p.tarket' (did you mean 'p.target'?).",
        "Left out of this link: 'probe.speed'.",
        "Left out of this link: 'p.layer' (did you mean 'p.end_layer'?).",
    )


def test_the_ends_of_a_held_scale_are_in_order(example: Analysis) -> None:
    for low, high, kept in ((0.0, 0.0, True), (-1.0, None, True), (None, 2.0, True), (0.5, 0.25, False)):
        state, notes = normalize(PageState(low=low, high=high), [example])
        assert (state.low, state.high) == ((low, high) if kept else (None, None))
        assert notes == (
            [] if kept else ["low = 0.5 and high = 0.25: expected the lower one first. Each map has its own ends."]
        )
