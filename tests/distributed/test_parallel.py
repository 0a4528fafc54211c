"""Two ranks equal one process with the whole batch: loss curves, skipped steps, signals, checkpoints.

Two processes are forked once for all tests.
"""

import copy
import json
import signal
import sys
import threading
import time

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion

from regard import distributed
from regard.batches.batches import Batches
from regard.batches.rows import TranslationRows
from regard.batches.token_store import build_token_store
from regard.cli import configure_rank
from regard.distributed import process_group
from regard.distributed.parallel import resolve_parallel
from regard.errors import Interrupted, UserError
from regard.models.transformer import Transformer
from regard.plan import plan_parallelism
from regard.plan.planner import plan_recipe
from regard.recipe import Regularization, TextTraining, TokenSettings, TransformerModel
from regard.run.evaluate import evaluate
from regard.run.load import load
from regard.run.train import train
from regard.tasks import build_recipe
from regard.tokens.tokenizer import train_tokenizer
from regard.training import checkpoint
from regard.training.callbacks import Callback
from regard.training.log import Log
from regard.training.loop import TrainingLoop, step_seed
from regard.training.losses import CrossEntropy
from regard.worlds import bilingual

SHORT = {
    "steps": 6,
    "evaluate_every": 3,
    "save_every": 3,
    "log_every": 1,
    "schedule": {"warmup_steps": 2},
    "regularize": {"dropout": 0.0},
}
TOWER = {"layers": 2, "width": 16, "heads": 2, "feed_forward": 32}
RECIPES = {
    "translate": {
        "data": {"world": {"number": 120, "held_out": 12}},
        "tokens": {"size": 300},
        "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 48},
        "train": {**SHORT, "tokens_per_batch": 300, "gradient_accumulation_steps": 2, "evaluate_sentences": 12, "ema_decay": 0.9},
        "decode": {"beam": 2},
    },
    "language": {
        "task": "language",
        "data": {"world": {"number": 60, "held_out": 12}, "language": "target"},
        "tokens": {"size": 300},
        "model": {"kind": "transformer", **TOWER, "max_length": 48},
        "train": {**SHORT, "tokens_per_batch": 40},
    },
    "contrastive": {
        "task": "contrastive",
        "tokens": {"kind": "words"},
        "data": {"size": 24, "world": {"kind": "shapes", "number": 25, "held_out": 8, "shapes": [1, 2]}},
        "model": {"projection_width": 8, "image": {"patch_size": 8, **TOWER}, "text": {**TOWER, "max_length": 32}},
        "train": {**SHORT, "images_per_batch": 8},
    },
}
"""Some batches of `language` and the last one of `contrastive` have one row: too few for two ranks."""
COLLECTIVES = ("all_gather_single", "reduce_scatter_single", "all_gather_into_tensor", "reduce_scatter_tensor")
"""Their names in torch 2.13, and before."""
LINES = [pair.source for pair in bilingual.generate(9, 3, level=1)]


def settings(name, **changes):
    made = copy.deepcopy(RECIPES[name])
    made["train"].update(changes)
    return made


def curve(folder, what="loss"):
    return [record[what] for record in map(json.loads, (folder / "log.jsonl").read_text().splitlines()) if what in record]


def weights(folder):
    return checkpoint.read_weights(folder / "model.safetensors")


def trainer(folder, store, objective=None, dropout=0.2, callbacks=(), **changes):
    made = TextTraining(
        **{
            "steps": 8,
            "tokens_per_batch": 256,
            "log_every": 2,
            "evaluate_every": 8,
            "save_every": 2,
            "keep_checkpoints": 10,
            **changes,
        }
    )
    torch.manual_seed(5)
    regularize = Regularization(dropout=dropout)
    model = Transformer(TransformerModel(preset="tiny", width=16, heads=2, feed_forward=32), 300, 300, regularize)
    folder.mkdir(parents=True, exist_ok=True)
    batches = Batches(store, 256, 1, rank=distributed.rank(), world_size=distributed.world_size())
    return TrainingLoop(
        model,
        objective or CrossEntropy(regularize),
        batches,
        made,
        seed=1,
        folder=folder / "checkpoints",
        log=Log(folder / "log.jsonl", steps=8),
        evaluate=lambda model: {"valid_loss": 1.0},
        callbacks=callbacks,
    )


def make_rows():
    gold = bilingual.generate(300, 7, level=1)
    source, target = [pair.source for pair in gold], [pair.target for pair in gold]
    tokenizer = train_tokenizer(TokenSettings(size=300), source + target)
    return TranslationRows(build_token_store(source, tokenizer), build_token_store(target, tokenizer))


def plain(model):
    """Return this rank's weights as lists, which JSON keeps to the bit."""
    from regard.distributed.parallel import to_local

    return {name: to_local(x).flatten().tolist() for name, x in checkpoint.named_weights(model).items()}


