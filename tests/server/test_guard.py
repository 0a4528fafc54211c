"""Who is answered, what is refused, and that a refusal tells nothing but what to do."""

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
from regard.server.app import create_app
from regard.server.errors import redact_message
from regard.server.limits import JsonLogFormatter
from regard.server.settings import ServerSettings

TOKEN = "a-token-of-enough-letters"


@pytest.fixture
def guarded(runs):
    """Makes a client of a server with other settings."""
    opened = []

    def make(**settings):
        some = {name: runs[name] for name in ("gpt", "clip")}
        found = TestClient(create_app(some, ServerSettings(**settings)), base_url="http://localhost")
        opened.append(found)
        return found.__enter__()

    yield make
    for found in opened:
        found.__exit__(None, None, None)


def problem(answer, status):
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and "\n" not in error["message"]
    return error


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "localhost:x", "[::1", "a b"])
def test_only_its_own_names_are_answered(client, host):
    problem(client.get("/v1/models", headers={"Host": host}), 421)


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]:8000", "LOCALHOST"])
def test_its_own_names_are(client, host):
    assert client.get("/health", headers={"Host": host}).status_code == 200


def test_a_name_that_is_allowed(guarded):
    assert (
        guarded(allowed_hosts=("models.example.org",)).get("/health", headers={"Host": "models.example.org"}).status_code == 200
    )


