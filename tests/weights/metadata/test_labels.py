"""Names for classifiers that have as many classes as a version of ImageNet."""

from __future__ import annotations

import pytest

from tests.reference_packages import timm
from vitviz.weights.metadata.labels import ORDERS, label_names, synset_names

pytestmark = pytest.mark.parity

SUBSETS = {
    1000: "imagenet-1k",
    11221: "imagenet-21k-miil",
    11821: "imagenet-12k",
    21841: "imagenet-22k",
    21842: "imagenet-22k-ms",
    21843: "imagenet-21k-goog",
}


@pytest.mark.parametrize("classes", ORDERS)
def test_there_is_a_name_for_every_class(classes: int) -> None:
    names = label_names(classes)
    assert len(names) == classes
    assert all(name and name == name.strip() for name in names)
    assert label_names(classes) is names


@pytest.mark.parametrize("classes", SUBSETS)
def test_every_name_is_all_the_lemmas_that_timm_has(classes: int) -> None:
    known = timm.data.ImageNetInfo(SUBSETS[classes])
    assert known.num_classes() == classes
    synsets = tuple(synset_names()[synset] for synset in known.label_names())
    assert label_names(classes) == tuple(known.label_descriptions()) == synsets


def test_the_order_that_timm_has_no_name_for_is_that_of_its_file() -> None:
    info = timm.data.imagenet_info.__file__
    with open(info.replace("imagenet_info.py", "_info/imagenet21k_miil_w21_synsets.txt")) as file:
        synsets = file.read().split()
    assert label_names(10450) == tuple(synset_names()[synset] for synset in synsets)
