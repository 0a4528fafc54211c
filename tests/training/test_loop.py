"""The loop: exact accumulation, exact resume, nothing applied that is not finite, and a toy task learned."""

import json
import signal

import pytest
import torch

from regard.batches.batches import Batches
from regard.batches.rows import Translations
from regard.batches.side import encode
from regard.errors import Interrupted, Mistake
from regard.models.transformer import Transformer
from regard.recipe import Regularize, Tokens, Train, TransformerModel
from regard.tokens.tokenizer import train_tokenizer
from regard.training import checkpoint
from regard.training.log import Log
from regard.training.loop import Trainer
from regard.training.objectives import Say
from regard.worlds import bilingual

GOLD = bilingual.generate(300, 7, level=1)
SOURCE, TARGET = [pair.source for pair in GOLD], [pair.target for pair in GOLD]


@pytest.fixture(scope="module")
def store():
    tokenizer = train_tokenizer(Tokens(size=300), SOURCE + TARGET)
    return Translations(encode(SOURCE, tokenizer), encode(TARGET, tokenizer))


def trainer(store, folder, objective=None, evaluate=lambda model: {"valid_loss": 1.0}, dropout=0.2, width=16, **settings):
    settings = Train(**{"steps": 8, "tokens_per_batch": 256, "log_every": 2, "evaluate_every": 4, "save_every": 2, "keep": 10,
                        **settings})
    torch.manual_seed(5)
    regularize = Regularize(dropout=dropout)
    model = Transformer(TransformerModel(preset="tiny", width=width, heads=2, feed_forward=2 * width), 300, 300, regularize)
    folder.mkdir(exist_ok=True)
    log = Log(folder / "log.jsonl", steps=settings.steps)
    return Trainer(model, objective or Say(regularize), Batches(store, settings.tokens_per_batch, 1), settings, seed=1,
                   folder=folder / "checkpoints", log=log, evaluate=evaluate)


def same(one, other):
    return all(torch.equal(one[name], other[name]) for name in one.keys() | other.keys())


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("workers", [0, 2])
def test_resuming_any_number_of_times_gives_the_same_bits(store, tmp_path, kind, workers):
    options = dict(optimizer={"kind": kind}, ema=0.9, workers=workers, evaluate_every=8)
    whole = trainer(store, tmp_path / "whole", **options)
    kept = whole.train()
    for stop in (2, 4, 6):                            # go on from a checkpoint, each time in a new trainer
        again = trainer(store, tmp_path / "again", **options)
        if stop > 2:
            again.resume(tmp_path / "again" / "checkpoints" / f"step-{stop - 2:08d}")
        batches = again.step_batches()
        while again.progress.step < stop:
            again.step(next(batches))
        again.save()
    last = trainer(store, tmp_path / "again", **options)
    last.resume(tmp_path / "again" / "checkpoints" / "step-00000006")
    assert same(last.train(), kept)
    assert same(checkpoint.weights_of(whole.model), checkpoint.weights_of(last.model))
    assert same(whole.optimizer.tensors(), last.optimizer.tensors())
    assert (whole.progress.epoch, whole.progress.index) == (last.progress.epoch, last.progress.index)


def test_two_micro_batches_are_one_batch_of_both(store, tmp_path):
    """The gradient of an accumulated step is that of all its words together, whatever the sizes of the parts."""
    split = trainer(store, tmp_path / "a", dropout=0.0)
    run = split.batches.run(workers=0)
    parts = [next(run), next(run)]
    assert parts[0][2].label_count() != parts[1][2].label_count()
    split.model.train()
    count = sum(batch.label_count() for _, _, batch in parts)
    total = sum(split.objective(split.model, batch) for _, _, batch in parts) / count
    expected = torch.autograd.grad(total, list(split.model.parameters()))
    seen = []
    split.optimizer.step = lambda skip: seen.extend(p.grad.clone() for p in split.model.parameters())
    split.settings = split.settings.model_copy(update={"clip_norm": 0.0})
    split.step(parts)
    for one, other in zip(seen, expected):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_a_loss_that_is_not_finite_is_not_applied_but_counted(store, tmp_path):
    class Poisoned(Say):
        calls = 0
        def __call__(self, model, batch):
            self.calls += 1
            return super().__call__(model, batch) * (float("nan") if self.calls == 3 else 1.0)

    run = trainer(store, tmp_path, Poisoned(Regularize()), log_every=1)
    batches = run.step_batches()
    for _ in range(2):
        run.step(next(batches))
    before = {name: p.clone() for name, p in checkpoint.weights_of(run.model).items()}
    loss, _ = run.step(next(batches))
    assert loss == 0 and run.not_finite == 1 and same(before, checkpoint.weights_of(run.model))
    run.step(next(batches))
    assert run.in_a_row == 0 and not same(before, checkpoint.weights_of(run.model))


