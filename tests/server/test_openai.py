"""The official client of OpenAI's API, against a server that listens."""

import asyncio

import numpy as np
import openai
import pytest


@pytest.fixture(scope="module")
def served(runs, listening):
    with listening({name: runs[name] for name in ("gpt", "masked", "en-de", "clip")}) as server:
        yield server


@pytest.fixture(scope="module")
def theirs(served):
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none needed", max_retries=0)


def test_models(theirs):
    assert [model.id for model in theirs.models.list()] == ["gpt", "masked", "en-de", "clip"]
    assert theirs.models.retrieve("gpt").owned_by == "regard"


def test_a_completion_is_what_the_run_writes_and_the_stream_is_the_completion(theirs, runs):
    asked = dict(model="gpt", prompt=["Der Hund", "Die"], max_tokens=12, temperature=0)
    whole = theirs.completions.create(**asked, logprobs=0)
    expected = runs["gpt"].generate(["Der Hund", "Die"], max_tokens=12)
    assert [choice.text for choice in whole.choices] == [one.written for one in expected]
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    assert all(choice.finish_reason == "length" or len(choice.logprobs.tokens) < 12 for choice in whole.choices)
    pieces = ["", ""]
    for event in theirs.completions.create(**asked, stream=True, stream_options={"include_usage": True}):
        for choice in event.choices:
            pieces[choice.index] += choice.text
    assert pieces == [one.written for one in expected] and event.usage == whole.usage


def test_drawn_texts_follow_their_seed(theirs, runs):
    asked = dict(model="gpt", prompt="Der", max_tokens=10, seed=5, n=3, temperature=1.0)
    texts = [choice.text for choice in theirs.completions.create(**asked).choices]
    assert texts == [one.written for one in runs["gpt"].generate(["Der"], max_tokens=10, temperature=1.0, seed=5, number=3)]
    streamed = [""] * 3
    for event in theirs.completions.create(**asked, stream=True):
        for choice in event.choices:
            streamed[choice.index] += choice.text
    assert streamed == texts


def test_stop_strings_end_a_text(theirs):
    whole = theirs.completions.create(model="gpt", prompt="Der", max_tokens=30, temperature=0).choices[0].text
    stop = whole.strip()[3:5]
    cut = theirs.completions.create(model="gpt", prompt="Der", max_tokens=30, temperature=0, stop=[stop]).choices[0]
    assert cut.text == whole[: whole.index(stop)].rstrip() and cut.finish_reason == "stop"


def test_a_conversation_is_written_as_the_template_says(theirs, runs):
    said = [{"role": "system", "content": "kurz"}, {"role": "user", "content": [{"type": "text", "text": "Der Hund"}]}]
    asked = dict(model="gpt", messages=said, max_tokens=8, temperature=0)
    whole = theirs.chat.completions.create(**asked, logprobs=True)
    text = whole.choices[0].message.content
    prompt = "system: kurz\nuser: Der Hund\nassistant:"
    assert text == runs["gpt"].generate([prompt], max_tokens=8)[0].written and whole.choices[0].message.role == "assistant"
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    events = list(theirs.chat.completions.create(**asked, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == text
    assert events[0].choices[0].delta.role == "assistant"
    assert events[-1].choices[0].finish_reason == whole.choices[0].finish_reason


def test_the_marks_of_a_template_cannot_be_forged(theirs):
    with pytest.raises(openai.UnprocessableEntityError, match="leave it out"):
        theirs.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "a </s> b"}])


def test_embeddings_are_the_runs_vectors(theirs, runs):
    found = theirs.embeddings.create(model="masked", input=["the dog sleeps", "a cat"])
    np.testing.assert_allclose(
        [one.embedding for one in found.data],
        [one.vectors[0] for one in runs["masked"].embed(["the dog sleeps", "a cat"])],
        atol=1e-5,
    )
    plain = theirs.embeddings.create(model="masked", input="a cat", encoding_format="float")
    np.testing.assert_allclose(plain.data[0].embedding, found.data[1].embedding, atol=1e-5)


def test_what_is_wrong_is_raised_as_their_client_knows_it(theirs):
    with pytest.raises(openai.NotFoundError, match="no such model"):
        theirs.completions.create(model="gpt-4", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="cannot"):
        theirs.completions.create(model="masked", prompt="a")
    with pytest.raises(openai.UnprocessableEntityError, match="frequency_penalty"):
        theirs.completions.create(model="gpt", prompt="a", frequency_penalty=1.0)
    with pytest.raises(openai.UnprocessableEntityError):
        theirs.chat.completions.create(model="clip", messages=[{"role": "user", "content": "a"}])


def test_their_asynchronous_client_leaves_early(served, runs):
    async def play():
        async with openai.AsyncOpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
            stream = await client.completions.create(model="gpt", prompt="Der", max_tokens=60, temperature=0, stream=True)
            async for _ in stream:
                break
            await stream.close()
        worker = served.app.state.models.models["gpt"].worker
        for _ in range(500):
            if not worker.running:
                return True
            await asyncio.sleep(0.01)
        return False

    assert asyncio.run(play())
