"""The command ``vitviz evaluate``: the accuracy of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from vitviz.cli.checkpoints import load_with_bar
from vitviz.datasets.true_classes import class_names, true_class
from vitviz.errors.extras import optional
from vitviz.errors.kinds import ConfigError, DataError
from vitviz.errors.messages import several
from vitviz.images.colours import ColorProfile
from vitviz.models.targets import class_of


def run(
    images: Path,
    labels: list[str] | None,
    color_profile: ColorProfile | None,
    **load_options: Any,
) -> None:
    """Print the accuracy of every class and of all.

    Args:
        images: folder with ``test/CLASS/IMAGE``, each class as :func:`class_names` reads it.
        labels: of classes whose joint accuracy is printed, too.
        color_profile: as :func:`vitviz.open_image` takes it.
        load_options: arguments of :func:`vitviz.cli.checkpoints.load_with_bar`.

    Raises:
        ConfigError: the model has no classifier, or one whose outputs are not the logits of one
            label.
        DataError: there are no images, or the model does not have one of their classes, or has several of its name.
    """
    with optional():
        from vitviz.training.data import read_image_folder
        from vitviz.training.evaluate import accuracy_of, logits_of
    model = load_with_bar(**load_options)
    if not model.labels:
        raise ConfigError(f"{model.name} has no classifier, so it has no accuracy")
    if (function := model.network.config.probability) != "softmax":
        raise ConfigError(
            f"{model.name}: probabilities of its outputs are {function!r}; expected 'softmax', one label of several "
            "classes, as these measures are of"
        )
    network, preprocessing = model.network, model.preprocessing
    data = read_image_folder(
        images, "test", preprocessing, network.config.patch_height, network.config.patch_width, color_profile
    )
    names = class_names(model.labels)
    data = replace(data, labels=tuple(true_class("", names, label) or label for label in data.labels))
    unknown = [label for label in data.labels if label not in model.labels]
    if unknown:
        raise DataError(
            f"{images}: unknown classes {several(unknown, 10)}; {model.name} knows {several(model.labels, 10)}"
        )
    shared = [label for label in data.labels if model.labels.count(label) > 1]
    if shared:
        raise DataError(
            f"{images}: {model.name} has several classes called {several(shared, 10)}; expected one of each"
        )
    data = data.with_labels(model.labels)
    if preprocessing.fit == "native":
        print("pictures are squashed to one shape, where the model's own fit is 'native'")
    together = [model.labels[class_of(label, model.labels, "class")] for label in labels or ()]
    accuracy = accuracy_of(logits_of(network, preprocessing, data.images, network.device), data)
    for label, class_accuracy in accuracy.per_class.items():
        print(f"{label:>16}  {class_accuracy:.1%}  {_interval(accuracy.interval(label))}")
    if together:
        (share, count), ends = accuracy.of(together), accuracy.interval(*together)
        print(f"{', '.join(together)} together: top-1 accuracy {share:.2%} {_interval(ends)} of {count:,} images")
    top5 = f"top-5 {accuracy.top5:.2%}, " if len(model.labels) > 5 else ""
    print(
        f"top-1 accuracy {accuracy.top1:.2%} {_interval(accuracy.interval())} of {accuracy.images:,} images, {top5}"
        f"cross-entropy {accuracy.loss:.3f}, expected calibration error {accuracy.calibration_error:.1%}"
    )


def _interval(bounds: tuple[float, float]) -> str:
    return "({:.1%} to {:.1%})".format(*bounds)
