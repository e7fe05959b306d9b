"""Names of ImageNet's classes, for checkpoints without names of classes."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "imagenet.tsv.gz"

# By number of classes: the data set, and the letter of its classes in the file.
ORDERS = {
    1000: ("ImageNet-1k in the usual order", "a"),
    10450: ("ImageNet-21k-P of winter 2021", "b"),
    11221: ("ImageNet-21k-P of fall 2011", "c"),
    11821: ("ImageNet-12k", "d"),
    21841: ("ImageNet-21k of fall 2011", "e"),
    21842: ("ImageNet-22k with the classes of ImageNet-1k first", "f"),
    21843: ("ImageNet-21k in Google's order", "g"),
}


@cache
def label_names(classes: int) -> tuple[str, ...]:
    """The names of ImageNet's classes, in the order of a classifier of a number of classes in :data:`ORDERS`.

    A name is all of the synset's lemmas, as in ``"tench, Tinca tinca"``. Two classes may share one.
    """
    letter = ORDERS[classes][1]
    # All orders sort by the synset's number, but this one has the thousand classes of ImageNet-1k first.
    rows = sorted(_read_rows(), key=lambda row: letter == "f" and "a" not in row[1])
    return tuple(lemmas for _, letters, lemmas in rows if letter in letters)


@cache
def synset_names() -> Mapping[str, str]:
    """Lemmas of ImageNet's synsets by WordNet's number, such as ``"n01440764"``."""
    return {synset: lemmas for synset, _, lemmas in _read_rows()}


def _read_rows() -> list[tuple[str, str, str]]:
    """For each synset, its number, the letters of its orders, and its lemmas; sorted by number."""
    rows = gzip.decompress(DATA.read_bytes()).decode().splitlines()
    return [(synset, letters, lemmas) for synset, letters, lemmas in (row.split("\t") for row in rows)]
