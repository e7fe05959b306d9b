"""The list of the checkpoints that have a name."""

from __future__ import annotations

import vitviz
from vitviz.weights import BUNDLED, ZOO, resources


def test_every_name_is_listed_with_its_size_and_licence() -> None:
    models = vitviz.list_models()
    assert [each.name for each in models] == [*ZOO, *BUNDLED]
    bundled, size = models[-1], (resources("checkpoints") / f"{BUNDLED[0]}.safetensors").stat().st_size
    assert abs(bundled.megabytes - size / 1e6) < 0.1 and bundled.licence == vitviz.load().card["terms"]
    assert (bundled.repository, bundled.input_size) == ("", 112)


def test_the_list_is_a_table_of_a_line_each() -> None:
    models = vitviz.list_models()
    lines, html = repr(models).splitlines(), models._repr_html_()
    assert len(lines) == len(models) + 1 == html.count("<tr>")
    for line, each in zip(lines[1:], models, strict=True):
        facts = (each.name, each.title, f"{each.megabytes:,.0f} MB", f"{each.input_size} pixels", each.licence)
        assert all(fact in line and fact in html for fact in facts)
