"""JSON bodies, checked before they are parsed: how many values they have, and how deep these are nested.

A parsed value takes fifty times the memory of its text, and Python's parser lets no other thread run until it is done: a few
megabytes of braces would stop the server for seconds."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from regard.server.errors import ApiError

MAX_VALUES = 2_000
"""More than any request needs: the longest lists have 200 items."""
MAX_DEPTH = 32
MAX_ESCAPES = 300_000
"""Backslashes; some encoders escape every slash of an image in base64."""
INLINE_BYTES = 32_768
"""Smaller bodies are parsed in the event loop, which takes less time than waking a thread."""
STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[\]{},]', re.DOTALL)
PARSER = ThreadPoolExecutor(1, "json")
"""One thread: several would hold Python's lock in turn, and the event loop would wait for all of them."""


def check_json(body: bytes) -> None:
    """Refuse a body with too many values, nested too deep or of escapes only; in a time that does not depend on what it holds."""
    if body.count(b"\\") > MAX_ESCAPES:
        raise ApiError(400, f"the JSON has more than {MAX_ESCAPES:,} escape sequences; send UTF-8", code="invalid")
    opening, commas = body.count(b"[") + body.count(b"{"), body.count(b",")
    if opening <= MAX_DEPTH and opening + commas < MAX_VALUES:
        return  # so few, even if none of them were inside a text
    depth = values = 0
    for match in STRUCTURE.finditer(body):
        symbol = match[0][:1]
        if symbol in b"[{":
            depth += 1
        elif symbol in b"]}":
            depth -= 1
        values += symbol in b",[{"
        if depth > MAX_DEPTH:
            raise ApiError(400, f"the JSON is nested deeper than {MAX_DEPTH} levels", code="invalid")
        if values > MAX_VALUES:
            raise ApiError(400, f"the JSON has more than {MAX_VALUES:,} values", code="invalid")


def parse_json(body: bytes) -> Any:
    check_json(body)
    return json.loads(body)


class JsonRequest(Request):
    """A request whose JSON is checked before it is parsed; long ones are parsed in a thread."""

    async def json(self) -> Any:
        body = await self.body()
        if len(body) <= INLINE_BYTES:
            return parse_json(body)
        return await asyncio.get_running_loop().run_in_executor(PARSER, parse_json, body)


class JsonRoute(APIRoute):
    """A route whose handler gets a JsonRequest."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(JsonRequest(request.scope, request.receive))

        return handle_checked
