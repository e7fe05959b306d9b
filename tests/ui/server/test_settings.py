"""What the operator of the app can set."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from docs.site.tables import settings
from tests.support.makers import MakeModel
from tests.support.visits import on_loop
from vitviz.analysis.costs import cost_of
from vitviz.errors.kinds import CheckpointError, ConfigError, LimitError
from vitviz.ui import build_demo
from vitviz.ui.api import Api
from vitviz.ui.handlers import Handlers
from vitviz.ui.models import ModelChoice
from vitviz.ui.pictures import Upload
from vitviz.ui.progress_reports import no_report
from vitviz.ui.server.settings import PREFIX, ServerSettings
from vitviz.ui.service import AnalysisService
from vitviz.ui.studies import compare
from vitviz.weights import save_checkpoint


def test_settings_are_read_from_the_environment() -> None:
    environment = {
        "VITVIZ_ANALYSIS_BYTES": "1.5 GiB",
        "VITVIZ_CACHE_BYTES": "64MiB",
        "VITVIZ_MODEL_BYTES": "1000000",
        "VITVIZ_KEEP_HOURS": "0.5",
        "VITVIZ_THREADS": " 3 ",
        "VITVIZ_SHARED": "0",
        "VITVIZ_UPLOAD_BYTES": "",
        "HOME": "/",
    }
    assert ServerSettings.of(environment) == ServerSettings(
        analysis_bytes=3 * 2**29, cache_bytes=64 * 2**20, model_bytes=10**6, keep_hours=0.5, threads=3, shared=False
    )
    assert ServerSettings.of({}) == ServerSettings()


FIELDS = ServerSettings.model_fields
NO_NUMBERS = ["0", "-1", "many", "1e9", "nan", "inf", "٣", "9" * 40]
# Names of hosts and origins are the operator's affair.
NO_VALUES = {"hosts": [], "frames": [], "shared": ["2", "-1", "many", "nan"]}
NO_VALUES["api"] = NO_VALUES["shared"]


@pytest.mark.parametrize(
    ("part", "word"), [(part, word) for part in FIELDS for word in NO_VALUES.get(part, NO_NUMBERS)]
)
def test_what_is_no_value_of_a_setting_is_refused_by_its_name(part: str, word: str) -> None:
    name = f"{PREFIX}{part.upper()}"
    with pytest.raises(ConfigError, match=f"{name} = .*: expected "):
        ServerSettings.of({name: word})


def test_the_table_of_settings_has_them_all() -> None:
    rows = settings().splitlines()
    assert len(rows) == 2 + len(FIELDS)
    for (name, part), row in zip(FIELDS.items(), rows[2:], strict=True):
        assert row.startswith(f"| `{PREFIX}{name.upper()}` | ")
        shown = row.split("`")[3] if part.default_factory is None and part.default is not None else ""
        assert ServerSettings.of({f"{PREFIX}{name.upper()}": shown}) == ServerSettings()


@pytest.mark.parametrize("name", ["MODELS", "UPLOADS", "SHARE"])
def test_what_is_no_setting_says_what_to_write(name: str) -> None:
    advice = "did you mean VITVIZ_SHARED" if name == "SHARE" else "visitors of a shared app "
    with pytest.raises(ConfigError, match=f"^VITVIZ_{name} is no setting: {advice}"):
        ServerSettings.of({f"VITVIZ_{name}": "all"})
    assert ServerSettings.of({f"VITVIZ_{name}": " ", "VITVIZ_FIREFOX": "firefox"}) == ServerSettings()


@pytest.mark.parametrize(
    ("environment", "host", "has_tunnel", "is_shared"),
    [
        ({}, "127.0.0.1", False, False),
        ({}, "[::1]", False, False),
        ({}, "0.0.0.0", False, True),
        ({}, "127.0.0.1", True, True),
        ({"VITVIZ_TRUSTED_PROXIES": "loopback"}, "127.0.0.1", False, True),
        ({"VITVIZ_SHARED": "1"}, "127.0.0.1", False, True),
        # A container, published to its owner alone.
        ({"VITVIZ_SHARED": "0"}, "0.0.0.0", False, False),
    ],
)
def test_an_app_is_shared_where_strangers_may_come(
    environment: dict[str, str], host: str, has_tunnel: bool, is_shared: bool
) -> None:
    assert ServerSettings.of(environment).is_shared(host, has_tunnel=has_tunnel) == is_shared


def test_a_space_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPACE_ID", "owner/name")
    assert ServerSettings().is_shared()


def test_a_shared_app_has_the_models_of_its_operator(make_model: MakeModel, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "mine.safetensors", make_model())
    bench = AnalysisService(make_model(), ServerSettings(shared=True), others=[str(tmp_path / "mine.safetensors")])
    assert on_loop(bench.models.open(bench.models.choice(""))) is bench.models.start
    assert on_loop(bench.models.open(bench.models.choice("app:mine"))) is bench.models.named["app:mine"]
    assert on_loop(bench.models.open(bench.models.choice("vitviz-photos"))).name == "vitviz-photos"
    for choice in (ModelChoice("dino_vits16"), ModelChoice("hf:a/b"), ModelChoice("", (str(tmp_path / "mine.pth"),))):
        with pytest.raises(CheckpointError, match="operator has chosen: 'small' or 'app:mine'"):
            on_loop(bench.models.open(choice))
    offered = [row["id"] for row in Handlers(bench).settings()["models"]]
    assert offered == ["", "app:mine", "vitviz-photos"] and not Handlers(bench).settings()["opens_any"]


def test_models_for_devices_are_the_operators_too(make_model: MakeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared app, too, opens them, since it sends their weights."""
    named = list[Any]()

    def service(start: Any, server_settings: Any, others: Any) -> None:
        named.append(others)
        raise LimitError("enough")

    monkeypatch.setattr("vitviz.ui.app.AnalysisService", service)
    settings = ServerSettings(shared=True, device_models=("start", "dino_vits16"))
    with pytest.raises(LimitError):
        build_demo(make_model(), settings, ["mine.pth", "dino_vits16"])
    assert named == [["mine.pth", "dino_vits16"]]


def test_what_an_analysis_may_need_is_a_setting(make_model: MakeModel, picture: Upload) -> None:
    with pytest.raises(LimitError, match="a picture 1,000: the largest resolution that fits is none"):
        on_loop(AnalysisService(make_model(), ServerSettings(analysis_bytes=1000)).analyze(make_model(), picture))
    with pytest.raises(ConfigError, match=r"^VITVIZ_MEMORY_BYTES = 2,147,483,648: expected at least [\d,]+: "):
        build_demo(make_model(), ServerSettings(memory_bytes=2**31))


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
