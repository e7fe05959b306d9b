"""Errors as statuses with one sentence."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from vitviz.errors.kinds import LimitError, VitvizError
from vitviz.ui.server.bodies import NOT_JSON
from vitviz.ui.server.log import INTERNAL_ERROR


def explained(error: BaseException) -> tuple[int, str]:
    """The status of an error and one sentence."""
    # Starlette wraps an error that comes after the response has begun.
    for each in (error, error.__cause__):
        if isinstance(each, HTTPException):
            return each.status_code, str(each.detail)
    if isinstance(error, VitvizError):
        # What a visitor sends and there is no room for.
        return 507 if isinstance(error, LimitError) else 400, str(error)
    # JSON that Python reads, and nests too deeply to be written again.
    if isinstance(error, RecursionError):
        return 400, NOT_JSON
    return 500, INTERNAL_ERROR


def refusal(error: BaseException, *, is_call: bool = False) -> JSONResponse:
    """The answer to a request that failed; one to a call of Gradio's clients is as they show it."""
    status, reason = explained(error)
    if is_call and status in (400, 404):
        detail = {"__type__": "validate", "is_valid": False, "parameter_name": "request", "message": reason}
        return JSONResponse({"detail": [detail]}, 422)
    return JSONResponse({"detail": reason}, status)
