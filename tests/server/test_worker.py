"""The queue of a worker: rejections when full, turns between clients, cancellation when a client leaves."""

import asyncio
import json
import socket
import sys
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


def make_worker(run, **settings):
    return Worker("gpt", run, ServerSettings(**settings), Metrics())


def make_job(run, prompt="Der", client="a", tokens=5):
    return Job(
        lambda callback: generate_task(run, prompt, SamplingParams(tokens), callback=callback), client=client, decodes=True
    )


def test_clients_take_turns(runs):
    """A client with many jobs does not delay the others behind all of them."""

    async def scenario():
        worker = make_worker(runs["gpt"], max_batch_size=4)
        worker.thread.is_alive = lambda: True
        worker.submit([make_job(runs["gpt"], client="greedy") for _ in range(20)])
        worker.submit([make_job(runs["gpt"], client="modest")])
        worker.submit([make_job(runs["gpt"], client="other")])
        return [job.client for job in worker.take_jobs()]

    assert sorted(asyncio.run(scenario())) == ["greedy", "greedy", "modest", "other"]


def test_waiting_texts_join_the_batch_in_groups(runs):
    """Unless all of them fit."""

    async def scenario():
        worker, taken = make_worker(runs["gpt"], max_batch_size=16, max_queue=100), []
        worker.thread.is_alive = lambda: True
        for more, running in ((1, 15), (3, 15), (3, 14), (2, 13), (1, 15), (1, 16)):
            worker.submit([make_job(runs["gpt"]) for _ in range(more)])
            worker.running = {number: make_job(runs["gpt"]) for number in range(running)}
            taken.append((worker.queued, len(worker.take_jobs())))
        return taken

    assert asyncio.run(scenario()) == [(1, 1), (3, 0), (6, 2), (6, 3), (4, 0), (5, 0)]


def test_full_queue_rejects_at_once_with_retry_after(runs):
    async def scenario():
        worker = make_worker(runs["gpt"], max_queue=10)
        worker.thread.is_alive = lambda: True
        worker.submit([make_job(runs["gpt"]) for _ in range(5)])
        with pytest.raises(ApiError) as per_client:
            worker.submit([make_job(runs["gpt"])])
        for client in "bcde":
            worker.submit([make_job(runs["gpt"], client=client)])
        with pytest.raises(ApiError) as in_all:
            worker.submit([make_job(runs["gpt"], client="f"), make_job(runs["gpt"], client="f")])
        assert worker.queued == 9
        return per_client.value, in_all.value

    per_client, in_all = asyncio.run(scenario())
    assert (per_client.status, in_all.status) == (429, 503)
    assert all(int(one.response().headers["retry-after"]) >= 1 for one in (per_client, in_all))


def test_cancelled_jobs_leave_the_queue(runs):
    async def scenario():
        worker = make_worker(runs["gpt"])
        worker.thread.is_alive = lambda: True
        jobs = [make_job(runs["gpt"], client=client) for client in "aab"]
        for job in jobs:
            worker.submit([job])
        worker.cancel(jobs[1:])
        worker.cancel(jobs[1:])
        return worker.queued, list(worker.queues), [job is jobs[0] for job in worker.take_jobs()]

    assert asyncio.run(scenario()) == (1, ["a"], [True])


def test_cancelled_text_leaves_the_batch_before_the_next_step(runs, gated):
    """Of two texts in a batch, one is cancelled: the next step decodes the other alone."""

    async def scenario(permits, batch_sizes):
        worker = make_worker(runs["gpt"])
        worker.thread.start()
        first, second = make_job(runs["gpt"], tokens=30), make_job(runs["gpt"], "Die", tokens=12)
        worker.submit([first, second])
        permits.release(4)
        await wait_for_steps(batch_sizes, 4)
        assert batch_sizes[-1] == 2
        worker.cancel([first])
        steps = len(batch_sizes)
        permits.release(3)
        await wait_for_steps(batch_sizes, steps + 3)
        assert batch_sizes[steps + 1 :] == [1] * (len(batch_sizes) - steps - 1)  # the step under way is its last
        permits.release(1000)
        found = await asyncio.wait_for(second.future, 20)
        assert found.text == runs["gpt"].generate(["Die"], max_tokens=12)[0]
        with pytest.raises(ApiError):
            await first.future
        worker.stop()
        worker.thread.join(5)
        assert not worker.thread.is_alive() and not worker.running

    with gated("gpt") as (permits, batch_sizes):
        asyncio.run(scenario(permits, batch_sizes))


async def wait_for_steps(batch_sizes, number):
    deadline = time.monotonic() + 20
    while len(batch_sizes) < number:
        assert time.monotonic() < deadline, batch_sizes
        await asyncio.sleep(0.005)


def test_failing_job_does_not_affect_others(runs):
    async def scenario():
        worker = make_worker(runs["gpt"])
        worker.thread.start()
        bad = Job(lambda callback: 1 / 0, client="a")
        wrong = make_job(runs["gpt"], "Der " * 300)
        good = make_job(runs["gpt"])
        worker.submit([bad, wrong, good])
        found = await asyncio.gather(bad.future, wrong.future, good.future, return_exceptions=True)
        worker.stop()
        return found

    bad, wrong, good = asyncio.run(scenario())
    assert (bad.status, wrong.status) == (500, 422) and good.text == runs["gpt"].generate(["Der"], max_tokens=5)[0]


