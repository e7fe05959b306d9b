"""The layer is chosen by how well it finds the places of changed pictures again."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.example import ASSETS
from tests.support.makers import MakeModel
from tests.support.modules import OwnViT, load_own
from tests.support.plain import plain
from tests.support.probes import analysis_of
from vitviz import ConfigError, MethodError, Model, analyze
from vitviz.features import LayerScores, layer_scores
from vitviz.features import layer_choice as module


def test_the_layer_of_the_bundled_model_finds_places_again(bundled: Model) -> None:
    scores = layer_scores(bundled)
    (mirrored, _), (enlarged, nearly) = scores.layers[scores.best].tolist()
    assert mirrored >= 0.7 and enlarged >= 0.75 and nearly >= 0.9
    # Raw pixels do not, and the best layer is not the last.
    assert scores.pixels[0, 0] < 0.2 and scores.pixels[1, 0] < 0.6
    assert scores.best == 5 < bundled.network.config.depth - 1
    features = analyze(ASSETS / "perch.jpg", bundled).features()
    assert features.layer == 5 and features.description == "tokens after layer 5 of 0–7, which finds places again best"


def test_the_best_layer_gains_most_over_pixels() -> None:
    layers = torch.tensor([[[0.5, 0.6], [0.9, 0.9]], [[0.8, 0.8], [0.7, 0.9]], [[0.7, 0.9], [0.7, 0.9]]])
    # Gains: 0.4 + 0.8, 0.76 + 0.4, 0.64 + 0.4, over what pixels miss.
    assert LayerScores(layers, torch.tensor([[0.1667, 0.2], [0.5, 0.6]])).best == 0
    assert LayerScores(layers, torch.tensor([[0.0, 0.2], [0.6, 0.6]])).best == 0
    assert LayerScores(layers, torch.tensor([[0.2, 0.2], [0.0, 0.6]])).best == 1


def larger_by_1_4(pixels: np.ndarray) -> np.ndarray:
    """``"… row column"`` 1.4 times as large around the centre: Keys 1981, cubic convolution, with a = -0.75."""

    def weights(size: int) -> np.ndarray:
        places = (np.arange(size) + 0.5 - size / 2) / 1.4 + size / 2 - 0.5
        distance = np.abs(places[:, None] - np.arange(size))
        near = 1.25 * distance**3 - 2.25 * distance**2 + 1
        far = -0.75 * (distance**3 - 5 * distance**2 + 8 * distance - 4)
        return np.where(distance <= 1, near, far * (distance < 2))

    rows, columns = map(weights, pixels.shape[-2:])
    return rows @ pixels @ columns.T


def test_scores_are_the_shares_of_places_found_again(make_model: MakeModel) -> None:
    model = make_model(image_height=24, image_width=16)
    found = layer_scores(model)
    mirrored, enlarged = 0.0, 0.0
    for name in module.PHOTOGRAPHS:
        with Image.open(ASSETS / f"{name}.jpg") as photograph:
            part = photograph.crop((0, 0, round(0.7 * photograph.width), round(0.7 * photograph.height)))
        whole = analyze(part, model).prepared.pixels
        larger = torch.from_numpy(larger_by_1_4(whole.double().numpy())).float()
        found_tokens = [plain(model.network, each).steps[2][0, 1:] for each in (whole, whole.flip(-1), larger)]
        tokens = [torch.nn.functional.normalize(each, dim=1) for each in found_tokens]
        best = [(tokens[0] @ other.T).argmax(1).tolist() for other in tokens[1:]]
        mirrored += sum(best[0][r * 4 + c] == r * 4 + 3 - c for r in range(6) for c in range(4)) / 24 / 4
        hits = []
        for row in range(6):
            for column in range(4):
                y, x = (row - 2.5) * 1.4 + 2.5, (column - 1.5) * 1.4 + 1.5
                if -0.5 < y < 5.5 and -0.5 < x < 3.5:
                    at = divmod(best[1][row * 4 + column], 4)
                    hits.append(abs(at[0] - y) <= 0.9 and abs(at[1] - x) <= 0.9)
        enlarged += sum(hits) / len(hits) / 4
    torch.testing.assert_close(found.layers[1, :, 0], torch.tensor([mirrored, enlarged]))


def test_scores_are_computed_once_and_anew_for_other_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnViT()
    model, passes = load_own(own), []
    monkeypatch.setattr(module, "_scores", lambda *_: passes.append(1) or torch.rand(4, 2, 2))
    assert layer_scores(model) is layer_scores(model) and len(passes) == 4
    assert layer_scores(model, "keys") is not layer_scores(model) and len(passes) == 8
    with torch.no_grad():
        for parameter in own.parameters():
            parameter.add_(0.1)
    assert layer_scores(model) is layer_scores(model) and len(passes) == 12


def test_a_terminal_shows_a_bar_after_a_second(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_scores", lambda *_: torch.rand(4, 2, 2))
    for seconds in (0.5, 1e-6):
        clock, screen = itertools.count(0, seconds), io.StringIO()
        screen.isatty = lambda: True  # type: ignore[method-assign]
        monkeypatch.setattr("sys.stderr", screen)
        monkeypatch.setattr("tqdm.std.time", lambda clock=clock: next(clock))
        model = make_model()
        layer_scores(model)
        assert (f"choosing a layer of {model.name}" in screen.getvalue()) == (seconds > 0.1)


def test_a_layer_that_is_named_is_not_measured(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = analysis_of(make_model)
    monkeypatch.delattr(module, "_scores")
    assert analysis.features(-1).layer == 2
    with pytest.raises(NameError):
        analysis.features()


def test_a_function_may_make_inputs_of_changing_size() -> None:
    model = load_own(OwnViT(), preprocessing=lambda image: torch.rand(3, 16, 8 + 4 * (image.width % 5)))
    assert layer_scores(model).layers.shape == (3, 2, 2)


def test_scores_are_of_a_model_and_of_vectors_that_there_are(make_model: MakeModel) -> None:
    with pytest.raises(MethodError, match=r"of 'key': expected 'tokens', 'keys', .* did you mean 'keys'"):
        layer_scores(make_model(), "key")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model: 'vitviz-photos' found; expected a Model"):
        layer_scores("vitviz-photos")  # type: ignore[arg-type]
