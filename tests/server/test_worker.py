"""Laws of the queue: full is told at once, clients take turns, who leaves is not computed any further."""

import asyncio
import json
import threading
import time

import pytest
from fastapi.testclient import TestClient

from regard.errors import UserError
from regard.server.app import create_app
from regard.server.errors import ApiError
from regard.server.metrics import Metrics
from regard.server.settings import ServerSettings
from regard.server.worker import Job, Worker
from regard.tasks.shared.requests import SamplingParams, generate_task


def worker_of(run, **settings):
    return Worker("gpt", run, ServerSettings(**settings), Metrics())


def ticket(run, prompt="Der", client="a", tokens=5):
    return Job(lambda tell: generate_task(run, prompt, SamplingParams(tokens), tell=tell), client=client, decodes=True)


def test_clients_take_turns(runs):
    """One that asks for much does not make the others wait behind all of it."""

    async def play():
        worker = worker_of(runs["gpt"], max_batch_size=4)
        worker.thread.is_alive = lambda: True
        worker.submit([ticket(runs["gpt"], client="greedy") for _ in range(20)])
        worker.submit([ticket(runs["gpt"], client="modest")])
        worker.submit([ticket(runs["gpt"], client="other")])
        return [one.client for one in worker.take()]

    assert sorted(asyncio.run(play())) == ["greedy", "greedy", "modest", "other"]


def test_where_some_have_to_wait_they_begin_in_groups(runs):
    """Not where there is room for all."""

    async def play():
        worker, taken = worker_of(runs["gpt"], max_batch_size=16, queue=100), []
        worker.thread.is_alive = lambda: True
        for more, running in ((1, 15), (3, 15), (3, 14), (2, 13), (1, 15), (1, 16)):
            worker.submit([ticket(runs["gpt"]) for _ in range(more)])
            worker.running = {number: ticket(runs["gpt"]) for number in range(running)}
            taken.append((worker.number, len(worker.take())))
        return taken

    assert asyncio.run(play()) == [(1, 1), (3, 0), (6, 2), (6, 3), (4, 0), (5, 0)]


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(runs):
    async def play():
        worker = worker_of(runs["gpt"], queue=10)
        worker.thread.is_alive = lambda: True
        worker.submit([ticket(runs["gpt"]) for _ in range(5)])
        with pytest.raises(ApiError) as mine:
            worker.submit([ticket(runs["gpt"])])
        for client in "bcde":
            worker.submit([ticket(runs["gpt"], client=client)])
        with pytest.raises(ApiError) as everybody:
            worker.submit([ticket(runs["gpt"], client="f"), ticket(runs["gpt"], client="f")])
        assert worker.number == 9
        return mine.value, everybody.value

    mine, everybody = asyncio.run(play())
    assert (mine.status, everybody.status) == (429, 503)
    assert all(int(one.response().headers["retry-after"]) >= 1 for one in (mine, everybody))


def test_what_waits_and_is_given_up_leaves_the_queue(runs):
    async def play():
        worker = worker_of(runs["gpt"])
        worker.thread.is_alive = lambda: True
        waiting = [ticket(runs["gpt"], client=client) for client in "aab"]
        for one in waiting:
            worker.submit([one])
        worker.give_up(waiting[1:])
        worker.give_up(waiting[1:])
        return worker.number, list(worker.waiting), [one is waiting[0] for one in worker.take()]

    assert asyncio.run(play()) == (1, ["a"], [True])


def test_who_leaves_is_not_computed_any_further(runs, gated):
    """Of two texts that are written together, one is given up: the next step is of the other alone."""

    async def play(free, taken):
        worker = worker_of(runs["gpt"])
        worker.start()
        first, second = ticket(runs["gpt"], tokens=30), ticket(runs["gpt"], "Die", tokens=12)
        worker.submit([first, second])
        free.release(4)
        await reach(taken, 4)
        assert taken[-1] == 2
        worker.give_up([first])
        steps = len(taken)
        free.release(3)
        await reach(taken, steps + 3)
        assert taken[steps + 1 :] == [1] * (len(taken) - steps - 1)  # the step it was in is the last
        free.release(1000)
        found = await asyncio.wait_for(second.future, 20)
        assert found.text == runs["gpt"].generate(["Die"], max_tokens=12)[0]
        with pytest.raises(ApiError):
            await first.future
        worker.stop()
        worker.thread.join(5)
        assert not worker.thread.is_alive() and not worker.running

    with gated("gpt") as (free, taken):
        asyncio.run(play(free, taken))


async def reach(taken, number):
    until = time.monotonic() + 20
    while len(taken) < number:
        assert time.monotonic() < until, taken
        await asyncio.sleep(0.005)


