"""Requests to a server, each wrong in one way."""

from __future__ import annotations

from tests.server_client import form

JSON_ROUTES = (
    "queue/join",
    "call/models",
    "call/methods",
    "call/analyze",
    "call/v2/models",
    "call/v2/methods",
    "call/v2/maps",
    "call/nothing",
)
EDGE = "multipart/form-data; boundary=edge"
WRONG_FORMS = {
    "a field": (form(("a", b"x"), field="other"), EDGE),
    "text": (b'--edge\r\nContent-Disposition: form-data; name="files"\r\n\r\nx\r\n--edge--\r\n', EDGE),
    "no disposition": (b"--edge\r\n\r\nx\r\n--edge--\r\n", EDGE),
    "cut": (form(("a", b"x" * 1000))[:-300], EDGE),
    "no end": (form(("a", b"x" * 1000)).removesuffix(b"--\r\n"), EDGE),
    "nothing": (b"--edge--\r\n", EDGE),
    "empty": (b"", EDGE),
    "no form": (b"{}", EDGE),
    "long head": (form(("a" * 9000, b"x")), EDGE),
    "many": (form(*[("a", b"x")] * 200), EDGE),
    "no boundary": (form(("a", b"x")), "multipart/form-data"),
    "a long boundary": (form(("a", b"x"), boundary="e" * 5000), "multipart/form-data; boundary=" + "e" * 5000),
    "JSON": (b"{}", "application/json"),
    "no type": (form(("a", b"x")), ""),
}
