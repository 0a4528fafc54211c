"""OpenAI's official Python client against a listening server."""

import asyncio
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import openai
import pytest

from regard.server import openai_routes
from regard.tasks.shared import chat


@pytest.fixture(scope="module")
def served(runs, listening):
    with listening({name: runs[name] for name in ("gpt", "masked", "en-de", "clip")}) as server:
        yield server


@pytest.fixture(scope="module")
def openai_client(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none needed", max_retries=0)


def test_models(openai_client):
    assert [model.id for model in openai_client.models.list()] == ["gpt", "masked", "en-de", "clip"]
    assert openai_client.models.retrieve("gpt").owned_by == "regard"


def test_completion_equals_the_runs_text_and_its_stream(openai_client, runs):
    request = dict(model="gpt", prompt=["Der Hund", "Die"], max_tokens=12, temperature=0)
    completion = openai_client.completions.create(**request, logprobs=0)
    expected = runs["gpt"].generate(["Der Hund", "Die"], max_tokens=12)
    assert [choice.text for choice in completion.choices] == [result.continuation for result in expected]
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert all(choice.finish_reason == "length" or len(choice.logprobs.tokens) < 12 for choice in completion.choices)
    streamed = ["", ""]
    for event in openai_client.completions.create(**request, stream=True, stream_options={"include_usage": True}):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert streamed == [result.continuation for result in expected] and event.usage == completion.usage


def test_sampled_texts_follow_their_seed(openai_client, runs):
    request = dict(model="gpt", prompt="Der", max_tokens=10, seed=5, n=3, temperature=1.0)
    texts = [choice.text for choice in openai_client.completions.create(**request).choices]
    assert texts == [
        result.continuation for result in runs["gpt"].generate("Der", max_tokens=10, temperature=1.0, seed=5, number=3)
    ]
    streamed = [""] * 3
    for event in openai_client.completions.create(**request, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_stop_strings_end_a_text(openai_client):
    completion = openai_client.completions.create(model="gpt", prompt="Der", max_tokens=30, temperature=0).choices[0].text
    stop = completion.strip()[3:5]
    cut = openai_client.completions.create(model="gpt", prompt="Der", max_tokens=30, temperature=0, stop=[stop]).choices[0]
    assert cut.text == completion[: completion.index(stop)].rstrip() and cut.finish_reason == "stop"


def test_chat_uses_the_chat_template(openai_client, runs):
    messages = [{"role": "system", "content": "kurz"}, {"role": "user", "content": [{"type": "text", "text": "Der Hund"}]}]
    request = dict(model="gpt", messages=messages, max_tokens=8, temperature=0)
    completion = openai_client.chat.completions.create(**request, logprobs=True)
    text = completion.choices[0].message.content
    prompt = "system: kurz\nuser: Der Hund\nassistant:"
    assert (
        text == runs["gpt"].generate([prompt], max_tokens=8)[0].continuation and completion.choices[0].message.role == "assistant"
    )
    assert len(completion.choices[0].logprobs.content) == completion.usage.completion_tokens
    events = list(openai_client.chat.completions.create(**request, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == text
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].choices[0].finish_reason == completion.choices[0].finish_reason


def test_special_tokens_in_messages_are_rejected(openai_client):
    with pytest.raises(openai.UnprocessableEntityError, match="leave it out"):
        openai_client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "a </s> b"}])


def test_embeddings_equal_the_runs_vectors(openai_client, runs):
    found = openai_client.embeddings.create(model="masked", input=["the dog sleeps", "a cat"])
    np.testing.assert_allclose(
        [result.embedding for result in found.data],
        [result.vectors[0] for result in runs["masked"].embed(["the dog sleeps", "a cat"])],
        atol=1e-5,
    )
    plain = openai_client.embeddings.create(model="masked", input="a cat", encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, found.data[1].embedding, atol=1e-5)


def test_errors_raise_the_clients_exceptions(openai_client):
    with pytest.raises(openai.NotFoundError, match="no such model"):
        openai_client.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="does not support"):
        openai_client.completions.create(model="masked", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="frequency_penalty"):
        openai_client.completions.create(model="gpt", prompt="a", frequency_penalty=1.0)
    with pytest.raises(openai.UnprocessableEntityError):
        openai_client.chat.completions.create(model="clip", messages=[{"role": "user", "content": "a"}])


def test_decoding_stops_when_the_async_client_disconnects(served, runs):
    async def scenario():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
            stream = await client.completions.create(model="gpt", prompt="Der", max_tokens=60, temperature=0, stream=True)
            async for _ in stream:
                break
            await stream.close()
        worker = served.app.state.models.by_name["gpt"].worker
        for _ in range(500):
            if not worker.running:
                return True
            await asyncio.sleep(0.01)
        return False

    assert asyncio.run(scenario())


def test_chat_template_that_stays_busy_is_503_and_stops_nothing_else(runs, listening, monkeypatch):
    """More conversations at once than there are threads; the same model completes texts, and its template is rendered again."""
    monkeypatch.setattr(chat, "RENDER_SECONDS", 0.3)
    monkeypatch.setattr(openai_routes, "MAX_RENDER_WAIT", 1.0)
    path = runs["gpt"].folder / "chat_template.jinja"
    template = path.read_text(encoding="utf-8")
    path.write_text("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", encoding="utf-8")
    try:
        with listening({"gpt": runs["gpt"]}) as server, ThreadPoolExecutor(12) as others:
            client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="-", max_retries=0)
            ask = partial(
                client.chat.completions.create, model="gpt", messages=[{"role": "user", "content": "Der"}], max_tokens=2
            )
            asked, start = [others.submit(ask) for _ in range(12)], time.monotonic()
            while not all(one.done() for one in asked):
                client.completions.create(model="gpt", prompt="Der", max_tokens=2)
                assert time.monotonic() - start < 10
            for error in (one.exception() for one in asked):
                assert isinstance(error, openai.APIStatusError) and error.status_code == 503, error
                assert error.code == "template_busy" and int(error.response.headers["retry-after"]) >= 1
            path.write_text(template, encoding="utf-8")
            assert ask().choices
            assert urllib.request.urlopen(f"{server.url}/ready").status == 200
    finally:
        path.write_text(template, encoding="utf-8")
