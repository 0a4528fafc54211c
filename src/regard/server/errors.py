"""What goes wrong, in one line: no paths, no tracebacks, nothing of the request."""

import re
from typing import Any

from fastapi import HTTPException
from fastapi.responses import JSONResponse

from regard.server.response_types import ErrorDetail, ErrorResponse

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    411: "invalid_request_error",
    413: "request_too_large",
    415: "invalid_request_error",
    421: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    431: "request_too_large",
    499: "client_left",
    503: "overloaded_error",
}
PATH = re.compile(r"(?:[A-Za-z]:)?(?:/[\w.@+~-]+){2,}/?")
OPTION = re.compile(r"--([a-z][a-z-]*)")


class ApiError(HTTPException):
    """An answer that is no success. The framework passes on what it knows as such, even from within reading a body."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry: float | None = None
    ):
        more = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        super().__init__(status, message, more if retry is None else {**more, "Retry-After": str(max(1, round(retry)))})
        self.status, self.message, self.code, self.param = status, message, code, param

    def wrong(self) -> ErrorResponse:
        return ErrorResponse(
            error=ErrorDetail(
                message=self.message, type=ERROR_TYPES.get(self.status, "server_error"), param=self.param, code=self.code
            )
        )

    def response(self) -> JSONResponse:
        return JSONResponse(self.wrong().model_dump(), status_code=self.status, headers=self.headers)


def redact_message(message: str, folder: Any, name: str) -> str:
    """A mistake as it may be told to anyone: the run by its name, settings without dashes, no path, one line."""
    text = message.replace(str(folder), name)
    text = OPTION.sub(lambda option: option[1].replace("-", "_"), PATH.sub("a file", text))
    return "".join(letter if letter.isprintable() else " " for letter in text)[:1000]
