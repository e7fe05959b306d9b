"""A training is watched, and goes on as if it were not."""

from __future__ import annotations

import importlib
import logging
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import tests.torchvision_names  # noqa: F401
from tests.support.modules import LABELS, SIZE, OwnViT
from tests.support.refusals import check_refusals
from tests.support.training import PLAIN
from vitviz import ConfigError, ImageError, VisionTransformer, callbacks
from vitviz.attribution import attention, rollout
from vitviz.callbacks import SIDE_PX, AttentionWatch

pytestmark = pytest.mark.slow

PICTURES = [np.random.default_rng(seed).integers(0, 256, (*SIZE, 3), dtype=np.uint8) for seed in range(3)]
OWN: dict[str, Any] = {"image_size": SIZE, "normalisation": "half", "labels": LABELS, "prefix": ["cls"]}


class Log:
    """Keeps what is written to it."""

    def __init__(self) -> None:
        self.images: list[tuple[str, int]] = []
        self.texts: list[str] = []
        self.last: dict[str, np.ndarray] = {}

    def add_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.images.append((name, step))
        self.last[name] = image

    def add_text(self, name: str, text: str, step: int) -> None:
        self.texts.append(text)


def watch_of(module: nn.Module, log: Any, **changes: Any) -> AttentionWatch:
    return AttentionWatch(module, PICTURES, log, **{"every": 10, **OWN, **changes})


def test_pictures_and_maps_are_logged_every_so_many_steps() -> None:
    log = Log()
    watch = watch_of(OwnViT(), log)
    for step in range(1, 25):
        watch(step)
    # Also where the number of a step is skipped.
    watch(31)
    names = ("attention rollout", "attention of the last layer")
    assert log.images == [(name, step) for step in (0, 10, 20, 31) for name in names]
    assert log.last[names[0]].shape == (3, 2 * SIDE_PX, 3 * SIDE_PX)


