"""Fixtures shared by all tests: one thread, a private cache, no fsync, a fixed seed, hypothesis without deadlines."""

import copy
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections import Counter
from pathlib import Path

import hypothesis
import pytest
import tomli_w
import torch
from hypothesis import strategies as st

torch.set_num_threads(1)  # more threads slow down small tensors
EXAMPLES = int(os.environ.get("REGARD_EXAMPLES", "15"))  # of each law; the same ones every time
hypothesis.settings.register_profile("regard", deadline=None, max_examples=EXAMPLES, derandomize=True)
hypothesis.settings.load_profile("regard")


@pytest.fixture(autouse=True, scope="session")
def private_cache(tmp_path_factory):
    """Keep token stores built by tests, and by their shared runs, apart from the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_fsync():
    """Do not wait for the disk: a test cannot cut the power, and a killed process loses nothing that it has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True)
def broken_pipes_raise():
    """Ignore SIGPIPE again after each test: commands restore its default action, by which a broken pipe ends the process."""
    yield
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def on_ranks(tmp_path_factory):
    """Return a function that runs work in forked ranks with the environment of torchrun and returns their results via JSON."""

    def run(number, function, *args):
        folder = tmp_path_factory.mktemp("ranks")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("fork")
        processes = [
            context.Process(target=run_rank, args=(rank, number, port, folder, function, args)) for rank in range(number)
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            process.kill()
        errors = [(folder / f"{rank}.txt").read_text() for rank in range(number) if (folder / f"{rank}.txt").exists()]
        assert not errors, "\n".join(errors)
        assert [process.exitcode for process in processes] == [0] * number
        return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(number)]

    return run


def run_rank(rank, number, port, folder, function, args):
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(number),
        LOCAL_WORLD_SIZE=str(number),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    from regard import distributed

    torch.set_num_threads(1)
    try:
        distributed.init_process_group()
        (folder / f"{rank}.json").write_text(json.dumps(function(*args)))
        distributed.destroy_process_group()
    except BaseException:
        (folder / f"{rank}.txt").write_text(f"rank {rank}: {traceback.format_exc()}")
        os._exit(1)
    os._exit(0)


@pytest.fixture(scope="session")
def torchrun():
    """Return a function that starts a regard command or a script with torchrun in a folder."""

    def start(folder, ranks, *words, options=(), script=None, stdin=None, **environment):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            *options,
            *([str(script)] if script else ["-m", "regard"]),
            *map(str, words),
        ]
        env = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "XDG_CACHE_HOME": str(folder / "cache"),
            "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
            **environment,
        }
        return subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env, cwd=folder
        )

    return start


@pytest.fixture(scope="session")
def write_job():
    """Return a function that writes the recipe of a small distributed job."""

    def write(path, **train):
        path.write_text(tomli_w.dumps({**JOB, "train": {"tokens_per_batch": 512, **train}}))

    return write


@pytest.fixture(scope="session")
def in_child():
    """Return a function that calls another in a forked process and returns its error as text, or an empty string."""

    def do(function):
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                function()
                os._exit(0)
            except BaseException as error:
                os.write(write_fd, repr(error).encode())
            finally:
                os._exit(1)
        os.close(write_fd)
        with os.fdopen(read_fd, encoding="utf-8") as pipe:
            errors = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        return errors or (f"exit status {status}" if status else "")

    return do


@pytest.fixture(scope="session")
def numbers_of():
    """Return a function that counts (name, step, value), the values rounded."""
    return lambda values: Counter((name, step, round(value, 4)) for name, step, value in values)


@pytest.fixture(scope="session")
def numbers_in_log(numbers_of):
    """Return a function that counts each (name, step, value) in the log.jsonl of a run."""

    def read(folder):
        records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        return numbers_of(
            (name, record["step"], value)
            for record in records
            if "event" not in record
            for name, value in record.items()
            if name not in ("time", "step", "best")
        )

    return read


@pytest.fixture
def tiny_settings():
    """Return the settings of `tiny_run`."""
    return copy.deepcopy(TINY)


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory):
    """Train a small translation model for a few steps; its outputs are poor, which the tests do not depend on."""
    from regard.run.evaluate import evaluate
    from regard.run.train import train

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    run = train(TINY, folder, device="cpu")
    evaluate(run)
    return run


IMAGE_TOWER = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
IMAGE_MODELS = {
    "classify": {"kind": "vit", "patch_size": 8, **IMAGE_TOWER},
    "contrastive": {"projection_width": 8, "image": {"patch_size": 8, **IMAGE_TOWER}, "text": {**IMAGE_TOWER, "max_length": 32}},
    "caption": {
        "encoder": {"kind": "patches", "patch_size": 8, "pool": "class", **IMAGE_TOWER},
        "decoder": {"kind": "transformer", **IMAGE_TOWER},
        "max_length": 40,
    },
    "lstm": {
        "encoder": {"kind": "cnn", "widths": [8, 8, 8], "strides": [2, 2, 2]},
        "decoder": {"kind": "lstm", "width": 16},
        "max_length": 40,
    },
}


