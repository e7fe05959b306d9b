"""The page's scales give the numbers and the sentences of the library's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from tests.support.example import ROOT
from tests.support.node import in_node
from vitviz.ui.facts import scales
from vitviz.visualization.scales import SCALES, fit

REAL = dict(np.load(ROOT / "tests" / "data" / "vit_s14_maps.npz"))
FITTED = """([cases, records]) => cases.map(({ name, maps, percentiles, low, high, signed }) => {
    const scale = fitScale(name, maps, { percentiles, low, high, signed });
    return { name: scale.name, ends: scale.ends, places: maps.map((values) => Array.from(scale.places(values))),
        beyond: maps.map((values) => scale.beyond(values)),
        captions: maps.map((values) => scale.caption(values, records[scale.name])) };
})"""
SYNTHETIC = {
    "nothing": np.zeros(9),
    "constant": np.full(9, 0.25),
    "one patch": np.array([0.5]),
    "two patches": np.array([0.1, 0.7]),
    "in or out": np.arange(20) % 2.0,
    "a ramp": np.linspace(-1, 1, 50),
    "nearly flat": np.linspace(0.00500, 0.00518, 50),
    "nearly flat below zero": np.linspace(-1.05, -1, 50),
    "below zero": np.linspace(-2, -1, 50),
    "a sink": np.append(np.linspace(1, 5, 99), 300),
    "a sink over ratios": np.append(np.geomspace(1e-9, 1, 99), 300),
    "six sinks": np.append(np.linspace(1, 5, 250), [40] * 6),
    "six sinks that hold most": np.append(np.linspace(1, 5, 250), [4000] * 6),
    "a peak on a plain background": np.append(np.linspace(1, 1.5, 99), 300),
}


def cases() -> Iterator[dict[str, Any]]:
    every = {**{name: values.ravel().astype(np.float64) for name, values in REAL.items()}, **SYNTHETIC}
    for turn, name in enumerate((None, *SCALES)):
        # Every map on every scale, and each of them with every choice.
        for number, values in enumerate(every.values(), turn):
            percentiles = ((2, 98), (0, 100), (12.5, 60))[number % 3]
            yield case(name, [values], percentiles=percentiles, signed=number // 3 % 2 == 1)
        for ends in ({"low": 0}, {"low": 0.001}, {"high": 0.01}, {"low": -1, "high": 0.05}, {"low": 9}):
            yield case(name, [every["rollout_mean_coffee"]], **ends)
            yield case(name, [every["rollout_mean_coffee"]], signed=True, **ends)
        yield case(name, [every["rollout_mean_coffee"], every["cls_rocket"], every["a ramp"]])


def case(name: str | None, maps: list[np.ndarray], **options: Any) -> dict[str, Any]:
    plain: dict[str, Any] = {"percentiles": (2, 98), "low": None, "high": None, "signed": False}
    return {"name": name, "maps": [values.tolist() for values in maps], **plain, **options}


def test_the_page_has_the_places_ends_and_sentences_of_the_library() -> None:
    asked = list(cases())
    records = {record["name"]: record for record in scales() if record["name"]}
    for each, found in zip(asked, in_node({"scales.js": "fitScale"}, FITTED, [asked, records]), strict=True):
        options = {name: each[name] for name in ("percentiles", "low", "high", "signed")}
        expected = fit(each["name"], each["maps"], **options)
        about = (each["name"], options, found["name"])
        assert found["name"] == expected.scale.name, about
        assert tuple(found["ends"]) == expected.ends, about
        for values, places, beyond, caption in zip(
            each["maps"], found["places"], found["beyond"], found["captions"], strict=True
        ):
            theirs = expected.place(values).clip(0, 1)
            np.testing.assert_allclose(np.clip(places, 0, 1), theirs, atol=1e-6, err_msg=str(about))
            assert tuple(beyond) == expected.beyond(values), about
            assert caption == expected.caption(values), about


def test_the_controls_are_made_from_the_records() -> None:
    automatic, *named = scales()
    assert automatic["name"] is None and automatic["help"]
    assert named == [
        {name: asdict(scale)[name] for name in ("name", "title", "help", "caption", "signed_caption")}
        for scale in SCALES.values()
    ]
    assert all(each["help"].count(".") == 1 and each["help"].endswith(".") for each in named)