def test_the_maps_are_those_of_the_weights_of_that_step(make_network: Callable[..., VisionTransformer]) -> None:
    network, log = make_network(image_height=8, image_width=8, classes=3).train(), Log()
    grey = np.full((8, 8, 3), 70, np.uint8)
    watch = AttentionWatch(network, [grey], log, every=1, preprocessing=PLAIN, labels=("a", "b", "c"))
    with pytest.raises(ConfigError, match="0 labels for 3 classes; expected a name for each"):
        AttentionWatch(network, [grey], log, preprocessing=PLAIN)
    for parameter in network.parameters():
        parameter.data.normal_(0, 0.3)
    watch(1)
    trace = network.encode(PLAIN.standardise(torch.full((1, 3, 8, 8), 70 / 255))).traces[0]
    for name, token_map in (("attention rollout", rollout(trace)), ("attention of the last layer", attention(trace))):
        picture, overlay = log.last[name][:, :SIDE_PX], log.last[name][:, SIDE_PX:]
        assert (picture == 70).all()
        row, column = token_map.strongest
        side = SIDE_PX // token_map.values.shape[0]
        brightness = overlay.astype(int).sum(0).reshape(-1, side, SIDE_PX // side, side).mean((1, 3))
        assert brightness[row, column] == brightness.max()


def test_the_training_goes_on_as_if_it_were_not_watched() -> None:
    def run(is_watched: bool) -> tuple[Any, ...]:
        torch.manual_seed(0), random.seed(0), np.random.seed(0)
        module = OwnViT("matmul").train()
        # Parts that have their own modes, and a hook of the user's.
        module.norm.eval()
        calls: list[int] = []
        module.layers[0].register_forward_hook(lambda *_: calls.append(1))
        hooks, optimiser = dict(module.layers[0]._forward_hooks), torch.optim.SGD(module.parameters(), 0.1)
        watch = watch_of(module, Log(), every=1) if is_watched else None
        for step in range(1, 3):
            module(torch.randn(2, 3, *SIZE)).square().sum().backward()
            # Between backward and step, as with accumulated gradients.
            if watch:
                watch(step)
            optimiser.step()
        gradients = [parameter.grad for parameter in module.parameters()]
        assert dict(module.layers[0]._forward_hooks) == hooks
        modes = {name: part.training for name, part in module.named_modules()}
        return modes, [*module.state_dict().values(), *gradients], random.random(), np.random.rand(), torch.rand(1)

    plain, watched = run(False), run(True)
    assert plain[0] == watched[0] and not plain[0]["norm"] and plain[0][""]
    assert all(torch.equal(one, other) for one, other in zip(plain[1], watched[1], strict=True))
    assert plain[2:] == watched[2:]


def scale_queries(module: OwnViT, factor: float, layer: int = 0) -> None:
    query = module.layers[layer].query
    query.weight.data *= factor
    query.bias.data *= factor


def test_a_collapse_is_an_alarm_once_and_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    module, log = OwnViT(), Log()
    scale_queries(module, 4)
    watch = watch_of(module, log, every=1)
    assert watch(1) == [] and not log.texts
    scale_queries(module, 1e-3)
    [even] = watch(2)
    assert even.kind == "even attention" and {layer for layer, _ in even.places} == {0}
    scale_queries(module, 1e6)
    kinds = {alarm.kind: alarm for alarm in watch(3)}
    assert {layer for layer, _ in kinds["one token"].places} == {0}
    assert "fewer than 2 tokens: layer 0 head 0 (1" in kinds["one token"].sentence
    assert "head 1 (1 token, 5" in kinds["one token"].sentence
    assert "(Zhai et al. 2023)" in kinds["one token"].sentence
    assert watch(4) == []
    assert [each.sentence for each in watch.alarms] == log.texts == [record.message for record in caplog.records]


def test_heads_that_were_so_from_the_beginning_are_no_alarm() -> None:
    module = OwnViT()
    scale_queries(module, 1e3, 0)
    scale_queries(module, 1e-3, 1)
    watch = watch_of(module, Log(), every=1)
    module.classifier.weight.data *= 2
    assert watch(1) == []
    # One that begins evenly, chooses, and chooses no longer, has collapsed.
    scale_queries(module, 4e3, 1)
    watch(2)
    scale_queries(module, 1e-4, 1)
    assert [alarm.kind for alarm in watch(3)] == ["even attention"]


def test_a_sink_that_appears_is_an_alarm(make_network: Callable[..., VisionTransformer]) -> None:
    network = make_network(image_height=32, image_width=32, classes=3)
    facts = {"preprocessing": PLAIN.at(32, 4, 4), "labels": ("a", "b", "c")}
    watch = AttentionWatch(network, [np.zeros((32, 32, 3), np.uint8)], Log(), every=1, **facts)
    # Every query asks for the first feature, which one patch has.
    weights, biases = network.layers[0].attention.qkv.weight.data, network.layers[0].attention.qkv.bias.data
    weights[:64], biases[:32], weights[32:64, 0] = 0, 1, 5
    network.positions.data[2, 4, 0] += 50
    [alarm] = [alarm for alarm in watch(1) if alarm.kind == "sinks"]
    assert alarm.places == ((0, 1 + 2 * 8 + 4),)
    assert "patch (2, 4) of picture 0" in alarm.sentence and "Darcet et al. 2024" in alarm.sentence


def test_a_wrong_argument_is_refused_at_the_start(tmp_path: Path) -> None:
    module = OwnViT().train()
    calls: dict[str, Callable[[], object]] = {
        "every = 0: expected a whole number of at least 1": lambda: watch_of(OwnViT(), Log(), every=0),
        "log: .* found; expected an object with add_image": lambda: watch_of(OwnViT(), tmp_path),
        "network: .* found; expected a Module": lambda: AttentionWatch(OWN, [], Log()),  # type: ignore[arg-type]
        "pictures: none found": lambda: AttentionWatch(OwnViT(), [], Log(), **OWN),
        r".*no parameter 'interval': expected .* mean 'every'\?$": lambda: watch_of(OwnViT(), Log(), interval=5),
        r".*no parameter 'evry': expected .* mean 'every'\?$": lambda: callbacks._TrainerHooks(PICTURES, evry=5),
        r".*'log'; expected AttentionWatch\(network, pictures, log, every=…, step=…\)": lambda: AttentionWatch(
            OwnViT(), PICTURES
        ),
        ".*image_size": lambda: AttentionWatch(module, PICTURES, Log()),
    }
    for single in ("cat.jpg", PICTURES[0]):
        message = f"pictures: one {type(single).__name__} found; expected several, such as a list"
        calls[message] = lambda single=single: AttentionWatch(OwnViT(), single, Log(), **OWN)
        calls[message[:-20]] = lambda single=single: callbacks._TrainerHooks(single)
    check_refusals(ConfigError, calls)
    missing = tmp_path / "missing.jpg"
    check_refusals(ImageError, {r".*missing\.jpg": lambda: AttentionWatch(OwnViT(), [missing], Log(), **OWN)})
    assert callbacks._TrainerHooks(PICTURES).alarms == [] and module.training


def test_a_later_failure_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    module, log = OwnViT().train(), Log()
    watch = watch_of(module, log, every=1)
    module.norm.weight.data.fill_(torch.nan)
    module.layers[0].query.weight.data.fill_(torch.nan)
    assert watch(1) == watch(2) == []
    [record] = caplog.records
    assert record.levelno == logging.WARNING and "step 1: attention is not logged: ConfigError" in record.message
    assert "not all finite" in record.message and module.training and module.layers[0].training


# The trainers themselves.


class Batches(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixel_values": torch.full((3, *SIZE), index / 8), "labels": index % len(LABELS)}


@pytest.mark.parity
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_s_trainer_calls_it(package: str, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    # `make oldest` has no trainers.
    lightning = pytest.importorskip(package)
    loggers = importlib.import_module(f"{package}.loggers")

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network, self.loss = OwnViT().train(), nn.CrossEntropyLoss()

        def training_step(self, batch: dict[str, torch.Tensor], number: int) -> torch.Tensor:
            assert self.network.training
            return self.loss(self.network(batch["pixel_values"]), batch["labels"])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), 0.01)

    def fit(callback: Any, logger: Any) -> None:
        options: dict[str, Any] = {"accelerator": "cpu", "max_epochs": 2, "accumulate_grad_batches": 2}
        options |= {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        trainer = lightning.Trainer(**options, callbacks=[callback], logger=logger, default_root_dir=tmp_path)
        trainer.fit(Module(), DataLoader(Batches(), 2))

    callback = callbacks.LightningAttention(PICTURES, every=2, **OWN)
    assert isinstance(callback, lightning.Callback)
    fit(callback, loggers.TensorBoardLogger(tmp_path))
    assert steps_of(tmp_path) == [0, 2, 4]
    with pytest.raises(ConfigError, match=r"^log: .*CSVLogger.* found; expected an object with add_image"):
        fit(callbacks.LightningAttention(PICTURES, **OWN), loggers.CSVLogger(tmp_path))
    with pytest.raises(ConfigError, match=r"^part = 'net': this module has 'network' or 'loss'"):
        fit(callbacks.LightningAttention(PICTURES, part="net", log=Log(), **OWN), False)


def steps_of(folder: Path) -> list[int]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [file] = folder.rglob("events.out.*")
    events = EventAccumulator(str(file))
    events.Reload()
    return [image.step for image in events.Images("attention rollout")]


@pytest.mark.parity
def test_transformers_trainer_calls_it(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    transformers = importlib.import_module("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    config = transformers.ViTConfig(**sizes, image_size=16, patch_size=4)
    network = transformers.ViTForImageClassification(config)
    preprocessing = {"preprocessing": PLAIN.at(16, 4, 4)}
    pixels = [{"pixel_values": torch.randn(3, 16, 16), "labels": number % 2} for number in range(8)]

    def train(callback: Any) -> None:
        options: dict[str, Any] = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no"}
        arguments = transformers.TrainingArguments(str(tmp_path), max_steps=4, per_device_train_batch_size=2, **options)
        transformers.Trainer(network, arguments, train_dataset=pixels, callbacks=[callback]).train()

    with pytest.raises(ConfigError, match=r"^every = 'often'"):
        callbacks.TrainerAttention(PICTURES, every="often")
    callback = callbacks.TrainerAttention(PICTURES, every=2, **preprocessing)
    assert isinstance(callback, transformers.TrainerCallback)
    train(callback)
    assert steps_of(tmp_path / "runs") == [0, 2, 4] and callback.alarms is callback.watch.alarms
    assert callback.alarms == []
    log = Log()
    train(callbacks.TrainerAttention(PICTURES, every=3, log=log, **preprocessing))
    assert [step for _, step in log.images] == [0, 0, 3, 3]
