"""Limits on connections: heads and bodies arrive in time and within size; the settings that the command line rejects."""

import asyncio
import json
import resource
import socket
import time

import pytest
import uvicorn
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.server.connections import GracefulServer, available_connections, bind_socket
from regard.server.errors import ApiError
from regard.server.metrics import Metrics
from regard.server.models import load_runs
from regard.server.network.connection_table import ConnectionTable
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
    connection.settimeout(30)
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
        assert 0.4 < time.monotonic() - start < 15, "within the time limit, on a busy machine too"


def test_late_body_is_answered_with_408(served):
    with served.connect() as connection:
        connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert read_all(connection).startswith(b"HTTP/1.1 408")
    with served.connect() as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 408")


@pytest.mark.parametrize("size, end, status", [(40_000, b"", 431), (70_000, b"\r\n\r\n", 431), (15_000, b"\r\n\r\n", 200)])
def test_large_head_is_rejected(served, size, end, status):
    """Also one that arrives in one piece."""
    with served.connect() as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Much: " + b"a" * size + end)
        assert read_all(connection).startswith(b"HTTP/1.1 %d" % status)


@pytest.mark.parametrize(
    "data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost localhost\r\n\r\n", b"\x16\x03\x01\x02\0\x01\n\n", b"a" * 20_000]
)
def test_what_is_not_http_is_answered_in_the_form_of_all_errors(served, data):
    with served.connect() as connection:
        connection.sendall(data)
        head, _, body = read_all(connection).partition(b"\r\n\r\n")
    assert head.startswith((b"HTTP/1.1 400", b"HTTP/1.1 431")) and b"application/json" in head
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


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


TOKEN = "a-token-of-enough-letters"
UNREAD = 400 * b"GET /page/style.css HTTP/1.1\r\nHost: localhost\r\n\r\n"


def connect_and_never_read(served, number):
    """Return connections that have requested more than they will ever read."""
    held = []
    for _ in range(number):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(UNREAD)
        held.append(connection)
    return held


def test_clients_that_never_read_do_not_lock_out_others(runs, listening):
    """Their requests are complete, and their number is larger than that of the connections; the others come later."""
    with listening({"gpt": runs["gpt"]}, max_connections=40, token=TOKEN) as served:
        held = connect_and_never_read(served, 60)
        request = WHOLE.replace(b"localhost\r\n", f"localhost\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n".encode())
        start = time.monotonic()
        for data in 3 * [request, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"]:
            with served.connect() as connection:
                connection.sendall(data)
                assert read_all(connection).startswith(b"HTTP/1.1 200")
        assert time.monotonic() - start < 8  # before any of the time limits
        assert len(served.server.table.new) <= 20  # half of the connections, from one address
        for connection in held:
            connection.close()


def test_unread_response_is_dropped_in_time(runs, listening):
    with listening({"gpt": runs["gpt"]}, head_timeout=0.4, send_timeout=0.4) as served:
        (connection,) = connect_and_never_read(served, 1)
        deadline = time.monotonic() + 10
        state = served.server.server_state
        while served.server.table.new or not state.total_requests or state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        connection.close()


class FakeConnection:
    """A connection as the table sees it."""

    def __init__(self, address="a", stalled=False):
        self.address, self.stalled, self.open = address, stalled, True

    def abort(self):
        self.open = False

    def is_late(self, now):
        return False

    def is_stalled(self):
        return self.stalled


def add_connections(table, number, **options):
    connections = [FakeConnection(f"10.0.0.{index}", **options) for index in range(number)]
    for connection in connections:
        table.add(connection)
    return connections


def test_connection_whose_progress_is_longest_ago_is_closed_first():
    table = ConnectionTable(ServerSettings(), Metrics(), 8)
    connections = add_connections(table, 8)
    table.note_progress(connections[0])
    newcomers = add_connections(table, 2)
    assert [one.open for one in connections] == [True, False, False, *5 * [True]] and all(one.open for one in newcomers)


def test_address_has_at_most_half_of_the_connections():
    table = ConnectionTable(ServerSettings(), Metrics(), 8)
    same = [FakeConnection() for _ in range(20)]
    others = add_connections(table, 3)
    for connection in same:
        table.add(connection)
    assert [one.open for one in same] == [*16 * [False], *4 * [True]] and all(one.open for one in others)
    assert table.by_address["a"] == 4


def test_accepted_connections_stay_and_leave_room_for_new_ones():
    """A request is refused where too many others are busy; it takes the place of one that is stalled."""
    table = ConnectionTable(ServerSettings(), Metrics(), 16)
    accepted = add_connections(table, 14)
    for connection in accepted:
        table.accept(connection)
    flood = add_connections(table, 50)
    assert all(one.open for one in accepted) and sum(one.open for one in flood) == 2
    with pytest.raises(ApiError) as error:
        table.accept(flood[-1])
    assert error.value.status == 503 and flood[-1].open
    accepted[3].stalled = True
    table.accept(flood[-1])
    assert [one.open for one in accepted].index(False) == 3


def test_burst_of_connections_is_opened_newest_first_and_within_the_limit(monkeypatch):
    """Of thirty that wait from one address, where it may have ten, the oldest twenty are closed before they cost anything."""
    opened = []

    async def record(self, connection):
        self.table.remove(connection)
        opened.append(connection.socket.getpeername()[1])
        connection.abort()

    async def accept_for_a_while(server, bound):
        accepting = asyncio.create_task(server._accept_connections(bound))
        while len(opened) < 10:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        accepting.cancel()

    monkeypatch.setattr(GracefulServer, "_open", record)
    with bind_socket(ServerSettings(port=0)) as bound:
        bound.listen(100)
        clients = [socket.create_connection(bound.getsockname(), timeout=5) for _ in range(30)]
        server = GracefulServer(uvicorn.Config("app"), ConnectionTable(ServerSettings(), Metrics(), 20))
        asyncio.run(asyncio.wait_for(accept_for_a_while(server, bound), 20))
    assert opened == [client.getsockname()[1] for client in clients[:-11:-1]]
    assert [read_all(client) for client in clients] == [b""] * 30


def test_closed_connections_are_counted_and_logged_once(caplog):
    table = ConnectionTable(ServerSettings(), Metrics(), 4)
    add_connections(table, 500)
    for now in range(9):
        table.close_late(100.0 + now)
    assert [record.number for record in caplog.records] == [496]
    assert table.metrics.registry.get_sample_value("regard_closed_connections_total", {"reason": "limit"}) == 496


def test_fewer_connections_where_few_files_may_be_open(monkeypatch):
    for limit, expected in ((100_000, 1000), (1256, 1000), (1024, 768)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limit=limit: (limit, limit))
        monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: None)
        assert available_connections(ServerSettings()) == expected
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (128, 128))
    with pytest.raises(UserError, match="ulimit"):
        available_connections(ServerSettings())


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
