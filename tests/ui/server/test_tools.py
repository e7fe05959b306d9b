"""Pictures in calls by MCP."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from vitviz.system.strangers import FORM_FILES
from vitviz.ui.pictures import upload_of
from vitviz.ui.server.rule import RequestError
from vitviz.ui.server.tools import with_uploads
from vitviz.ui.server.visitor_files import Folder


def test_a_picture_in_a_call_is_kept_as_an_upload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    folder = Folder()
    url = f"data:image/png;base64,{b64encode(b'picture').decode()}"
    arguments = {"image": url, "maps": [{"like": "data:,a%20b"}, {"like": "data:x;base64,abc"}], "model": "data"}
    call = {"method": "tools/call", "params": {"name": "analyze", "arguments": arguments}, "id": 1}
    found = with_uploads(call, folder)
    replaced = found["params"]["arguments"]
    addresses = [replaced["image"], *(each["like"] for each in replaced["maps"])]
    kept = [upload_of({"path": address}).path.read_bytes() for address in addresses]
    assert kept == [b"picture", b"a b", b""]
    found["params"]["arguments"] = arguments
    assert found == call
    for other in ({"method": "tools/list"}, [1], {"params": [1]}, {"params": {"name": "data"}}, 5, None):
        assert with_uploads(other, folder) == other


def test_a_call_of_many_pictures_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of thousands of empty ones held up everybody's uploads."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    with pytest.raises(RequestError, match="more than 100 pictures"):
        with_uploads({str(number): "data:," for number in range(FORM_FILES + 1)}, Folder())
    assert len(list(tmp_path.rglob("picture"))) == FORM_FILES
