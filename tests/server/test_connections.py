"""Limits on connections: heads and bodies arrive in time and within size; the settings that the command line rejects."""

import json
import socket
import time

import pytest
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.server.connections import bind_socket
from regard.server.models import load_runs
from regard.server.settings import ServerSettings

HEAD = b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"prompt": "Der", "max_tokens": 2}).encode()
WHOLE = HEAD + b"Content-Length: " + str(len(BODY)).encode() + b"\r\n\r\n" + BODY


@pytest.fixture(scope="module")
def served(runs, listening):
    with listening({"gpt": runs["gpt"]}, head_timeout=0.6, body_timeout=0.5, max_connections=20) as server:
        yield server


def read_all(connection):
    """Return everything that the server sends until it closes the connection."""
    received = b""
    connection.settimeout(5)
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionError:
        pass
    return received


def test_connection_with_a_late_head_is_closed(served):
    for data in (b"", HEAD, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHo"):
        start = time.monotonic()
        with served.connect() as connection:
            connection.sendall(data)
            assert read_all(connection).count(b"HTTP/1.1 200") == data.count(b"\r\n\r\n")
        assert 0.4 < time.monotonic() - start < 3


def test_late_body_is_answered_with_408(served):
    with served.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert read_all(connection).startswith(b"HTTP/1.1 408")
    with served.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 408")


def test_large_head_is_rejected(served):
    with served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Much: " + b"a" * 40_000)
        assert read_all(connection).startswith(b"HTTP/1.1 400")


def test_unread_body_is_not_parsed_as_the_next_request(served):
    """The body of a rejected request could hold another request (request smuggling)."""
    with served.connect() as connection:
        smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = HEAD.replace(b"localhost", b"evil.example") + b"Content-Length: " + str(len(smuggled)).encode() + b"\r\n\r\n"
        connection.sendall(head)
        connection.sendall(smuggled)
        received = read_all(connection)
        assert received.startswith(b"HTTP/1.1 421") and received.count(b"HTTP/1.1") == 1


def test_connection_is_kept_alive_between_requests(served):
    with served.connect() as connection:
        for _ in range(3):
            connection.sendall(WHOLE)
            received = b""
            while b'"results"' not in received or not received.rstrip().endswith(b"}"):
                received += connection.recv(65536)
            assert received.startswith(b"HTTP/1.1 200")


def test_oldest_idle_connection_is_closed_when_there_are_too_many(runs, listening):
    """And a client that sends a request is served."""
    with listening({"gpt": runs["gpt"]}, max_connections=20) as served:
        slow = [served.connect() for _ in range(30)]
        with served.connect() as connection:
            connection.sendall(WHOLE.replace(b"localhost\r\n", b"localhost\r\nConnection: close\r\n"))
            assert read_all(connection).startswith(b"HTTP/1.1 200")
        assert [read_all(idle) for idle in slow[:10]] == [b""] * 10  # long before the head timeout
        for idle in slow:
            idle.close()


def test_invalid_settings_are_rejected():
    for given, match in (
        ({"port": 70_000}, "port"),
        ({"max_queue": 0}, "max-queue"),
        ({"timeout": float("nan")}, "timeout"),
        ({"allowed_hosts": ("http://a",)}, "allow-host"),
        ({"allowed_hosts": ("*",)}, "allow-host"),
        ({"host": "192.0.2.1"}, "REGARD_TOKEN"),
    ):
        with pytest.raises(UserError, match=match):
            ServerSettings(**given)
    assert (
        ServerSettings(host="::1").loopback
        and ServerSettings(host="localhost").loopback
        and ServerSettings(host="127.9.9.9").loopback
    )


def test_address_in_use_is_reported_before_models_are_loaded():
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        with pytest.raises(UserError, match="cannot listen"):
            bind_socket(ServerSettings(port=occupied.getsockname()[1]))


def test_two_models_with_one_name_are_rejected(runs):
    folder = runs["gpt"].folder
    assert list(load_runs([str(folder), f"other={folder}"], "cpu")) == ["gpt", "other"]
    with pytest.raises(UserError, match="two models"):
        load_runs([str(folder), str(folder)], "cpu")


@pytest.mark.parametrize(
    "arguments, match",
    [
        (["nowhere"], "does not exist"),
        (["x", "--host", "0.0.0.0"], "REGARD_TOKEN"),
        (["x", "--port", "99999"], "port"),
        (["=x"], "NAME=RUN"),
    ],
)
def test_serve_command_rejects_invalid_arguments_in_one_line(arguments, match, monkeypatch):
    monkeypatch.delenv("REGARD_TOKEN", raising=False)
    port = [] if "--port" in arguments else ["--port", "0"]
    result = CliRunner().invoke(app, ["serve", *arguments, *port])
    assert isinstance(result.exception, UserError) and match in str(result.exception)