class NonfiniteLoss(CrossEntropy):
    """NaN in the third step on the last rank, and a signal there in the fourth."""

    def __call__(self, model, batch):
        step = self.trainer.state.step
        if step == 4 and distributed.rank() == 1:
            signal.raise_signal(signal.SIGTERM)
        return super().__call__(model, batch) * (float("nan") if step == 3 and distributed.rank() == 1 else 1.0)


def run_on_two_ranks(folder):
    """Run everything that the tests check on two ranks."""
    found = {
        "broadcast": distributed.broadcast(["first" if distributed.is_main() else "other"]),
        "total": distributed.all_reduce_sum(distributed.rank() + 1),
        "array": distributed.all_reduce_sum(np.eye(2)[distributed.rank()]).tolist(),
        "max": distributed.all_reduce_max(7 * distributed.rank()),
        "shard": list(distributed.shard(range(5))),
        "each": list(distributed.broadcast_each("abc" if distributed.is_main() else "")),
        "merged": distributed.merge_shards([i if i % 2 == distributed.rank() else None for i in range(5)]),
    }
    store = make_rows()
    for kind in ("ddp", "fsdp"):
        for name in RECIPES:
            run = train(settings(name, parallel=kind), folder / f"{name}-{kind}", device="cpu")
            if name == "translate":
                found[f"texts {kind}"] = [best.text for best in run._best(LINES)]
                evaluate(run)
        found[kind] = laws(folder / kind, store, kind)
    return found


def laws(folder, store, kind):
    poisoned = trainer(folder / "poisoned", store, NonfiniteLoss(Regularization()), parallel=kind, save_every=100, clip_norm=1e9)
    poisoned.objective.trainer = poisoned
    ahead = poisoned.step_batches()
    for _ in range(2):
        poisoned.step(next(ahead))
    before = plain(poisoned.model)
    loss, _ = poisoned.step(next(ahead))
    found = {
        "skipped": before == plain(poisoned.model),
        "nonfinite_steps": float(poisoned.nonfinite_steps),
        "loss": float(loss),
        "seed": torch.initial_seed(),
    }
    try:
        poisoned.train()
    except Interrupted as interruption:
        found |= {"signal": interruption.number, "stopped": poisoned.state.step}
    whole = trainer(folder / "whole", store, parallel=kind, ema_decay=0.9)
    whole.train()
    half = trainer(folder / "half", store, parallel=kind, ema_decay=0.9)
    half.resume(folder / "whole" / "checkpoints" / "step-00000004")
    half.train()
    found["whole"] = plain(whole.model)
    found |= {"resumed": plain(half.model) == plain(whole.model), "rows": sum(map(len, plain(half.model).values()))}
    found["interrupted"] = interrupted_evaluation(folder / "broken", store, kind)
    found["failed"] = failed_callback(folder / "failed", store, kind)
    return found | ({"exchanges": exchanges(folder, store)} if kind == "ddp" else {"sent": sent(folder, store)})


def interrupted_evaluation(folder, store, kind):
    """Run an evaluation of twenty seconds, during which the last rank gets a signal, and a little later the first one."""

    def evaluate(model):
        if distributed.rank() == 1:
            signal.raise_signal(signal.SIGTERM)
        threading.Timer(0.2, signal.pthread_kill, (threading.get_ident(), signal.SIGTERM)).start()
        for _ in range(2000):
            time.sleep(0.01)
        return {"valid_loss": distributed.all_reduce_sum(1.0)}

    run, start = trainer(folder, store, parallel=kind, evaluate_every=4, save_every=100), time.monotonic()
    run.evaluate = evaluate
    try:
        run.train()
    except Interrupted:
        took = time.monotonic() - start
    again = trainer(folder, store, parallel=kind, evaluate_every=4, save_every=100)
    again.resume(checkpoint.latest_intact(folder / "checkpoints")[0])
    start = again.state.step, again.state.evaluated_step
    again.train()
    return {"soon": took < 10, "start": start, "evaluated": curve(folder, "valid_loss")}


class Failing(Callback):
    """Count the calls; fail at the second."""

    def __init__(self):
        self.calls = 0

    def on_step(self, step, values):
        self.calls += 1
        if self.calls == 2:
            raise ValueError(f"no values at step {step}")


def failed_callback(folder, store, kind):
    """Return what each rank sees when a callback fails at step 4, and whether the run that was resumed has lost anything."""
    failing = Failing()
    try:
        trainer(folder, store, callbacks=[failing], parallel=kind, ema_decay=0.9, save_every=8).train()
    except (ValueError, UserError) as error:
        seen = f"{type(error).__name__}: {error}"
    again = trainer(folder, store, parallel=kind, ema_decay=0.9, save_every=8)
    again.resume(checkpoint.latest_intact(folder / "checkpoints")[0])
    start = again.state.step
    again.train()
    return {"seen": seen, "calls": failing.calls, "start": start, "weights": plain(again.model)}


