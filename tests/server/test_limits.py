"""Access checks, limits on requests, and errors that reveal nothing about the server."""

import asyncio
import base64
import json
import logging
import struct
import zlib

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from regard.errors import UserError
from regard.server import jobs, render, response_types
from regard.server.app import create_app
from regard.server.errors import ApiError, redact_message
from regard.server.limits import CHUNK_BYTES, Exchange, JsonLogFormatter, RequestMemory
from regard.server.metrics import Metrics
from regard.server.network import json_body
from regard.server.settings import ServerSettings

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def make_client(runs):
    """Return a function that starts a server with other settings and returns its client."""
    clients = []

    def make(**settings):
        app = create_app({name: runs[name] for name in ("gpt", "clip")}, ServerSettings(**settings))
        clients.append(TestClient(app, base_url="http://localhost"))
        return clients[-1].__enter__()

    yield make
    for client in clients:
        client.__exit__(None, None, None)


def check_error(response, status):
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    return error


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "localhost:x", "[::1", "a b"])
def test_other_host_names_are_rejected(client, host):
    check_error(client.get("/v1/models", headers={"Host": host}), 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"])
def test_own_host_names_are_accepted(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


def test_allowed_host_name_is_accepted(make_client):
    assert (
        make_client(allowed_hosts=("models.example.org",)).get("/health", headers={"Host": "models.example.org"}).status_code
        == 200
    )


def test_cross_site_requests_are_rejected(client):
    body = {"json": {"prompt": "Der"}}
    check_error(client.post("/v1/generate", headers={"Origin": "https://evil.example"}, **body), 403)
    check_error(client.post("/v1/generate", headers={"Origin": "null"}, **body), 403)
    check_error(client.post("/v1/generate", headers={"Sec-Fetch-Site": "cross-site"}, **body), 403)
    response = client.options("/v1/generate", headers={"Origin": "http://localhost", "Access-Control-Request-Method": "POST"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    assert client.post("/v1/generate", headers={"Origin": "http://localhost"}, **body).status_code == 200
    check_error(client.post("/v1/generate", content='{"prompt": "Der"}', headers={"Content-Type": "text/plain"}), 415)
    check_error(client.post("/v1/generate", content='{"prompt": "Der"}'), 415)


def test_every_response_has_security_headers(client):
    for response in (client.get("/health"), client.get("/nowhere"), client.get("/", headers={"Host": "evil.example"})):
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert response.headers["x-content-type-options"] == "nosniff" and response.headers["cache-control"] == "no-store"


def test_non_loopback_address_requires_a_token(make_client):
    with pytest.raises(UserError, match="REGARD_TOKEN"):
        ServerSettings(host="0.0.0.0")
    with pytest.raises(UserError, match="at least 16"):
        ServerSettings(host="0.0.0.0", token="short")
    protected = make_client(host="0.0.0.0", token=TOKEN)
    for headers in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": b"Bearer \xe4"}):
        error = protected.get("/v1/models", headers=headers)
        check_error(error, 401)
        assert error.headers["www-authenticate"] == "Bearer"
    check_error(protected.get("/metrics"), 401)
    assert protected.get("/v1/models", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert protected.get("/health").status_code == protected.get("/").status_code == 200


def test_body_is_limited_while_it_is_received(make_client):
    small = make_client(max_body_bytes=1000, max_image_body_bytes=5000)
    check_error(small.post("/v1/generate", json={"prompt": "x" * 2000}), 413)
    received, sent = [], []

    async def endless():
        received.append(b" " * 300)
        return {"type": "http.request", "body": received[-1], "more_body": True}

    async def send(message):
        sent.append(message)

    asyncio.run(
        small.app(
            {
                "type": "http",
                "method": "POST",
                "path": "/v1/generate",
                "query_string": b"",
                "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")],
            },
            endless,
            send,
        )
    )
    assert sent[0]["status"] == 413 and len(received) == 4 and (b"connection", b"close") in sent[0]["headers"]
    check_error(small.post("/v1/match", content=b'{"image": "' + b"A" * 6000, headers={"Content-Type": "application/json"}), 413)
    assert small.post("/v1/match", json={"image": "A" * 3000, "labels": ["a"]}).status_code == 422


def test_only_models_that_read_images_take_bodies_of_their_size(runs, make_client):
    body = b'{"text": "a"' + b" " * 1_500_000 + b"}"
    headers = {"Content-Type": "application/json"}
    with TestClient(create_app({"gpt": runs["gpt"]}), base_url="http://localhost") as texts:
        check_error(texts.post("/v1/embed", content=body, headers=headers), 413)
    images = make_client()
    assert images.post("/v1/embed", content=body, headers=headers).status_code == 200
    check_error(images.post("/v1/generate", content=body, headers=headers), 413)


@given(
    st.recursive(st.none() | st.text(max_size=5) | st.just('\\",[{'), lambda inner: st.lists(inner, max_size=6), max_leaves=40)
)
def test_json_is_checked_by_its_values_and_depth(value):
    """What is inside a text counts for nothing."""

    def depth(value):
        return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0

    text = json.dumps({"a": value}).encode()
    allowed = json_body.MAX_VALUES, json_body.MAX_DEPTH
    try:
        for values, levels in ((20, 5), (8, 3)):
            json_body.MAX_VALUES, json_body.MAX_DEPTH = values, levels
            try:
                json_body.check_json(text)
                accepted = True
            except ApiError:
                accepted = False
            assert accepted == (commas_and_brackets(value) <= values and 1 + depth(value) <= levels)
    finally:
        json_body.MAX_VALUES, json_body.MAX_DEPTH = allowed


def commas_and_brackets(value):
    def inside(value):
        return 1 + max(0, len(value) - 1) + sum(map(inside, value)) if isinstance(value, list) else 0

    return 1 + inside(value)


@pytest.mark.parametrize(
    "body, status",
    [
        (b"{" + b",".join(b'"k%d":0' % number for number in range(80_000)) + b"}", 400),
        (b'{"prompt": ' + b"[" * 40 + b"]" * 40 + b"}", 400),
        (b'{"prompt": "' + b"\\n" * 310_000 + b'"}', 400),
        (json.dumps({"prompt": "[,{" * 5000, "max_tokens": 1}).encode(), 422),  # too long for this model, but JSON
    ],
)
def test_json_of_many_values_is_rejected_unparsed(client, monkeypatch, body, status):
    parsed = []
    monkeypatch.setattr(json_body.json, "loads", lambda text: parsed.append(text) or json.JSONDecoder().decode(text.decode()))
    response = client.post("/v1/generate", content=body, headers={"Content-Type": "application/json"})
    check_error(response, status)
    assert parsed.count(body) == (status == 422)


def test_every_endpoint_checks_its_json(client):
    paths = [path for path, operations in client.get("/openapi.json").json()["paths"].items() if "post" in operations]
    assert len(paths) > 15
    for path in paths:
        error = client.post(path, content=b"[" * 50, headers={"Content-Type": "application/json"})
        assert "nested" in check_error(error, 400)["message"]


def test_memory_of_all_requests_together_is_bounded(make_client, encode_image):
    limited = make_client(max_request_bytes=200_000)
    long_text = {"prompt": "a" * 19_000, "max_tokens": 1}
    assert limited.post("/v1/generate", json=long_text).status_code == 422  # too long for this model
    error = limited.post("/v1/generate", json={"prompt": 5 * ["a" * 19_000]})
    assert check_error(error, 503)["code"] == "busy" and error.headers["retry-after"]
    large_image = {"image": encode_image(Image.new("RGB", (300, 300))), "labels": ["a"]}  # 720 KB while it is decoded
    assert check_error(limited.post("/v1/match", json=large_image), 503)["code"] == "busy"
    for _ in range(20):  # nothing is kept of those requests
        assert limited.post("/v1/generate", json=long_text).status_code == 422


@given(st.integers(0, 5 * CHUNK_BYTES), st.booleans())
def test_long_response_is_sent_in_pieces(size, closes):
    sent = []

    async def send(message):
        sent.append(message)

    async def scenario():
        exchange = Exchange({"method": "GET"}, None, send, ServerSettings(), RequestMemory(10**9), 10**6)
        await exchange.send({"type": "http.response.start", "status": 200, "headers": []})
        await exchange.send({"type": "http.response.body", "body": bytes(size), "more_body": not closes})
        return exchange.sent

    assert asyncio.run(scenario()) == size == sum(len(message["body"]) for message in sent[1:])
    assert all(len(message["body"]) <= CHUNK_BYTES for message in sent[1:])
    assert [message["more_body"] for message in sent[1:]] == [*(len(sent) - 2) * [True], not closes]


def test_response_that_takes_too_much_memory_becomes_an_error(make_client, monkeypatch):
    limited = make_client(max_request_bytes=150_000)
    monkeypatch.setattr(limited.app.state.metrics, "to_text", lambda: b"a" * 149_000)
    assert limited.get("/metrics").content == b"a" * 149_000
    monkeypatch.setattr(limited.app.state.metrics, "to_text", lambda: b"a" * 151_000)
    assert check_error(limited.get("/metrics"), 503)["code"] == "busy"


class UnforeseenError(Exception):
    """An exception of a library: of no class that Python has."""


def test_unforeseen_error_in_an_endpoint_is_answered_in_json(make_client, monkeypatch, caplog):
    server = make_client()

    def fail():
        raise UnforeseenError("secret /root/path")

    monkeypatch.setattr(server.app.state.metrics, "to_text", fail)
    error = check_error(server.get("/metrics"), 500)
    assert error["code"] == "failure" and "secret" not in json.dumps(error) and "UnforeseenError" in caplog.text


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("failing", ["step", "result"])
def test_failure_while_decoding_is_an_error_or_an_error_event(runs, monkeypatch, stream, failing):
    """The stream does not just stop, whether the model fails or what is made of its result."""
    if failing == "step":
        step, steps = runs["gpt"].model.step, []

        def fail(tokens, state):
            steps.append(1)
            if len(steps) > 3:
                raise UnforeseenError
            return step(tokens, state)

        monkeypatch.setattr(runs["gpt"].model, "step", fail)
    else:
        monkeypatch.setattr(render, "generation_results", lambda *_: [response_types.GenerateResult()])
    with TestClient(create_app({"gpt": runs["gpt"]}), base_url="http://localhost") as client:
        response = client.post("/v1/generate", json={"prompt": "Der Hund", "max_tokens": 8, "stream": stream})
        if stream and response.status_code == 200:
            events = response.text.split("\n\n")
            assert events[-2] == "data: [DONE]" and json.loads(events[-3].removeprefix("data: "))["error"]["code"] == "failure"
        else:
            assert check_error(response, 500)["code"] == "failure"
        monkeypatch.undo()
        assert client.get("/ready").status_code == 200
        assert client.post("/v1/generate", json={"prompt": "Der Hund", "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize(
    "body, status",
    [
        ("{", 400),
        ("", 422),
        ("[]", 422),
        ('{"prompt": "a", "temperature": NaN}', 422),
        ('{"prompt": "a", "top_p": Infinity}', 422),
        ('{"prompt": "a", "temperature": 1e999}', 422),
        ('{"prompt": "\\ud800"}', 422),
        ('{"prompt": ["a", "\\udfff b"]}', 422),
        ('{"prompt": "a", "max_tokens": 0}', 422),
        ('{"prompt": "a", "max_tokens": 99999}', 422),
        ('{"prompt": [], "seed": 1}', 422),
        ('{"prompt": "a", "max_tokens": 1.5}', 422),
        ('{"prompt": "a", "seed": true}', 422),
        ('{"prompt": "a", "seed": -1}', 422),
        ('{"prompt": "a", "max_tokens": "3"}', 422),
        ('{"prompt": "a", "max_tokens": ' + "9" * 5000 + "}", 400),
        ("[" * 100_000, 400),
        ('{"prompt": "a", "other": 1}', 422),
        ('{"prompt": "a", "stop": [""]}', 422),
        ('{"prompt": "a", "model": "/etc/hosts"}', 404),
        ('{"prompt": "' + "a" * 30_000 + '"}', 422),
        ('{"prompt": "a", "top_p": 0}', 422),
        ('{"prompt": "a", "number": 3}', 422),
        (b'{"prompt": "\xff"}', 400),
        ('{"prompt": "a\\u0000b"}', 200),
    ],
)
def test_invalid_requests_are_rejected(client, body, status):
    response = client.post("/v1/generate", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == status, response.text
    if status != 200:
        assert len(check_error(response, status)["message"]) < 1100


def decompression_bomb(side):
    """Return a PNG of a few bytes whose header claims very many pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("image", ["!", "AAAA", "é", "data:image/png;base64,AAAA", "data:,", "file:///etc/passwd", "/etc/passwd"])
def test_invalid_images_are_rejected(client, image):
    check_error(client.post("/v1/match", json={"image": image, "labels": ["a"]}), 422)


def test_decompression_bombs_are_rejected_unread(client, encode_image):
    for side in (5000, 60_000):
        image = base64.b64encode(decompression_bomb(side)).decode()
        error = check_error(client.post("/v1/match", json={"image": image, "labels": ["a"]}), 422)
        assert "pixels" in error["message"]
    large = encode_image(Image.new("RGB", (4000, 3990)))
    assert client.post("/v1/match", json={"image": large, "labels": ["a"]}).status_code == 200


def test_only_models_named_at_startup_and_files_of_the_page_are_reachable(client, runs, tmp_path):
    for name in ("other", str(runs["gpt"].folder), "../gpt", "gpt/"):
        check_error(client.post("/v1/generate", json={"prompt": "Der", "model": name}), 404)
    check_error(client.post("/v1/generate", json={"prompt": "Der", "model": "clip"}), 422)
    for path in ("/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/..%5capp.py", "/page/a/../../app.py", "/page/app.py"):
        assert client.get(path).status_code == 404


def test_error_messages_contain_no_path(client, runs):
    """The messages of a run name its folder, which clients must not see."""
    for verb, body in [
        ("embed", {"model": "gpt", "text": "Der", "pool": "cls"}),
        ("embed", {"model": "gpt", "text": "Der", "layer": 99}),
        ("generate", {"prompt": "Der " * 500}),
        ("translate", {"text": "the dog", "beam": 2, "number": 5}),
        ("fill", {"text": "no mask"}),
        ("attention", {"model": "gpt", "text": "Der", "kind": "cross"}),
        ("explain", {"model": "classify", "text": "dog", "label": "nothing"}),
    ]:
        message = check_error(client.post(f"/v1/{verb}", json=body), 422)["message"]
        assert str(runs["gpt"].folder.parent) not in message and "/tmp" not in message and "--" not in message, message


@given(st.text(max_size=60))
def test_redacted_messages_contain_no_path_or_option(text):
    redacted = redact_message(f"/home/me/runs/a: --max-tokens {text}\n; see /usr/lib/python3/x.py", "/home/me/runs/a", "a")
    assert "/home" not in redacted and "/usr" not in redacted and "--max-tokens" not in redacted and redacted.isprintable()


def test_internal_errors_are_only_in_the_log(runs, monkeypatch, caplog):
    def fail(texts, **options):
        raise RuntimeError("secret /root/path")

    monkeypatch.setattr(runs["masked"], "fill", fail, raising=False)
    with TestClient(create_app({"masked": runs["masked"]}), base_url="http://localhost") as client:
        error = check_error(client.post("/v1/fill", json={"text": "a [MASK]"}), 500)
        assert "secret" not in json.dumps(error) and "RuntimeError" in caplog.text
        assert client.get("/ready").status_code == 200
        assert 'regard_failures_total{model="masked"} 1.0' in client.get("/metrics").text


def test_log_has_one_json_line_per_request_without_its_text(client, caplog):
    caplog.set_level(logging.INFO, "regard.server")
    client.post("/v1/generate", json={"prompt": "Der Hund", "max_tokens": 2})
    (record,) = [record for record in caplog.records if record.getMessage() == "request"]
    line = json.loads(JsonLogFormatter().format(record))
    assert line["endpoint"] == "/v1/generate" and line["status"] == 200 and line["model"] == "gpt"
    assert "Hund" not in json.dumps(line)


def test_counters_are_exact_in_the_metrics():
    metrics = Metrics()
    metrics.tokens.labels("a").inc(123_456_789_012)
    metrics.tokens.labels("a").inc()
    (line,) = [line for line in metrics.to_text().decode().splitlines() if line.startswith("regard_generated_tokens_total")]
    assert float(line.rpartition(" ")[2]) == 123_456_789_013


def test_metrics_are_in_prometheus_text_format(client):
    client.get("/health")
    text = client.get("/metrics").text
    assert 'regard_requests_total{endpoint="/health",status="200"}' in text and 'le="+Inf"' in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


def test_each_app_has_its_own_metrics(make_client):
    first, second = make_client(), make_client()
    first.get("/health")
    sample = 'regard_requests_total{endpoint="/health",status="200"}'
    assert sample in first.get("/metrics").text and sample not in second.get("/metrics").text


def test_openapi_document_describes_every_endpoint(client):
    document = client.get("/openapi.json").json()
    for verb in (
        "translate",
        "generate",
        "fill",
        "classify",
        "tag",
        "answer",
        "embed",
        "caption",
        "match",
        "draw",
        "attention",
        "explain",
        "completions",
        "chat/completions",
        "embeddings",
    ):
        assert "post" in document["paths"][f"/v1/{verb}"]
    assert client.get("/docs").status_code == client.get("/redoc").status_code == 404


def test_results_are_written_as_json_one_by_one():
    """With the text that the whole response has."""
    results = [response_types.TaggingResult(words=["ä\n"], labels=["b"]), response_types.TaggingResult(words=[], labels=[])]
    for number in range(3):
        whole = response_types.TagResponse(model='a "name', results=results[:number])
        empty = response_types.TagResponse(model='a "name', results=[])
        assert jobs.results_json(empty, results[:number]) == whole.model_dump_json()
