"""What a page computes from the queries and keys of its own network is what the library computes."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import torch
from safetensors.torch import load

import vitviz
from tests.support.example import EXAMPLE
from tests.support.map_contents import metadata_of
from tests.support.node import in_node
from tests.ui.explorer.page_driver import LAYERS, SHAPES, made
from vitviz import METHODS, Analysis, MethodError
from vitviz.attribution.rollout import rollout_matrix
from vitviz.evaluation.probes import probe
from vitviz.ui.explorer.device_page import DEVICE_METHODS, DEVICE_PROBES
from vitviz.ui.packs import file_names, map_file

TOLERANCE = 1e-4
TRACE = """const single = (text) => new Float32Array(Uint8Array.from(Buffer.from(text, "base64")).buffer);
    const encoding = Object.fromEntries(Object.entries(asked.encoding).map(([name, text]) => [name, text && single(text)]));
    const trace = new Trace(asked.shape, encoding);
    const text = (file) => Buffer.from(file).toString("base64");"""
FILES = f"(asked) => {{ {TRACE} return asked.names.map((name) => text(traceFile(trace, name))); }}"
MAPS = f"""(asked) => {{ {TRACE}
    return asked.maps.map(([method, parameters]) => {{
      try {{ return text(mapFileOf(trace, method, parameters)); }} catch (error) {{ return {{ failed: error.message }}; }}
    }});
}}"""
PROBES = f"""(asked) => {{ {TRACE}
    return asked.probes.map((name) => {{
      const {{ measurements, ...found }} = DEVICE_PROBES[name](trace);
      return {{ ...found, measurements: Object.fromEntries(Object.entries(measurements).map(([each, {{ values, shape, axes, quantity }}]) =>
        [each, {{ values: text(values.buffer), shape, axes, quantity }}])) }};
    }});
}}"""
ROLLOUTS: list[dict[str, Any]] = [
    {},
    {"query": (1, 2)},
    {"query": "patches"},
    {"query": "cls", "head_fusion": "max"},
    {"head_fusion": "min", "residual_weight": 0.2},
    {"head_fusion": "max", "discard_ratio": 0.9},
    {"discard_ratio": 0.99, "residual_weight": 0.0},
    {"residual_weight": 1.0, "query": (0, 0)},
    {"start_layer": 1, "discard_ratio": 0.35},
    {"start_layer": 1, "end_layer": 1},
    {"end_layer": 0, "head_fusion": "min"},
    {"reference": "vit-explain"},
    {"reference": "vit-explain", "discard_ratio": 0.5, "head_fusion": "max"},
    {"exclude": "sinks"},
    {"exclude": "outliers", "head_fusion": "max", "query": (2, 2)},
]
ATTENTIONS: list[dict[str, Any]] = [
    {},
    {"query": "patches", "head": "max"},
    {"query": "patches", "direction": "column", "layer": 1, "head": "min"},
    {"query": (3, 1), "direction": "column", "head": 1},
    {"exclude": "sinks", "layer": 0, "head": 0},
    {"exclude": "outliers", "direction": "column", "query": "cls"},
]
MASSES: list[dict[str, Any]] = [
    {},
    {"mass": 0.9, "head": 1, "layer": 0},
    {"mass": 0.05, "query": (2, 3)},
    {"query": "patches"},
]


def text_of(values: torch.Tensor) -> str:
    return base64.b64encode(values.contiguous().float().numpy().tobytes()).decode()


def asked_of(analysis: Analysis) -> dict[str, Any]:
    """A trace as the network of the page gives it."""
    trace, layout = analysis.trace, analysis.trace.layout
    assert trace.norms is not None
    sums = torch.stack([trace.log_sums(layer) for layer in range(trace.layers)])
    encoding: dict[str, str | None] = {
        "queries": text_of(trace.queries),
        "keys": text_of(trace.keys),
        "logSums": text_of(sums),
    }
    encoding |= {"norms": text_of(trace.norms), "pooled": None if trace.pooled is None else text_of(trace.pooled)}
    shape: dict[str, Any] = {
        "layers": trace.layers,
        "heads": trace.heads,
        "dim": trace.queries.shape[-1],
        "scale": trace.scale,
    }
    shape |= {"prefix": layout.prefix, "rows": layout.grid_height, "columns": layout.grid_width}
    return {"shape": shape, "encoding": encoding}


def all_parameters(method: str, given: dict[str, Any], layers: int) -> dict[str, Any]:
    """Every parameter with a value, as the page hands them on."""
    values = {each.name: given.get(each.name, each.default) for each in METHODS[method].parameters}
    return {name: value + layers if name.endswith("layer") and value < 0 else value for name, value in values.items()}


@pytest.fixture(scope="module", params=["registers", "cifar"])
def analysis(request: pytest.FixtureRequest) -> Analysis:
    return vitviz.analyze(EXAMPLE, made(*SHAPES[request.param]))


def test_files_are_those_of_the_library(analysis: Analysis) -> None:
    trace, names = analysis.trace, file_names(analysis.trace)
    found = in_node(
        {"device/trace.js": "Trace", "device/trace_files.js": "traceFile"}, FILES, asked_of(analysis) | {"names": names}
    )
    for name, content in zip(names, found, strict=True):
        file = load(base64.b64decode(content))
        if name == "rollout":
            expected = rollout_matrix(trace) * trace.layout.token_count
            torch.testing.assert_close(file["rows"], expected, rtol=0, atol=TOLERANCE)
            continue
        weights = (file["queries"] @ file["keys"].mT - file["log_sums"][..., None]).exp()
        torch.testing.assert_close(weights, trace.weights(int(name.split()[1])), rtol=0, atol=TOLERANCE)


def test_maps_are_those_of_the_library_with_all_parameters(analysis: Analysis) -> None:
    wanted = [("rollout", each) for each in ROLLOUTS]
    wanted += [("attention", each) for each in ATTENTIONS] + [("attention_mass", each) for each in MASSES]
    maps = [(method, all_parameters(method, given, LAYERS)) for method, given in wanted]
    modules = {"device/trace.js": "Trace", "device/trace_files.js": "mapFileOf"}
    found = in_node(modules, MAPS, asked_of(analysis) | {"maps": maps})
    for (method, given), content in zip(wanted, found, strict=True):
        try:
            heatmap = analysis.map(method, **given)  # type: ignore[arg-type]
        except MethodError as error:
            assert "failed" in content, (method, given, error)
            continue
        assert isinstance(content, str), (method, given, content)
        parameters = METHODS[method].parameters
        arguments = {each.name: given.get(each.name, each.default) for each in parameters}
        expected = load(map_file(analysis, METHODS[method], arguments, heatmap.token_map))["values"]
        file = load(base64.b64decode(content))["values"]
        assert file.isnan().equal(expected.isnan()), (method, given)
        if method == "attention_mass":
            # A patch at the edge of the share may be in or out by rounding.
            assert (file != expected)[~expected.isnan()].sum() <= 1, given
        else:
            torch.testing.assert_close(file, expected, rtol=0, atol=TOLERANCE, equal_nan=True, msg=f"{method} {given}")
        header = metadata_of(base64.b64decode(content))
        assert header == metadata_of(map_file(analysis, METHODS[method], arguments, heatmap.token_map)), given


def test_probes_are_those_of_the_library(analysis: Analysis) -> None:
    modules = {"device/trace.js": "Trace", "device/findings.js": "DEVICE_PROBES"}
    found = in_node(modules, PROBES, asked_of(analysis) | {"probes": list(DEVICE_PROBES)})
    for name, result in zip(DEVICE_PROBES, found, strict=True):
        expected = probe(analysis, name)
        assert [result["summary"], result["heading"]] == [expected.summary, list(expected.heading)]
        assert result["rows"] == [list(row) for row in expected.rows], name
        assert result["measurements"].keys() == expected.measurements.keys()
        for each, measurement in expected.measurements.items():
            own = result["measurements"][each]
            values = torch.frombuffer(bytearray(base64.b64decode(own["values"])), dtype=torch.float32).view(
                own["shape"]
            )
            torch.testing.assert_close(values, measurement.values.float(), rtol=1e-5, atol=TOLERANCE, equal_nan=True)
            assert (tuple(own["axes"]), own["quantity"]) == (measurement.axes, measurement.quantity)


def test_every_method_of_the_page_is_one_that_it_computes() -> None:
    names = in_node({"device/maps.js": "DEVICE_MAPS"}, "() => Object.keys(DEVICE_MAPS)", None)
    of_classes = in_node({"device/class_maps.js": "CLASS_MAPS"}, "() => Object.keys(CLASS_MAPS)", None)
    assert {*names, *of_classes} == set(DEVICE_METHODS)
    probes = in_node({"device/findings.js": "DEVICE_PROBES"}, "() => Object.keys(DEVICE_PROBES)", None)
    assert list(probes) == list(DEVICE_PROBES)