def test_a_text_that_fails_fails_alone(runs):
    async def play():
        worker = worker_of(runs["gpt"])
        worker.start()
        bad = Job(lambda tell: 1 / 0, client="a")
        wrong = ticket(runs["gpt"], "Der " * 300)
        good = ticket(runs["gpt"])
        worker.submit([bad, wrong, good])
        found = await asyncio.gather(bad.future, wrong.future, good.future, return_exceptions=True)
        worker.stop()
        return found

    bad, wrong, good = asyncio.run(play())
    assert (bad.status, wrong.status) == (500, 422) and good.text == runs["gpt"].generate(["Der"], max_tokens=5)[0]


def test_a_batch_that_breaks_is_begun_anew(runs, monkeypatch):
    async def play():
        worker = worker_of(runs["gpt"])
        worker.start()
        broken = ticket(runs["gpt"], tokens=20)
        monkeypatch.setattr(runs["gpt"].model, "step", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        worker.submit([broken])
        with pytest.raises(ApiError) as refused:
            await asyncio.wait_for(broken.future, 10)
        monkeypatch.undo()
        again = ticket(runs["gpt"])
        worker.submit([again])
        found = await asyncio.wait_for(again.future, 10)
        worker.stop()
        return refused.value.status, found

    status, found = asyncio.run(play())
    assert status == 500 and found.text == runs["gpt"].generate(["Der"], max_tokens=5)[0]


def test_a_request_that_takes_too_long_is_given_up_in_words(runs, gated):
    with (
        gated("gpt") as (_, taken),
        TestClient(create_app({"gpt": runs["gpt"]}, ServerSettings(deadline=0.3)), base_url="http://localhost") as client,
    ):
        answer = client.post("/v1/generate", json={"prompt": "Der"})
        assert answer.status_code == 503 and answer.json()["error"]["code"] == "deadline" and answer.headers["retry-after"]
        assert not taken


def test_who_looks_does_not_hold_up_who_writes(runs, monkeypatch):
    """A long explanation, and a text of the same model beside it."""
    looked, enough = threading.Event(), threading.Event()

    def explain(run, *_, **__):
        looked.set()
        assert enough.wait(20) and run.model is not runs["gpt"].model
        raise UserError("nothing to explain")

    monkeypatch.setattr(type(runs["gpt"]), "explain", explain)
    with TestClient(create_app({"gpt": runs["gpt"]}), base_url="http://localhost") as client:
        found = []
        asking = threading.Thread(target=lambda: found.append(client.post("/v1/explain", json={"text": "Der Hund"})))
        asking.start()
        assert looked.wait(10)
        assert client.post("/v1/generate", json={"prompt": "Der", "max_tokens": 3}).status_code == 200 and not found
        enough.set()
        asking.join(10)
        assert found[0].status_code == 422


def test_a_stream_begins_with_its_first_step(runs, gated, listening):
    import socket

    with gated("gpt") as (free, taken), listening({"gpt": runs["gpt"]}) as server:
        body = json.dumps({"prompt": "Der", "max_tokens": 20, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as asking:
            asking.sendall(
                b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            free.release(2)  # the prompt, and what the first token is read with
            heard = b""
            while b"data: " not in heard:
                heard += asking.recv(4096)
            assert len(taken) <= 2 and heard.startswith(b"HTTP/1.1 200")


def test_a_client_that_leaves_stops_what_it_asked_for(runs, gated, listening):
    import socket

    for stream in (True, False):
        with gated("gpt") as (free, taken), listening({"gpt": runs["gpt"]}) as server:
            worker = server.app.state.models.models["gpt"].worker
            body = json.dumps({"prompt": "Der", "max_tokens": 50, "stream": stream}).encode()
            asking = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            asking.sendall(
                b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            free.release(4)
            until = time.monotonic() + 10
            while len(taken) < 4 and time.monotonic() < until:
                time.sleep(0.01)
            asking.close()
            while not all(one.unwanted for one in list(worker.running.values())) and time.monotonic() < until:
                time.sleep(0.01)
            free.release(5)
            while worker.running and time.monotonic() < until:
                time.sleep(0.01)
            assert not worker.running and len(taken) <= 6


def test_overload_is_answered_at_once_while_the_rest_is_served(runs, gated):
    """Twenty ask where five may wait: some are told to come back while nothing moves at all."""
    with (
        gated("gpt") as (free, _),
        TestClient(
            create_app({"gpt": runs["gpt"]}, ServerSettings(max_batch_size=2, queue=6)), base_url="http://localhost"
        ) as client,
    ):
        found = []

        def ask():
            found.append(client.post("/v1/generate", json={"prompt": "Der", "max_tokens": 3}))

        asking = [threading.Thread(target=ask) for _ in range(20)]
        for one in asking:
            one.start()
        until = time.monotonic() + 10
        while len(found) < 12 and time.monotonic() < until:
            time.sleep(0.01)
        assert {one.status_code for one in found} <= {429, 503} and len(found) >= 12
        assert all(one.headers["retry-after"] for one in found)
        free.release(10_000)
        for one in asking:
            one.join(10)
        assert [one.status_code for one in found].count(200) == 20 - len([one for one in found if one.status_code != 200]) > 0
        assert client.get("/ready").status_code == 200