def exchanges(folder, store):
    """Count the gradient exchanges in a step of three micro-batches."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    seen = []
    counted = trainer(folder / "counted", store, parallel="ddp", gradient_accumulation_steps=3)

    def hook(state, bucket):
        seen.append(bucket.index())
        return allreduce_hook(state, bucket)

    ahead = counted.step_batches()
    counted.step(next(ahead))
    counted.parallelism.module.register_comm_hook(None, hook)
    counted.step(next(ahead))
    return seen


def sent(folder, store):
    """Count the numbers that FSDP gathers and reduces in a step of two micro-batches."""
    import torch.distributed as dist

    counted = trainer(folder / "counted", store, parallel="fsdp", gradient_accumulation_steps=2)
    ahead = counted.step_batches()
    counted.step(next(ahead))
    seen, called = [], {name: getattr(dist, name) for name in COLLECTIVES if hasattr(dist, name)}

    def count(name):
        def call(output, input, *args, **more):
            seen.append(max(output.numel(), input.numel()))
            return called[name](output, input, *args, **more)

        return call

    for name in called:
        setattr(dist, name, count(name))
    counted.step(next(ahead))
    for name, function in called.items():
        setattr(dist, name, function)
    return sum(seen)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("together")


@pytest.fixture(scope="module")
def two(on_ranks, folder):
    return on_ranks(2, run_on_two_ranks, folder)


@pytest.fixture(scope="module")
def one(folder):
    return {name: train(settings(name), folder / f"{name}-alone", device="cpu") for name in RECIPES}


def test_collectives_of_two_ranks(two):
    for rank, found in enumerate(two):
        assert found["broadcast"] == ["first"] and found["total"] == 3 and found["array"] == [1, 1] and found["max"] == 7
        assert found["shard"] == [[0, 2, 4], [1, 3]][rank] and found["each"] == ["a", "b", "c"]
        assert found["merged"] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
@pytest.mark.parametrize("name", RECIPES)
def test_ddp_and_fsdp_have_the_loss_curve_of_one_process(name, kind, one, two, folder):
    mine, alone = folder / f"{name}-{kind}", one[name].folder
    assert len(curve(alone)) == 6
    torch.testing.assert_close(curve(mine), curve(alone), atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(curve(mine, "valid_loss"), curve(alone, "valid_loss"), atol=2e-4, rtol=1e-4)
    for key, tensor in weights(alone).items():
        torch.testing.assert_close(weights(mine)[key], tensor, atol=5e-3, rtol=1e-3)  # Adam magnifies rounding of small gradients
    for file in ("recipe.toml", "config.json"):
        texts = (mine / file).read_text().replace(f'parallel = "{kind}"', 'parallel = "auto"')
        assert texts == (alone / file).read_text()


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_decoding_is_sharded_and_merged_in_order(kind, two, folder):
    run = load(folder / f"translate-{kind}", device="cpu")
    texts = [best.text for best in run._best(LINES)]
    assert [found[f"texts {kind}"] for found in two] == [texts, texts] and len(set(texts)) > 1
    (result,) = evaluate(run, save=False)
    scores = json.loads((run.folder / "scores.json").read_text())[result.name]
    assert (run.folder / "outputs" / f"{result.name}.txt").read_text().splitlines() == result.outputs
    assert {name: score.to_json()["score"] for name, score in result.scores.items()} == {
        name: score["score"] for name, score in scores.items()
    }


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_nonfinite_loss_on_one_rank_is_skipped_on_all(kind, two):
    for found in two:
        assert found[kind]["skipped"] and found[kind]["nonfinite_steps"] == 1 and found[kind]["loss"] == 0


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_signal_to_one_rank_stops_all_after_the_same_step(kind, two, folder):
    assert [(found[kind]["signal"], found[kind]["stopped"]) for found in two] == [(signal.SIGTERM, 4)] * 2
    path, _ = checkpoint.latest_intact(folder / kind / "poisoned" / "checkpoints")
    assert path.name == "step-00000004"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_an_evaluation_is_interrupted_on_all_ranks_and_repeated(kind, two):
    """The checkpoint is of step 4, and has no evaluation."""
    assert [found[kind]["interrupted"] for found in two] == [{"soon": True, "start": [4, 0], "evaluated": [1.0, 1.0]}] * 2


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_resuming_on_the_same_number_of_ranks_is_bit_exact(kind, two):
    assert all(found[kind]["resumed"] for found in two)


def test_fsdp_shards_and_ddp_does_not(two):
    whole = two[0]["ddp"]["rows"]
    assert [found["ddp"]["rows"] for found in two] == [whole, whole]
    assert sum(found["fsdp"]["rows"] for found in two) == whole and max(found["fsdp"]["rows"] for found in two) < 0.6 * whole


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_ranks_resumes_on_one(kind, two, folder):
    """At the same place in the data, with the same optimizer."""
    path, store = folder / kind / "whole" / "checkpoints" / "step-00000004", make_rows()
    files = {file.name for file in path.glob("*.safetensors")}
    assert ("model-2-of-2.safetensors" in files) == (kind == "fsdp")
    mine = trainer(folder / f"alone-{kind}", store, ema_decay=0.9, dropout=0.0)
    mine.resume(path)
    assert mine.state.step == 4
    ahead = mine.step_batches()
    epoch, index, _ = next(ahead)[0]
    done = checkpoint.load_checkpoint(path).state
    assert (epoch, index) == (done["epoch"], done["index"])
    saved = checkpoint.load_checkpoint(path).tensors
    assert all(torch.equal(saved["model"][name], x) for name, x in checkpoint.named_weights(mine.model).items())
    assert all(torch.equal(saved["optimizer"][name], x) for name, x in mine.optimizer.tensors().items())


def test_gradients_are_exchanged_once_per_step(two):
    assert two[0]["ddp"]["exchanges"] == list(range(len(two[0]["ddp"]["exchanges"]))) and two[0]["ddp"]["exchanges"]


def test_fsdp_sends_as_many_bytes_as_the_plan_says(two):
    """Each of two ranks sends half of what is gathered and reduced, at 4 bytes a number."""
    recipe = build_recipe(
        {
            "data": {"world": {}},
            "tokens": {"size": 300},
            "train": {"gradient_accumulation_steps": 2},
            "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32},
        }
    )
    _, strategy = plan_parallelism(plan_recipe("tiny", recipe, (300, 300)), 2)
    assert strategy.bytes_sent == two[0]["fsdp"]["sent"] * 4 / 2


def test_every_rank_has_its_own_dropout_seed(two):
    assert two[0]["ddp"]["seed"] != two[1]["ddp"]["seed"] == step_seed(1, 3, 1) and step_seed(1, 3) == two[0]["ddp"]["seed"]


def test_rows_are_sharded_and_a_dummy_row_is_excluded_from_the_loss():
    store = make_rows()
    every = [Batches(store, 12, 1, rank=rank, world_size=4) for rank in range(4)]
    for index in range(20):
        shares = [batches.batch(0, index) for batches in every]
        rows = every[0].plan(0)[index]
        counted = [row for share in shares if share.in_loss for row in share.rows]
        assert sorted(counted) == sorted(rows.tolist())
        assert sum(share.label_count() for share in shares) == Batches(store, 12, 1).batch(0, index).label_count()
    assert any(not share.in_loss for share in shares)


def test_unsupported_parallel_settings_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    assert resolve_parallel(TextTraining(parallel="fsdp", optimizer={"kind": "muon"})) == "none"
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "x", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"train.parallel = 'none', but torchrun started 2 processes"):
        resolve_parallel(TextTraining(parallel="none"))
    with pytest.raises(UserError, match=r"muon.*use adamw, or train.parallel = 'ddp'"):
        resolve_parallel(TextTraining(parallel="fsdp", optimizer={"kind": "muon"}))
    assert resolve_parallel(TextTraining()) == resolve_parallel(TextTraining(optimizer={"kind": "muon"})) == "ddp"
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.8.0"))
    with pytest.raises(UserError, match=r"'fsdp' needs torch 2.13 or later, and this is 2.8.0; use 'ddp'"):
        resolve_parallel(TextTraining(parallel="fsdp"))
    with pytest.raises(UserError, match="regard show runs in one process; start it without torchrun"):
        configure_rank(["show", "run", "text"])


def test_one_process_needs_no_process_group():
    assert distributed.world_size() == 1 and distributed.is_main() and process_group.monitor is None
    assert (
        distributed.all_reduce_sum(3) == 3
        and distributed.all_gather("x") == ["x"]
        and list(distributed.broadcast_each("ab")) == ["a", "b"]
    )
    assert not any(thread.name == "regard-heartbeat" for thread in threading.enumerate())


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_callback_that_fails_on_rank_0_stops_all_ranks_and_loses_nothing(two, kind):
    main, other = (found[kind]["failed"] for found in two)
    assert main["seen"] == "ValueError: no values at step 4" and other["seen"] == "UserError: no values at step 4"
    assert (main["calls"], other["calls"]) == (2, 0)
    for found in two:
        assert found[kind]["failed"]["start"] == 4 and found[kind]["failed"]["weights"] == found[kind]["whole"]