@pytest.fixture(scope="session")
def image_runs(tmp_path_factory):
    """Train runs of every task that reads images for a few steps; the tests do not depend on the quality of their outputs."""
    import copy

    from regard.run.train import train

    folder = tmp_path_factory.mktemp("image-runs")
    found = {}
    world = {"kind": "shapes", "number": 60, "held_out": 12, "shapes": [1, 2]}
    short = {"steps": 6, "images_per_batch": 12, "evaluate_every": 6, "save_every": 6, "log_every": 6}
    for name, model in IMAGE_MODELS.items():
        task = "caption" if name == "lstm" else name
        more = {"data": {"label_attribute": "kind"}} if task == "classify" else {"data": {}, "tokens": {"kind": "words"}}
        more["data"] |= {"size": 32, "world": world}
        found[name] = train({"task": task, "model": copy.deepcopy(model), "train": short, **more}, folder / name, device="cpu")
    return found


@pytest.fixture(scope="session")
def image_path(tmp_path_factory):
    """Return the path of an image of two shapes."""
    from PIL import Image

    from regard.worlds import shapes

    path = tmp_path_factory.mktemp("images") / "image.png"
    scene = shapes.generate(1, 5, split="valid", shapes=(2, 2))[0]
    Image.fromarray(scene.pixels()).save(path)
    return str(path)


@pytest.fixture(scope="session")
def make_neuron_view():
    """Make a head for the neuron view, whose first key is masked for all queries but the first."""
    import numpy as np

    from regard.show.figures.neuron_view import NeuronQuery, NeuronView, heaviest_keys

    def make(queries=5, keys=5, width=6):
        rng = np.random.default_rng(0)
        k = rng.normal(size=(keys, width))
        words = ["<img src=x onerror=alert(1)>", "$x^2$", "", *(f"w{i}" for i in range(keys))][:keys]
        found = []
        for number in range(queries):
            q = rng.normal(size=width)
            scores = k @ q / width**0.5
            scores[0] = scores[0] if number == 0 else -np.inf
            weights = np.exp(scores - scores.max())
            weights /= weights.sum()
            heaviest = heaviest_keys(weights, scores)
            left_out = keys - len(heaviest)
            found.append(
                NeuronQuery(
                    words[number], q, heaviest, k[heaviest] * q / width**0.5, scores[heaviest], weights[heaviest], left_out
                )
            )
        return NeuronView("a head", f"q·k / √{width}", "no positions", words, k, found)

    return make


@pytest.fixture(scope="session")
def make_trace():
    """Make the generation trace of a text of `steps` tokens that attends to `keys` source tokens, or to itself."""
    import numpy as np

    from regard.show.figures.decoding_steps import GenerationStep, GenerationTrace

    def make(steps=5, keys=5, own=None):
        words = ["<img src=x onerror=alert(1)>", "$x^2$", "", *(f"w{i}" for i in range(max(steps, keys)))]
        back = np.tri(steps, keys) * np.exp(-np.abs(np.arange(steps)[:, None] - np.arange(keys)))
        others = [("<img onerror>", 0.2), ("b", 0.1), ("c", 0.001)]
        return GenerationTrace(
            "cross-attention, layer 1",
            words[:keys],
            [GenerationStep(word, 0.5, others) for word in words[:steps]],
            back / back.sum(-1, keepdims=True),
            own,
        )

    return make


MALFORMED_BYTES = [
    b"\0",
    b"\r",
    b"\n",
    b"\t",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b"\xe2\x80\xa8",
    b"\xc3",
    b'"',
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"=",
    b"-1",
    b"1e999",
    b"NaN",
    b"nan",
    b"null",
    b"true",
    b"9" * 5000,
    b"\\ud800",
    b"\\u0000",
    b"../",
    b"[" * 3000,
]


@pytest.fixture(scope="session")
def corrupted_bytes():
    """Return a strategy of arbitrary bytes or of a valid file with a few bytes deleted, inserted or replaced."""

    @st.composite
    def changed(draw, good):
        data = good
        for _ in range(draw(st.integers(1, 3))):
            start = draw(st.integers(0, len(data)))
            end = min(len(data), start + draw(st.sampled_from([0, 0, 1, 2, 7, 10**6])))
            data = data[:start] + draw(st.one_of(st.sampled_from(MALFORMED_BYTES), st.binary(max_size=6))) + data[end:]
        return data

    return lambda good: st.one_of(changed(good), changed(good), st.binary(max_size=300))


TINY = {
    "data": {"world": {"number": 800, "held_out": 40}},
    "tokens": {"size": 500},
    "model": {"preset": "tiny", "width": 32, "heads": 2, "feed_forward": 64, "max_length": 48, "norm_first": True},
    "train": {
        "steps": 60,
        "tokens_per_batch": 1024,
        "evaluate_every": 30,
        "evaluate_sentences": 10,
        "save_every": 30,
        "log_every": 10,
        "optimizer": {"learning_rate": 5e-3},
        "schedule": {"warmup_steps": 10},
        "regularize": {"dropout": 0.0},
    },
    "decode": {"beam": 2},
}
JOB = {
    "data": {"world": {"number": 400, "held_out": 24}},
    "tokens": {"size": 300},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
    "decode": {"beam": 2},
}
