"""Errors as one line of JSON: no paths, no tracebacks, no content of the request."""

import re
from pathlib import Path

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
    499: "client_disconnected",
    503: "overloaded_error",
}
FAILURES = (Exception,)
"""What a model, a tokenizer or the server itself may raise: the request fails, the server goes on. The tokenizers and safetensors
libraries raise Exception itself."""
PATH = re.compile(r"(?:[A-Za-z]:)?(?:/[\w.@+~-]+){2,}/?")
OPTION = re.compile(r"--([a-z][a-z-]*)")


class ApiError(HTTPException):
    """An error response. It is an HTTPException, since FastAPI passes only those on when one is raised while a body is read."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None, retry_after: float | None = None
    ):
        headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {}
        if retry_after is not None:
            headers["Retry-After"] = str(max(1, round(retry_after)))
        super().__init__(status, message, headers)
        self.status, self.message, self.code, self.param = status, message, code, param

    def body(self) -> ErrorResponse:
        error_type = ERROR_TYPES.get(self.status, "server_error")
        return ErrorResponse(error=ErrorDetail(message=self.message, type=error_type, param=self.param, code=self.code))

    def response(self) -> JSONResponse:
        return JSONResponse(self.body().model_dump(), status_code=self.status, headers=self.headers)


def redact_message(message: str, folder: str | Path = "\0", name: str = "") -> str:
    """Return a message that any client may see: the run's folder by its name, options without dashes, no other path, one line."""
    text = message.replace(str(folder), name)
    text = OPTION.sub(lambda option: option[1].replace("-", "_"), PATH.sub("a file", text))
    return "".join(letter if letter.isprintable() else " " for letter in text)[:1000]
