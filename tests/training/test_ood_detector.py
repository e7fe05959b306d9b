"""The detector of pictures unlike the training images: its score, how it is fitted, kept and refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import vitviz
from tests.support.makers import MakeModel
from tests.support.pictures import photo
from tests.support.reading import load_checkpoint
from tests.support.refusals import check_refusals
from vitviz import Model
from vitviz.errors.kinds import CheckpointError, ConfigError, MethodError
from vitviz.training.data import LabelledImages
from vitviz.training.out_of_distribution import SHRINKAGE, detector_of, fit_detector
from vitviz.weights import save_checkpoint
from vitviz.weights.detector import OODDetector, features_of

pytestmark = pytest.mark.slow


def detector_for(model: Model, **values: float) -> OODDetector:
    size = model.network.config.heads * model.network.config.head_width
    numbers = {"energy_scale": 0.7, "distance_scale": 30.0, "threshold": -2.5} | values
    return OODDetector(torch.randn(size), torch.randn(size, size), **numbers)


@pytest.fixture
def picture() -> np.ndarray:
    return np.asarray(photo(0, 24, 16))


@pytest.mark.parametrize("depth", [1, 3, 8, 12])
def test_the_features_are_the_mean_of_the_last_layers_keys(make_model: MakeModel, depth: int) -> None:
    network = make_model(register_tokens=2, depth=depth).network
    pixels = torch.randn(1, 3, 16, 24)
    before, layer = list(network.stream(pixels))[depth - 1], network.layers[depth - 1]
    _, keys, _ = layer.attention.qkv(layer.attention_norm(before)).chunk(3, -1)
    [trace] = network.encode(pixels).traces
    expected = layer.attention.key_norm(keys)[0, 3:].mean(0)
    torch.testing.assert_close(features_of(trace), expected, rtol=1e-4, atol=1e-5)


def test_the_score_is_that_of_numpy() -> None:
    random = np.random.default_rng(1)
    mixing = random.normal(size=(5, 5))
    training, features = random.normal(size=(300, 5)) @ mixing + 2, random.normal(size=(80, 5)) @ mixing
    logits = 3 * random.normal(size=(80, 4))
    covariance = np.cov(training.T, ddof=0)
    covariance += SHRINKAGE * np.trace(covariance) / 5 * np.eye(5)
    from_mean = features - training.mean(0)
    distance = np.einsum("if,fg,ig->i", from_mean, np.linalg.inv(covariance), from_mean)
    energy = np.log(np.exp(logits).sum(1))
    expected = 2 * energy / energy.std(ddof=1) - distance / distance.std(ddof=1)
    found = fit_detector(*(torch.tensor(each).float() for each in (training, logits, features)))
    score = found.score(torch.tensor(logits).float(), torch.tensor(features).float())
    np.testing.assert_allclose(score, expected, rtol=2e-4, atol=2e-4)
    assert int((score < found.threshold).sum()) == 8


def test_features_that_never_vary_are_fitted_too() -> None:
    features, logits = torch.zeros(50, 3), torch.randn(50, 2)
    found = fit_detector(features, logits, features)
    assert found.score(logits, features).isfinite().all()


def test_a_fitted_detector_finds_pictures_of_another_kind(make_model: MakeModel) -> None:
    model = make_model()
    grey = torch.full((260, 3, 16, 24), 128) + torch.randint(-20, 20, (260, 3, 1, 1))
    flat, noise = grey.to(torch.uint8), torch.randint(0, 256, (40, 3, 16, 24), dtype=torch.uint8)
    labels = tuple("abcde")
    data, test = (LabelledImages(part, torch.zeros(len(part)).long(), labels) for part in (flat[:160], flat[160:]))
    found = replace(model, ood_detector=detector_of(model.network, model.preprocessing, data, test))

    def unlike(pictures: torch.Tensor) -> float:
        arrays = [picture.permute(1, 2, 0).numpy() for picture in pictures]
        return float(np.mean([vitviz.analyze(array, found).is_out_of_distribution for array in arrays]))

    assert unlike(test.images) == 0.1
    assert unlike(noise) > 0.9


def test_a_low_score_is_out_of_distribution(make_model: MakeModel, picture: np.ndarray) -> None:
    model = make_model()
    detector = detector_for(model)
    analysis = vitviz.analyze(picture, replace(model, ood_detector=detector))
    expected = detector.score(analysis.logits, features_of(analysis.trace))
    assert analysis.ood_score == pytest.approx(float(expected))
    for threshold, is_unlike in ((analysis.ood_score + 0.01, True), (analysis.ood_score - 0.01, False)):
        other = replace(model, ood_detector=replace(detector, threshold=threshold))
        assert vitviz.analyze(picture, other).is_out_of_distribution is is_unlike


def test_of_an_input_with_few_patches_nothing_is_said(make_model: MakeModel, picture: np.ndarray) -> None:
    model = make_model()
    found = replace(model, ood_detector=detector_for(model, threshold=1e9))
    patch = model.network.config.patch_height
    for resolution, said in ((16, True), (16 // 2, None)):
        assert resolution % patch == 0
        assert vitviz.analyze(picture, found, resolution=resolution).is_out_of_distribution is said


def test_without_a_detector_nothing_is_said(make_model: MakeModel, picture: np.ndarray) -> None:
    analysis = vitviz.analyze(picture, make_model())
    assert analysis.is_out_of_distribution is None
    assert vitviz.analyze(picture, make_model(classes=0)).is_out_of_distribution is None
    with pytest.raises(MethodError, match="has no OOD detector"):
        _ = analysis.ood_score


def test_the_energy_score_is_the_logarithm_of_the_sum_of_exponentials(
    make_model: MakeModel, picture: np.ndarray
) -> None:
    analysis = vitviz.analyze(picture, make_model())
    assert analysis.energy_score == pytest.approx(math.log(np.exp(analysis.logits.double().numpy()).sum()), rel=1e-5)
    with pytest.raises(MethodError, match="has no classifier: it has no energy score"):
        _ = vitviz.analyze(picture, make_model(classes=0)).energy_score


# What a detector may be.


@pytest.mark.parametrize("name", ["energy_scale", "distance_scale", "threshold"])
@pytest.mark.parametrize("value", [math.nan, math.inf, "3", True, [3]])
def test_a_number_that_is_none_is_refused(make_model: MakeModel, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"OOD detector: {name} = .*: expected a number"):
        replace(detector_for(make_model()), **{name: value})


def test_contradictions_are_refused(make_model: MakeModel) -> None:
    model = make_model()
    detector = detector_for(model)
    foreign = OODDetector(torch.zeros(3), torch.eye(3), 1.0, 1.0, 0.0)
    calls = {
        ".*distance_scale = 0.0: expected a number above 0": lambda: replace(detector, distance_scale=0.0),
        ".*distance_scale = -1.0: expected a number above 0": lambda: replace(detector, distance_scale=-1.0),
        ".*expected 'feature' and 'feature feature'": lambda: replace(detector, mean=detector.mean[:-1]),
        ".*not finite in its mean or whitening": lambda: replace(detector, mean=detector.mean * math.nan),
        ".*an OOD detector of 3 features; the model has 5 classes and keys of": lambda: replace(
            model, ood_detector=foreign
        ),
        ".*the model has 0 classes": lambda: replace(make_model(classes=0), ood_detector=detector),
    }
    check_refusals(ConfigError, calls)


# In a checkpoint, and on the page.


def test_a_checkpoint_keeps_its_detector(make_model: MakeModel, tmp_path: Path, picture: np.ndarray) -> None:
    model = make_model()
    save_checkpoint(tmp_path / "none.safetensors", model)
    assert load_checkpoint(tmp_path / "none.safetensors").ood_detector is None
    detector = detector_for(model, threshold=-1.25)
    save_checkpoint(tmp_path / "small.safetensors", replace(model, ood_detector=detector))
    loaded = load_checkpoint(tmp_path / "small.safetensors")
    assert loaded.ood_detector is not None and loaded.ood_detector.threshold == -1.25
    expected = vitviz.analyze(picture, replace(model, ood_detector=detector)).ood_score
    assert vitviz.analyze(picture, loaded).ood_score == pytest.approx(expected, rel=1e-5)


def test_a_damaged_detector_is_refused(make_model: MakeModel, tmp_path: Path) -> None:
    model, path = make_model(), tmp_path / "small.safetensors"
    save_checkpoint(path, replace(model, ood_detector=detector_for(model)))
    header = safe_open(path, framework="pt").metadata()
    tensors = load_file(path)
    damages: dict[str, dict[str, torch.Tensor | None]] = {
        "missing: ood_detector.whitening": {"ood_detector.whitening": None},
        r"ood_detector.mean is float32 \(2,\), expected": {"ood_detector.mean": torch.zeros(2)},
        "surplus: ood_detector.other": {"ood_detector.other": torch.zeros(2)},
        "not finite in 'ood_detector.energy_scale'": {"ood_detector.energy_scale": torch.tensor(math.nan)},
        r"ood_detector.threshold is float32 \(1,\), expected \(\)": {"ood_detector.threshold": torch.zeros(1)},
        "distance_scale = -1.0: expected a number above 0": {"ood_detector.distance_scale": torch.tensor(-1.0)},
        # By the probability, as detectors were at first: its numbers mean something else.
        "missing: ood_detector.energy_scale.*surplus: ood_detector.numbers": {
            "ood_detector.energy_scale": None,
            "ood_detector.numbers": torch.zeros(3),
        },
    }
    for message, changes in damages.items():
        changed = {key: tensor for key, tensor in (tensors | changes).items() if tensor is not None}
        save_file(changed, path, header)
        with pytest.raises(CheckpointError, match=rf"small\.safetensors: .*{message}"):
            load_checkpoint(path)


def pictures_of_another_kind() -> dict[str, Image.Image]:
    random = np.random.default_rng(0)
    text = Image.new("RGB", (400, 300), "white")
    for line in range(10, 290, 16):
        letters = "".join(random.choice(list("abcdefghij klmno "), 60))
        ImageDraw.Draw(text).text((10, line), letters, fill="black")
    corners = Image.fromarray(random.integers(0, 256, (2, 2, 3), dtype=np.uint8))
    return {
        "noise": Image.fromarray(random.integers(0, 256, (200, 300, 3), dtype=np.uint8)),
        "text": text,
        "gradient": corners.resize((200, 200), Image.Resampling.BILINEAR),
    }


def test_the_bundled_model_knows_text_noise_and_gradients_for_what_they_are(bundled: Model) -> None:
    found = {
        kind: vitviz.analyze(each, bundled).is_out_of_distribution for kind, each in pictures_of_another_kind().items()
    }
    assert all(found.values()), found