def test_pages_of_other_sites_may_not_ask(client):
    asked = {"json": {"prompt": "Der"}}
    problem(client.post("/v1/generate", headers={"Origin": "https://evil.example"}, **asked), 403)
    problem(client.post("/v1/generate", headers={"Origin": "null"}, **asked), 403)
    problem(client.post("/v1/generate", headers={"Sec-Fetch-Site": "cross-site"}, **asked), 403)
    answer = client.options("/v1/generate", headers={"Origin": "http://localhost", "Access-Control-Request-Method": "POST"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.post("/v1/generate", headers={"Origin": "http://localhost"}, **asked).status_code == 200
    problem(client.post("/v1/generate", content='{"prompt": "Der"}', headers={"Content-Type": "text/plain"}), 415)
    problem(client.post("/v1/generate", content='{"prompt": "Der"}'), 415)


def test_every_answer_says_what_a_page_may_do_with_it(client):
    for answer in (client.get("/health"), client.get("/nowhere"), client.get("/", headers={"Host": "evil.example"})):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["cache-control"] == "no-store"


def test_another_address_needs_a_token(guarded):
    with pytest.raises(UserError, match="REGARD_TOKEN"):
        ServerSettings(host="0.0.0.0")
    with pytest.raises(UserError, match="at least 16"):
        ServerSettings(host="0.0.0.0", token="short")
    closed = guarded(host="0.0.0.0", token=TOKEN)
    for given_ in ({}, {"Authorization": TOKEN}, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": b"Bearer \xe4"}):
        error = closed.get("/v1/models", headers=given_)
        problem(error, 401)
        assert error.headers["www-authenticate"] == "Bearer"
    problem(closed.get("/metrics"), 401)
    assert closed.get("/v1/models", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert closed.get("/health").status_code == closed.get("/").status_code == 200


def test_a_body_is_counted_while_it_comes(guarded):
    small = guarded(body=1000, picture_body=5000)
    problem(small.post("/v1/generate", json={"prompt": "x" * 2000}), 413)
    read, told = [], []

    async def endless():
        read.append(b" " * 300)
        return {"type": "http.request", "body": read[-1], "more_body": True}

    async def hear(message):
        told.append(message)

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
            hear,
        )
    )
    assert told[0]["status"] == 413 and len(read) == 4 and (b"connection", b"close") in told[0]["headers"]
    problem(small.post("/v1/match", content=b'{"image": "' + b"A" * 6000, headers={"Content-Type": "application/json"}), 413)
    assert small.post("/v1/match", json={"image": "A" * 3000, "labels": ["a"]}).status_code == 422


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
def test_what_does_not_fit_is_refused_by_its_place(client, body, status):
    answer = client.post("/v1/generate", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    if status != 200:
        assert len(problem(answer, status)["message"]) < 1100


def bomb(side):
    """A PNG of a few bytes that says it has very many pixels."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 1000))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("image", ["!", "AAAA", "é", "data:image/png;base64,AAAA", "data:,", "file:///etc/passwd", "/etc/passwd"])
def test_what_is_no_picture_is_refused(client, image):
    problem(client.post("/v1/match", json={"image": image, "labels": ["a"]}), 422)


def test_image_bombs_are_refused_unread(client, encoded):
    for side in (5000, 60_000):
        image = base64.b64encode(bomb(side)).decode()
        error = problem(client.post("/v1/match", json={"image": image, "labels": ["a"]}), 422)
        assert "pixels" in error["message"]
    large = encoded(Image.new("RGB", (4000, 3990)))
    assert client.post("/v1/match", json={"image": large, "labels": ["a"]}).status_code == 200


def test_models_are_those_named_at_the_start(client, runs, tmp_path):
    for name in ("other", str(runs["gpt"].folder), "../gpt", "gpt/"):
        problem(client.post("/v1/generate", json={"prompt": "Der", "model": name}), 404)
    problem(client.post("/v1/generate", json={"prompt": "Der", "model": "clip"}), 422)
    for path in ("/page/../app.py", "/page/%2e%2e%2fapp.py", "/page/..%5capp.py", "/page/a/../../app.py", "/page/app.py"):
        assert client.get(path).status_code == 404


def test_no_path_is_told(client, runs):
    """The run's own words name its folder."""
    for verb, asked in [
        ("embed", {"model": "gpt", "text": "Der", "pool": "cls"}),
        ("embed", {"model": "gpt", "text": "Der", "layer": 99}),
        ("generate", {"prompt": "Der " * 500}),
        ("translate", {"text": "the dog", "beam": 2, "number": 5}),
        ("fill", {"text": "no mask"}),
        ("attention", {"model": "gpt", "text": "Der", "kind": "cross"}),
        ("explain", {"model": "classify", "text": "dog", "label": "nothing"}),
    ]:
        message = problem(client.post(f"/v1/{verb}", json=asked), 422)["message"]
        assert str(runs["gpt"].folder.parent) not in message and "/tmp" not in message and "--" not in message, message


@given(st.text(max_size=60))
def test_a_mistake_is_said_plainly_whatever_it_names(text):
    told = redact_message(f"/home/me/runs/a: --max-tokens {text}\n; see /usr/lib/python3/x.py", "/home/me/runs/a", "a")
    assert "/home" not in told and "/usr" not in told and "--max-tokens" not in told and told.isprintable()


def test_what_breaks_within_is_told_to_the_log_alone(runs, monkeypatch, caplog):
    def breaks(texts, **options):
        raise RuntimeError("secret /root/path")

    monkeypatch.setattr(runs["masked"], "fill", breaks, raising=False)
    with TestClient(create_app({"masked": runs["masked"]}), base_url="http://localhost") as client:
        error = problem(client.post("/v1/fill", json={"text": "a [MASK]"}), 500)
        assert "secret" not in json.dumps(error) and "RuntimeError" in caplog.text
        assert client.get("/ready").status_code == 200
        assert 'regard_failures_total{model="masked"} 1' in client.get("/metrics").text


def test_the_log_has_a_line_of_json_for_each_request_and_nothing_of_its_text(client, caplog):
    caplog.set_level(logging.INFO, "regard.server")
    client.post("/v1/generate", json={"prompt": "Der Hund", "max_tokens": 2})
    (record,) = [one for one in caplog.records if one.getMessage() == "request"]
    line = json.loads(JsonLogFormatter().format(record))
    assert line["endpoint"] == "/v1/generate" and line["status"] == 200 and line["model"] == "gpt"
    assert "Hund" not in json.dumps(line)


def test_figures_are_what_prometheus_reads(client):
    client.get("/health")
    text = client.get("/metrics").text
    assert 'regard_requests_total{endpoint="/health",status="200"}' in text and 'le="+Inf"' in text
    for line in text.splitlines():
        assert line.startswith("# ") or float(line.rpartition(" ")[2]) >= 0


def test_the_document_describes_every_endpoint(client):
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