def test_worker_recovers_after_a_failing_step(runs, monkeypatch):
    async def scenario():
        worker = make_worker(runs["gpt"])
        worker.thread.start()
        broken = make_job(runs["gpt"], tokens=20)
        monkeypatch.setattr(runs["gpt"].model, "step", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        worker.submit([broken])
        with pytest.raises(ApiError) as error:
            await asyncio.wait_for(broken.future, 10)
        monkeypatch.undo()
        again = make_job(runs["gpt"])
        worker.submit([again])
        found = await asyncio.wait_for(again.future, 10)
        worker.stop()
        return error.value.status, found

    status, found = asyncio.run(scenario())
    assert status == 500 and found.text == runs["gpt"].generate(["Der"], max_tokens=5)[0]


def test_worker_goes_on_after_whatever_ends_its_thread(runs):
    """A job that calls sys.exit, in the thread of the model; /ready recovers."""

    async def scenario():
        worker = make_worker(runs["gpt"])
        worker.thread.start()
        fatal = Job(lambda callback: sys.exit(3), client="a")
        waiting = Job(lambda callback: 1, client="a")
        worker.submit([fatal, waiting])
        failed = await asyncio.wait_for(asyncio.gather(fatal.future, waiting.future, return_exceptions=True), 10)
        again = make_job(runs["gpt"])
        worker.submit([again])
        found, alive = await asyncio.wait_for(again.future, 10), worker.alive
        worker.stop()
        return failed, found, alive

    failed, found, alive = asyncio.run(scenario())
    assert [error.status for error in failed] == [500, 500] and alive
    assert found.text == runs["gpt"].generate(["Der"], max_tokens=5)[0]


def test_request_that_takes_too_long_is_cancelled_with_a_message(runs, gated):
    with (
        gated("gpt") as (_, batch_sizes),
        TestClient(create_app({"gpt": runs["gpt"]}, ServerSettings(timeout=0.3)), base_url="http://localhost") as client,
    ):
        response = client.post("/v1/generate", json={"prompt": "Der"})
        assert response.status_code == 503 and response.json()["error"]["code"] == "timeout" and response.headers["retry-after"]
        assert not batch_sizes


def test_explanations_do_not_delay_decoding(runs, monkeypatch):
    """A long explanation, and at the same time a text of the same model."""
    started, proceed = threading.Event(), threading.Event()

    def explain(run, *_, **__):
        started.set()
        assert proceed.wait(20) and run.model is not runs["gpt"].model
        raise UserError("nothing to explain")

    monkeypatch.setattr(type(runs["gpt"]), "explain", explain)
    with TestClient(create_app({"gpt": runs["gpt"]}), base_url="http://localhost") as client:
        found = []
        explaining = threading.Thread(target=lambda: found.append(client.post("/v1/explain", json={"text": "Der Hund"})))
        explaining.start()
        assert started.wait(10)
        assert client.post("/v1/generate", json={"prompt": "Der", "max_tokens": 3}).status_code == 200 and not found
        proceed.set()
        explaining.join(10)
        assert found[0].status_code == 422


def test_stream_starts_with_the_first_token(runs, gated, listening):
    with gated("gpt") as (permits, batch_sizes), listening({"gpt": runs["gpt"]}) as server:
        body = json.dumps({"prompt": "Der", "max_tokens": 20, "stream": True}).encode()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(
                b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            permits.release(2)  # prefill, and the step that reads the first token
            received = b""
            while b"data: " not in received:
                received += connection.recv(4096)
            assert len(batch_sizes) <= 2 and received.startswith(b"HTTP/1.1 200")


def test_decoding_stops_when_the_client_disconnects(runs, gated, listening):
    for stream in (True, False):
        with gated("gpt") as (permits, batch_sizes), listening({"gpt": runs["gpt"]}) as server:
            worker = server.app.state.models.by_name["gpt"].worker
            body = json.dumps({"prompt": "Der", "max_tokens": 50, "stream": stream}).encode()
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=10)
            connection.sendall(
                b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            permits.release(4)
            deadline = time.monotonic() + 10
            while len(batch_sizes) < 4 and time.monotonic() < deadline:
                time.sleep(0.01)
            connection.close()
            while not all(job.cancelled for job in list(worker.running.values())) and time.monotonic() < deadline:
                time.sleep(0.01)
            permits.release(5)
            while worker.running and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not worker.running and len(batch_sizes) <= 6


def test_overload_is_rejected_at_once_while_accepted_requests_are_served(runs, gated):
    """Twenty clients where few may wait: the others are rejected before any step is decoded."""
    with (
        gated("gpt") as (permits, _),
        TestClient(
            create_app({"gpt": runs["gpt"]}, ServerSettings(max_batch_size=2, max_queue=6)), base_url="http://localhost"
        ) as client,
    ):
        found = []

        def send():
            found.append(client.post("/v1/generate", json={"prompt": "Der", "max_tokens": 3}))

        threads = [threading.Thread(target=send) for _ in range(20)]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + 10
        while len(found) < 12 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert {one.status_code for one in found} <= {429, 503} and len(found) >= 12
        assert all(one.headers["retry-after"] for one in found)
        permits.release(10_000)
        for thread in threads:
            thread.join(10)
        assert [one.status_code for one in found].count(200) == 20 - len([one for one in found if one.status_code != 200]) > 0
        assert client.get("/ready").status_code == 200
