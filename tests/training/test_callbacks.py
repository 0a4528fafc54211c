"""Callbacks: when they are called and with what, that they change no weight, and that a failing one loses nothing."""

import json
import re
from pathlib import Path

import pytest
import torch

import regard
from regard import tasks
from regard.run.train import train
from regard.training import checkpoint
from regard.training.callbacks import Callback, Callbacks

TINY = {
    "data": {"world": {"number": 100, "held_out": 10}},
    "tokens": {"size": 300},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
    "train": {"steps": 8, "tokens_per_batch": 512, "log_every": 2, "evaluate_every": 4, "save_every": 3},
}


class Recorder(Callback):
    """Write down every call; draw random numbers, which must not change the run."""

    def __init__(self):
        self.calls = []

    def on_begin(self, run, step):
        self.run = run
        self.calls.append(("begin", step))

    def on_step(self, step, values):
        torch.rand(3)
        self.calls.append(("step", step, dict(values)))

    def on_evaluate(self, step, scores, best):
        assert not self.run.model.training and not torch.is_grad_enabled() and len(self.run.data.valid) == 10
        self.calls.append(("evaluate", step, {**scores, "best": best}))

    def on_save(self, step, path):
        assert checkpoint.find_damage(path) is None and checkpoint.checkpoint_step(path) == step
        self.calls.append(("save", step))

    def on_end(self, finished):
        self.calls.append(("end", finished))


class Failing(Recorder):
    """Raise an error at one event of one step."""

    def __init__(self, event, step):
        super().__init__()
        self.event, self.step = event, step

    def __getattribute__(self, name):
        def fail(step, *_):
            if step == self.step:
                raise ZeroDivisionError(f"{name} of step {step}")

        return (
            fail if name.startswith("on_") and name == object.__getattribute__(self, "event") else super().__getattribute__(name)
        )


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("plain") / "run", device="cpu").folder


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def test_callbacks_are_called_in_order_with_the_values_of_the_log_and_change_no_weight(plain, tmp_path):
    recorder = Recorder()
    run = train(TINY, tmp_path / "run", device="cpu", callbacks=[recorder])
    assert weights(run.folder) == weights(plain)
    kinds = [call[:2] for call in recorder.calls]
    improved = {step: values["best"] for kind, step, values in (call for call in recorder.calls if call[0] == "evaluate")}
    expected = [("begin", 0)]
    for step in range(1, 9):
        expected += [("step", step)] * (step % 2 == 0) + [("evaluate", step)] * (step % 4 == 0)
        expected += [("save", step)] * (step % 3 == 0 or step == 8 or improved.get(step, False))
    assert kinds == [*expected, ("end", True)] and improved[4]
    records = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    logged = [{name: value for name, value in one.items() if name != "time"} for one in records if "event" not in one]
    assert logged == [{"step": call[1], **call[2]} for call in recorder.calls if call[0] in ("step", "evaluate")]


@pytest.mark.parametrize(("event", "step"), [("on_step", 2), ("on_evaluate", 4), ("on_save", 3), ("on_save", 8)])
def test_a_run_resumed_after_a_failed_callback_equals_an_uninterrupted_one(event, step, plain, tmp_path):
    failing, other = Failing(event, step), Recorder()
    with pytest.raises(ZeroDivisionError, match=f"{event} of step {step}"):
        train(TINY, tmp_path / "run", device="cpu", callbacks=[failing, other])
    assert failing.calls[-1] == other.calls[-1] == ("end", False)  # the others are called to the end
    newest, damaged = checkpoint.latest_intact(tmp_path / "run" / "checkpoints")
    assert not damaged and checkpoint.checkpoint_step(newest) == step  # no step is lost
    recorder = Recorder()
    train(tmp_path / "run", device="cpu", resume=True, callbacks=[recorder])
    assert weights(tmp_path / "run") == weights(plain)
    assert recorder.calls[0] == ("begin", step) and recorder.calls[-1] == ("end", True)
    assert not [call for call in recorder.calls if call[0] == "evaluate" and call[1] <= step]  # none is repeated


def test_an_error_at_the_end_leaves_a_finished_run(plain, tmp_path):
    with pytest.raises(ZeroDivisionError, match="on_end"):
        train(TINY, tmp_path / "run", device="cpu", callbacks=[Failing("on_end", True)])
    assert weights(tmp_path / "run") == weights(plain)


@pytest.mark.parametrize("event", ["on_begin", "on_end"])
def test_an_error_at_the_begin_or_the_end_is_raised(event):
    class Broken(Callback):
        def on_begin(self, run, step):
            assert event != "on_begin", "broken"

        def on_end(self, finished):
            assert event != "on_end", "broken"

    steps = []
    with pytest.raises(AssertionError, match="broken"), Callbacks([Broken()]).during(None, 0):
        steps.append(1)
    assert len(steps) == (event == "on_end")


def test_only_rank_0_calls_and_a_callback_that_runs_the_model_is_left_out_on_several_ranks(monkeypatch):
    class Looking(Recorder):
        runs_model = True

    plain, looking = Recorder(), Looking()
    Callbacks([plain, looking]).on_step(1, {})
    assert len(plain.calls) == len(looking.calls) == 1
    for name, value in {"WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_ADDR": "x", "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        Callbacks([plain, looking]).on_step(2, {})
    assert len(plain.calls) == 2 and len(looking.calls) == 1


def test_the_callback_of_the_documentation_runs(tmp_path, monkeypatch, capsys):
    page = (Path(regard.__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.S)
    monkeypatch.chdir(tmp_path)
    Path("recipe.toml").write_text(tasks.build_recipe(TINY).to_toml())
    exec(code, found := {})
    output = capsys.readouterr().out
    assert output.count("valid_loss") == 0 and "step 4: " in output and "the best so far" in output
    assert str(Path("runs", "mine", "checkpoints", "step-00000003")) in output and found["run"].folder == Path("runs/mine")
