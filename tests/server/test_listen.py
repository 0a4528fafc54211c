"""Laws of connections: heads and bodies come in time and in size, the oldest of too many goes; what the command line refuses."""

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
    with listening({"gpt": runs["gpt"]}, head_seconds=0.6, body_seconds=0.5, connections=20) as server:
        yield server


def hear(asking):
    """All until the server closes."""
    heard = b""
    asking.settimeout(5)
    try:
        while part := asking.recv(65536):
            heard += part
    except ConnectionError:
        pass
    return heard


def test_a_head_that_does_not_come_is_not_waited_for(served):
    for begun in (b"", HEAD, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /health HTTP/1.1\r\nHo"):
        began = time.monotonic()
        with served.connect() as asking:
            asking.sendall(begun)
            assert hear(asking).count(b"HTTP/1.1 200") == begun.count(b"\r\n\r\n")
        assert 0.4 < time.monotonic() - began < 3


def test_a_body_that_does_not_come_is_not_either(served):
    with served.connect() as asking:
        asking.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert hear(asking).startswith(b"HTTP/1.1 408")
    with served.connect() as asking:
        asking.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert hear(asking).startswith(b"HTTP/1.1 408")


def test_a_head_may_not_be_large(served):
    with served.connect() as asking:
        asking.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Much: " + b"a" * 40_000)
        assert hear(asking).startswith(b"HTTP/1.1 400")


def test_what_is_refused_unread_is_not_taken_for_the_next_request(served):
    """A body that nobody reads could hold another request."""
    with served.connect() as asking:
        smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
        head = HEAD.replace(b"localhost", b"evil.example") + b"Content-Length: " + str(len(smuggled)).encode() + b"\r\n\r\n"
        asking.sendall(head)
        asking.sendall(smuggled)
        heard = hear(asking)
        assert heard.startswith(b"HTTP/1.1 421") and heard.count(b"HTTP/1.1") == 1


def test_a_connection_is_kept_between_requests(served):
    with served.connect() as asking:
        for _ in range(3):
            asking.sendall(WHOLE)
            heard = b""
            while b'"results"' not in heard or not heard.rstrip().endswith(b"}"):
                heard += asking.recv(65536)
            assert heard.startswith(b"HTTP/1.1 200")


def test_of_too_many_connections_the_oldest_without_a_request_goes(runs, listening):
    """And whoever has something to say is heard."""
    with listening({"gpt": runs["gpt"]}, connections=20) as served:
        slow = [served.connect() for _ in range(30)]
        with served.connect() as asking:
            asking.sendall(WHOLE.replace(b"localhost\r\n", b"localhost\r\nConnection: close\r\n"))
            assert hear(asking).startswith(b"HTTP/1.1 200")
        assert [hear(one) for one in slow[:10]] == [b""] * 10  # long before their time is over
        for one in slow:
            one.close()


def test_settings_that_cannot_be():
    for given, match in (
        ({"port": 70_000}, "port"),
        ({"queue": 0}, "queue"),
        ({"deadline": float("nan")}, "deadline"),
        ({"allowed_hosts": ("http://a",)}, "allow-host"),
        ({"host": "192.0.2.1"}, "REGARD_TOKEN"),
    ):
        with pytest.raises(UserError, match=match):
            ServerSettings(**given)
    assert (
        ServerSettings(host="::1").loopback
        and ServerSettings(host="localhost").loopback
        and ServerSettings(host="127.9.9.9").loopback
    )


def test_an_address_that_is_taken_is_told_before_anything_is_read():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(UserError, match="cannot listen"):
            bind_socket(ServerSettings(port=taken.getsockname()[1]))


def test_models_have_names_of_their_own(runs):
    folder = runs["gpt"].folder
    assert list(load_runs([str(folder), f"other={folder}"], "cpu")) == ["gpt", "other"]
    with pytest.raises(UserError, match="two models"):
        load_runs([str(folder), str(folder)], "cpu")


@pytest.mark.parametrize(
    "words, match",
    [
        (["nowhere"], "does not exist"),
        (["x", "--host", "0.0.0.0"], "REGARD_TOKEN"),
        (["x", "--port", "99999"], "port"),
        (["=x"], "NAME=RUN"),
    ],
)
def test_the_command_line_refuses_in_one_line(words, match, monkeypatch):
    monkeypatch.delenv("REGARD_TOKEN", raising=False)
    port = [] if "--port" in words else ["--port", "0"]
    result = CliRunner().invoke(app, ["serve", *words, *port])
    assert isinstance(result.exception, UserError) and match in str(result.exception)