def test_losses_that_stay_not_finite_end_the_run_with_a_cure(store, tmp_path):
    def infinite(model, batch):
        return model(**batch.inputs).sum() * float("inf")

    run = trainer(store, tmp_path, infinite, steps=50, log_every=5)
    before = {name: p.clone() for name, p in checkpoint.weights_of(run.model).items()}
    with pytest.raises(Mistake, match=r"not finite 5 times in a row up to step 5 .*lower train.optimizer.learning_rate"):
        run.train()
    assert same(before, checkpoint.weights_of(run.model))


def test_a_signal_ends_the_step_saves_and_leaves(store, tmp_path):
    class Ringing(Say):
        calls = 0
        def __call__(self, model, batch):
            self.calls += 1
            if self.calls == 3:
                signal.raise_signal(signal.SIGTERM)
            return super().__call__(model, batch)

    with pytest.raises(Interrupted) as caught:
        trainer(store, tmp_path, Ringing(Regularize()), save_every=100).train()
    assert caught.value.number == signal.SIGTERM
    path, _ = checkpoint.newest_good(tmp_path / "checkpoints")
    assert path.name == "step-00000003"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_the_best_is_kept_and_patience_ends_the_run(store, tmp_path):
    losses = iter([3.0, 1.0, 2.0, 2.5, 0.5])
    seen = []
    def evaluate(model):
        seen.append({name: p.clone() for name, p in checkpoint.weights_of(model).items()})
        return {"valid_loss": next(losses)}

    run = trainer(store, tmp_path, evaluate=evaluate, steps=100, evaluate_every=2, save_every=2, keep=1, patience=2)
    final = run.train()
    assert run.progress.step == 8 and run.progress.best_step == 4
    assert same(final, seen[1]) and not same(final, seen[3])


def test_the_mean_of_the_last_checkpoints(store, tmp_path):
    run = trainer(store, tmp_path, average=3, keep=1)
    final = run.train()
    several = [checkpoint.load(path).tensors["model"] for path in checkpoint.all_steps(tmp_path / "checkpoints")[-3:]]
    for name, mean in final.items():
        torch.testing.assert_close(mean, sum(weights[name] for weights in several) / 3)


def test_the_log_has_every_figure(store, tmp_path):
    trainer(store, tmp_path).train()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    training = [record for record in records if "loss" in record]
    assert [record["step"] for record in training] == [2, 4, 6, 8]
    assert all(record["tokens_per_second"] > 0 and record["learning_rate"] > 0 for record in training)
    assert [record["valid_loss"] for record in records if "valid_loss" in record] == [1.0, 1.0]


def test_a_toy_task_is_learned(store, tmp_path):
    """300 sentences by heart."""
    run = trainer(store, tmp_path, Say(Regularize(label_smoothing=0.0)), dropout=0.0, width=64, steps=250,
                  evaluate_every=250, save_every=250, log_every=10, tokens_per_batch=1024, optimizer={"learning_rate": 0.004},
                  schedule={"warmup_steps": 50})
    run.train()
    losses = [json.loads(line)["loss"] for line in (tmp_path / "log.jsonl").read_text().splitlines() if '"loss"' in line]
    assert losses[0] > 3 and losses[-1] < 0.3
