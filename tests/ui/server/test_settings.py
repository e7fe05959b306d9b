"""What the operator of the app can set."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.support.makers import MakeModel
from tests.support.visits import on_loop
from vitviz import VitvizError
from vitviz.analysis.costs import cost_of
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError
from vitviz.ui.api import Api
from vitviz.ui.handlers import Handlers
from vitviz.ui.models import ModelChoice, menu
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import no_report
from vitviz.ui.server.settings import PREFIX, ServerSettings, table
from vitviz.ui.service import AnalysisService
from vitviz.ui.studies import compare


def test_settings_are_read_from_the_environment() -> None:
    environment = {
        "VITVIZ_ANALYSIS_BYTES": "1.5 GiB",
        "VITVIZ_CACHE_BYTES": "64MiB",
        "VITVIZ_MODEL_BYTES": "1000000",
        "VITVIZ_KEEP_HOURS": "0.5",
        "VITVIZ_THREADS": " 3 ",
        "VITVIZ_MODELS": "menu",
        "VITVIZ_UPLOAD_BYTES": "",
        "HOME": "/",
    }
    assert ServerSettings.of(environment) == ServerSettings(
        analysis_bytes=3 * 2**29,
        cache_bytes=64 * 2**20,
        model_bytes=10**6,
        keep_hours=0.5,
        threads=3,
        models="menu",
    )
    assert ServerSettings.of(environment).keep_seconds == 1800
    assert ServerSettings.of({}) == ServerSettings()


FIELDS = ServerSettings.model_fields
NO_NUMBERS = ["0", "-1", "many", "1e9", "nan", "inf", "٣", "9" * 40]
# A host may have any of these names but one.
NO_HOSTS = ["٣", "a b", "a/b", "http://localhost"]


@pytest.mark.parametrize(
    ("part", "word"),
    [(part, word) for part in FIELDS for word in (NO_HOSTS if part == "hosts" else NO_NUMBERS)],
)
def test_what_is_no_value_of_a_setting_is_refused_by_its_name(part: str, word: str) -> None:
    name = f"{PREFIX}{part.upper()}"
    with pytest.raises(ConfigError, match=f"{name} = .*: expected "):
        ServerSettings.of({name: word})


def test_the_table_of_settings_has_them_all() -> None:
    rows = table().splitlines()
    assert len(rows) == 2 + len(FIELDS)
    for (name, part), row in zip(FIELDS.items(), rows[2:], strict=True):
        assert row.startswith(f"| `{PREFIX}{name.upper()}` | ")
        shown = row.split("`")[3] if part.default is not None else ""
        assert ServerSettings.of({f"{PREFIX}{name.upper()}": shown}) == ServerSettings()


@pytest.mark.parametrize(("legal", "opened"), [("start", 0), ("menu", 1), ("all", 2)])
def test_a_server_may_open_only_some_models(make_model: MakeModel, legal: str, opened: int) -> None:
    bench = AnalysisService(make_model(), ServerSettings(models=legal))
    assert on_loop(bench.model(bench.choice(""))) is bench.start
    for number, choice in enumerate([ModelChoice("vitviz-photos"), ModelChoice("", ("/nowhere/a.pth",))]):
        with pytest.raises(VitvizError) as refused:
            on_loop(bench.model(choice))
            raise CheckpointError("opened")
        assert ("this server opens only" in str(refused.value)) == (number >= opened)
    offered = len(menu(bench.start, legal))
    assert (offered == 1) == (legal == "start")


def test_what_an_analysis_may_need_is_a_setting(make_model: MakeModel, picture: Upload) -> None:
    with pytest.raises(LimitError, match="max_bytes = 1,000"):
        on_loop(AnalysisService(make_model(), ServerSettings(analysis_bytes=1000)).analyze(make_model(), picture))


METHOD, PARAMETERS = "gradient_rollout", {"discard_ratio": 0.5}
WAYS: dict[str, Callable[[AnalysisService, str], Coroutine[Any, Any, object]]] = {
    "page": lambda bench, uid: Handlers(bench).map({"uid": uid, "method": METHOD, "parameters": PARAMETERS}, no_report),
    "comparison": lambda bench, uid: compare(bench, {"uid": uid, "parameters": {METHOD: PARAMETERS}}, no_report),
    "maps": lambda bench, uid: Api(bench).maps(uid, [{"method": METHOD, "parameters": PARAMETERS}]),
    "overlay": lambda bench, uid: Api(bench).overlay(uid, METHOD, PARAMETERS),
}


@pytest.mark.parametrize("way", WAYS)
def test_it_counts_the_matrix_and_the_copy_of_a_discard_ratio(make_model: MakeModel, picture: Upload, way: str) -> None:
    model = make_model()
    config = model.network.config
    cost = cost_of(config, config.layout(config.image_height, config.image_width))
    needed = cost.nbytes + 2 * 4 * cost.tokens**2
    for max_bytes in (needed, needed - 1):
        bench = AnalysisService(model, ServerSettings(analysis_bytes=max_bytes))
        uid, _ = on_loop(bench.analyze(model, picture))
        if max_bytes == needed:
            on_loop(WAYS[way](bench, uid))
        else:
            with pytest.raises(LimitError, match=f"discard_ratio = 0.5: of {cost.tokens} tokens, .* {needed:,} bytes"):
                on_loop(WAYS[way](bench, uid))
