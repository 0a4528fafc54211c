"""A model of one's own: trained, resumed and scored as those of the package are; the code of docs/own-model.md runs."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import regard
from regard import tasks
from regard.corpus.dataset import read_dataset
from regard.errors import Interrupted, UserError
from regard.models.gpt import Gpt
from regard.recipe import DecoderModel, Regularization
from regard.run.build_loop import make_batches
from regard.run.train import train
from regard.run.trainer import Trainer
from regard.training import checkpoint
from regard.training.callbacks import Callback

ROOT = Path(regard.__file__).parents[2]
SHORT = {
    "steps": 6,
    "tokens_per_batch": 512,
    "log_every": 1,
    "evaluate_every": 3,
    "save_every": 2,
    "schedule": {"warmup_steps": 2},
}
LANGUAGE = {
    "task": "language",
    "data": {"world": {"number": 120, "held_out": 12}, "language": "target"},
    "tokens": {"size": 300},
    "model": {"max_length": 64},
    "train": {**SHORT, "regularize": {"dropout": 0.2}},
}
SHAPE = {"kind": "transformer", "layers": 1, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 64}


def own_gpt(vocabulary):
    """A model of the package as if a user had written it."""
    return Gpt(DecoderModel(**SHAPE), vocabulary, Regularization(dropout=0.2))


class OwnLoss(Gpt):
    """The same with a loss of its own, which is that of the task."""

    def __init__(self, vocabulary):
        super().__init__(DecoderModel(**SHAPE), vocabulary, Regularization(dropout=0.2))

    def loss(self, output, batch):
        smoothed = F.cross_entropy(output.float().mT, batch.labels, ignore_index=-1, label_smoothing=0.1, reduction="sum")
        return smoothed * type(self).scale


class WordCounts(nn.Module):
    """A classifier: the mean of the embeddings of a text."""

    def __init__(self, vocabulary, labels, width=8):
        super().__init__()
        self.embedding, self.output = nn.Embedding(vocabulary, width), nn.Linear(width, labels)

    def forward(self, source, lengths):
        used = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        return self.output((self.embedding(source) * used[..., None]).sum(1) / lengths[:, None])


class SmallCnn(nn.Module):
    """An image classifier with a batch norm, whose running statistics are part of a checkpoint."""

    def __init__(self, size, labels, width=4):
        super().__init__()
        self.size = size
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, labels, 3, 2))

    def forward(self, pixels):
        return self.layers(pixels.float() / 255).mean((2, 3))


def weights(folder):
    return checkpoint.read_weights(Path(folder) / "model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture(scope="module")
def package_run(tmp_path_factory):
    return train({**LANGUAGE, "model": SHAPE}, tmp_path_factory.mktemp("package") / "run", device="cpu")


def test_a_model_of_the_package_trained_as_ones_own_has_the_same_weights_and_scores(package_run, tmp_path):
    run = Trainer(own_gpt, "language").train(LANGUAGE, tmp_path / "own", device="cpu")
    assert same(weights(run.folder), weights(package_run.folder))
    (own,), (package,) = run.evaluate(), package_run.evaluate()
    assert own.scores["perplexity"].score == package.scores["perplexity"].score
    with pytest.raises(UserError, match=r"model.kind = 'own_gpt' .* cannot generate; use: evaluate"):
        run.generate("Der Hund")
    config = json.loads((run.folder / "config.json").read_text())
    assert config["kind"] == "own_gpt" and config["module"] == __name__ and config["architectures"] == ["Gpt"]


@pytest.mark.parametrize("stop", [1, 4])
def test_a_model_of_ones_own_resumes_to_the_bit(stop, package_run, tmp_path):
    class Interrupting(Callback):
        def on_step(self, step, values):
            if step == stop:
                raise Interrupted(15)

    trainer = Trainer(own_gpt, "language")
    with pytest.raises(Interrupted):
        trainer.train(LANGUAGE, tmp_path / "own", device="cpu", callbacks=[Interrupting()])
    run = trainer.train(tmp_path / "own", device="cpu", resume=True, verify=stop)
    assert same(weights(run.folder), weights(package_run.folder))


def test_a_classifier_of_images_resumes_to_the_bit_and_is_scored(tmp_path):
    shapes = {"kind": "shapes", "number": 100, "held_out": 8, "shapes": [1, 1]}
    recipe = {
        "task": "classify",
        "data": {"size": 24, "label_attribute": "kind", "world": shapes},
        "train": {"steps": 4, "images_per_batch": 16, "evaluate_every": 2, "save_every": 2, "log_every": 1},
    }
    trainer = Trainer(SmallCnn, "classify", like="vit")
    whole = trainer.train(recipe, tmp_path / "whole", device="cpu")
    assert whole.model.size == (24, 24) and "accuracy" in trainer.evaluate(whole.folder)[0].scores
    last = whole.folder / "checkpoints" / "step-00000004"
    before = weights(last)
    shutil.rmtree(last)
    trainer.train(whole.folder, device="cpu", resume=True)
    assert same(weights(last), before)


def test_gradient_accumulation_of_a_model_of_ones_own_equals_a_bigger_batch(tmp_path):
    """All texts are in one batch, or in several of a step."""
    recipe = {
        "task": "classify",
        "data": {"world": {"number": 60, "held_out": 12}},
        "tokens": {"kind": "words"},
        "model": {"options": {"width": 4}},
        "train": {**SHORT, "steps": 1, "tokens_per_batch": 100_000, "optimizer": {"kind": "adam", "epsilon": 1e-3}},
    }
    trainer = Trainer(WordCounts, "classify")
    whole = trainer.train(recipe, tmp_path / "whole", device="cpu")
    assert whole.model.embedding.embedding_dim == 4 and whole.classify("The dog sleeps.").label in whole.labels
    number = next(n for n in range(200, 2000, 20) if batches_per_epoch(trainer, recipe, n, tmp_path / f"try-{n}") == 3)
    split = trainer.train(
        recipe,
        tmp_path / "split",
        device="cpu",
        overrides=[f"train.tokens_per_batch={number}", "train.gradient_accumulation_steps=3"],
    )
    for name, tensor in weights(whole.folder).items():
        torch.testing.assert_close(weights(split.folder)[name], tensor, atol=1e-6, rtol=1e-4)


def batches_per_epoch(trainer, recipe, tokens, folder):
    """Count the batches of an epoch with so many positions each."""
    settings = tasks.build_recipe(
        {**recipe, "model": {**recipe["model"], "kind": trainer.name, "module": __name__}, "train": {"tokens_per_batch": tokens}}
    )
    data = read_dataset(settings.data)
    folder.mkdir()
    trainer.task.run._prepare(folder, settings, data)
    run = trainer.task.run(trainer.task, folder, settings, torch.device("cpu"))
    return len(make_batches(run, run._training_rows(data.train)[0]).plan(0))


def test_a_loss_of_ones_own_replaces_that_of_the_task(package_run, tmp_path):
    def trained(scale, name):
        OwnLoss.scale = scale
        return weights(Trainer(OwnLoss, "language").train(LANGUAGE, tmp_path / name, device="cpu").folder)

    expected, once = weights(package_run.folder), trained(1.0, "once")
    for name, tensor in expected.items():
        torch.testing.assert_close(once[name], tensor, atol=1e-4, rtol=1e-3)
    assert not same(trained(0.0, "never"), once)


def test_a_run_of_an_unknown_class_is_refused_with_the_cure(tmp_path, monkeypatch):
    run = Trainer(own_gpt, "language").train(LANGUAGE, tmp_path / "own", device="cpu", overrides=["train.steps=1"])
    monkeypatch.setattr(tasks, "_own_tasks", {})
    with pytest.raises(
        UserError, match=r"model.kind = 'own_gpt' is a model of your own: .*regard.Trainer\(own_gpt, 'language'\)"
    ):
        regard.load(run.folder)
    assert Trainer(own_gpt, "language").load(run.folder).model.training is False


def no_module(vocabulary, labels=2):
    return {}


@pytest.mark.parametrize(
    ("model", "changes", "message"),
    [
        (lambda vocabulary: None, {}, "a class or a function with a name"),
        (WordCounts, {"options": {"widht": 4}}, r"model.options = {'widht': 4}: .*widht"),
        (no_module, {}, "no_module returned dict, which is no torch.nn.Module"),
        (WordCounts, {"width": 4}, "no setting 'width' in model"),
    ],
)
def test_mistakes_are_one_line(model, changes, message, tmp_path):
    recipe = {
        "task": "classify",
        "data": {"world": {"number": 60, "held_out": 12}},
        "tokens": {"kind": "words"},
        "model": changes,
    }
    with pytest.raises(UserError, match=message) as error:
        Trainer(model, "classify").train(recipe, tmp_path / "own", device="cpu")
    assert "\n" not in str(error.value)


def test_verbs_that_a_model_does_not_support_are_left_out():
    assert Trainer(WordCounts, "classify").task.verbs == ("classify",)
    assert Trainer(own_gpt, "language").task.verbs == () and Trainer(OwnLoss, "language").task.verbs == (
        "generate",
        "stream",
        "embed",
    )


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Run the code of docs/own-model.md with few steps; return its names."""
    text = (ROOT / "docs" / "own-model.md").read_text(encoding="utf-8")
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.S))
    assert code.count('"steps": 400') == 1 and code.count('"number": 4000, "held_out": 400') == 1
    code = code.replace('"steps": 400', '"steps": 4').replace('"number": 4000, "held_out": 400', '"number": 120, "held_out": 12')
    found = {"__name__": "own_model"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        exec(code, found)
    return found


def test_gated_linear_attention_step_by_step_equals_all_positions_at_once(page):
    torch.manual_seed(1)
    attention, x = page["GatedLinearAttention"](12, 3).double(), torch.randn(2, 7, 12, dtype=torch.float64)
    nn.init.normal_(attention.gate.bias)
    memory, outputs = torch.zeros(2, 3, 4, 4, dtype=torch.float64), []
    for token in x.split(1, dim=1):
        output, memory = attention.step(token, memory)
        outputs.append(output)
    torch.testing.assert_close(torch.cat(outputs, dim=1), attention(x), atol=1e-10, rtol=0)


def test_the_documented_model_generates_batched_as_one_by_one(page):
    run = page["run"]
    prompts = ["Der Hund", "Die Katze sieht den alten Hund und", "Ein"]
    together = run.generate(prompts, max_tokens=6)
    assert [one.tokens for one in together] == [run.generate(prompt, max_tokens=6).tokens for prompt in prompts]
    ids = run._encode_prompts([prompts[1]])[0]
    tokens = torch.tensor([ids])
    state = run.model.start(None, tokens[:, :2])
    with torch.no_grad():
        torch.testing.assert_close(run.model.step(tokens[:, 2:], state)[0], run.model(tokens)[:, 2:], atol=1e-4, rtol=1e-4)
