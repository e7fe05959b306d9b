"""The page finds classes by their names as the library does."""

from __future__ import annotations

from tests.support.node import in_node
from vitviz import MethodError
from vitviz.models.targets import class_of


def test_the_page_finds_classes_as_the_library_does() -> None:
    labels = ["10", "3", "maillot", "maillot, tank suit", "crane (0)", "dog, domestic dog", "crane", "crane"]
    texts = ["10", "3", "0", "1", "6", "8", "x", "maillot", "Tank Suit"]
    texts += ["crane", "crane (7)", "domestic dog, dog", "Dog"]
    function = "([labels, texts]) => texts.map((text) => classNamed({ labels }, text))"
    found = in_node({"class_names.js": "classNamed"}, function, [labels, texts])
    expected: list[int | None] = []
    for text in texts:
        try:
            expected.append(class_of(text, labels))
        except MethodError:
            expected.append(None)
    assert found == expected and None in expected
