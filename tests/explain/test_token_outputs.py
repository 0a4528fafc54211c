"""Explanations of the token at a mask, and of the next token at any word of a text."""

import copy
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.explain.methods import METHODS
from regard.explain.report import explain_set
from regard.explain.selection import OutputSelection, find_word
from regard.explain.text_outputs import select_output
from regard.explain.token_outputs import mask_word
from regard.run.train import train
from regard.server.render import explain_response
from regard.server.request_types import ExplainRequest

STACK = {"kind": "transformer", "layers": 2, "heads": 2, "feed_forward": 32, "width": 16, "max_length": 48}
TEXT = "The dog [MASK] in the garden."


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    base = {
        "data": {"world": {"number": 200, "held_out": 20}},
        "tokens": {"size": 300},
        "train": {"steps": 2, "tokens_per_batch": 512, "evaluate_every": 2, "save_every": 2, "log_every": 2},
    }
    found = {
        task: train({**copy.deepcopy(base), "task": task, "model": STACK}, folder / task, device="cpu")
        for task in ("masked", "language")
    }
    for run in found.values():
        with torch.no_grad():
            for p in run.model.parameters():
                p.add_(0.3 * torch.randn_like(p))  # so that tokens make a difference
    return found


class CopiesOneToken(nn.Module):
    """A masked model that attends to one token of its vocabulary alone, and predicts as that token says."""

    def __init__(self, vocabulary, token):
        super().__init__()
        self.words, self.layers = nn.Embedding(vocabulary, 8), nn.ModuleList([nn.Identity()])
        self.output, self.token = nn.Linear(8, vocabulary), token

    def forward(self, source, lengths):
        x = self.words(source)  # (B, S, D)
        key = 1e4 * (source == self.token).to(x)[:, None, :, None].expand(-1, -1, -1, 8)  # (B, 1, S, K)
        query = torch.ones_like(key)
        return self.output(F.scaled_dot_product_attention(query, key, x[:, None])[:, 0])


def test_masked_prediction_that_depends_on_one_token_is_attributed_to_it(runs):
    run = copy.copy(runs["masked"])
    (token,) = run.tokenizers[0].encode(["dog"])[0]
    run.model = CopiesOneToken(run.tokenizers[0].size, token).double().eval()
    found = run.explain(TEXT, "attention,gradient-attention,norms,integrated-gradients,occlusion")
    assert "dog" in found.features and set(found.attributions) >= {"attention", "norms", "integrated-gradients", "occlusion"}
    for method, values in found.attributions.items():
        others = [abs(value) for value, feature in zip(values, found.features) if feature != "dog"]
        assert abs(values[found.features.index("dog")]) > 100 * max(others), method


def test_masked_explanation_has_every_method_and_explains_the_filled_word(runs):
    run = runs["masked"]
    found = run.explain(TEXT)
    assert set(found.attributions) == set(METHODS) and set(found.faithfulness) == {*METHODS, "random"}
    assert "".join(found.features).startswith("Thedog") and "mask" not in "".join(found.features)
    best = run.fill([TEXT])[0].candidates[0][0]
    assert repr(best.label) in found.output and "at the mask" in found.output
    assert found.score == pytest.approx(best.probability, abs=1e-5)


def test_mask_is_selected_by_position(runs):
    run, text = runs["masked"], "The [MASK] sleeps in the [MASK]."
    candidates = run.fill([text])[0].candidates
    for position, number in ((None, 0), ("2", 0), ("[MASK]", 0), ("[MASK]:2", 1), ("6", 1)):
        target = select_output(run, text, OutputSelection(position=position)).target
        assert float(target.full_score().exp()) == pytest.approx(candidates[number][0].probability, abs=1e-5)
    assert mask_word("The dog sleeps.", "3") == ("The dog [MASK].", "The dog ")
    written = select_output(run, "The dog [MASK].").target
    assert torch.equal(select_output(run, "The dog sleeps.", OutputSelection(position="sleeps")).target.input, written.input)


def test_masked_word_and_contrast(runs):
    run = runs["masked"]
    found = run.explain(TEXT, "occlusion", word="sleeps", against="cat")
    assert "selected" in found.output and "'cat'" in found.against.output
    target = select_output(run, TEXT, OutputSelection(word="cat")).target
    assert found.against.score == pytest.approx(float(target.full_score().exp()))
    assert found.against.attributions["occlusion"] == pytest.approx(METHODS["occlusion"](target).tolist())
    assert run.tokenizers[0].piece(target.output).strip() == "cat"


def test_next_token_at_a_position_ignores_the_rest_of_the_text(runs):
    run = runs["language"]
    inside = run.explain("The dog sleeps in the garden.", "attention,occlusion", position="3")
    before = run.explain("The dog", "attention,occlusion")
    assert inside.attributions == before.attributions and inside.score == before.score
    assert "word 3 of 6" in inside.output and inside.features == before.features
    chosen = run.explain("The dog sleeps in the garden.", "occlusion", position="sleeps", word="sleeps")
    assert chosen.attributions == run.explain("The dog", "occlusion", word="sleeps").attributions


def test_language_model_prediction_at_a_position_is_that_of_the_whole_text(runs):
    run, text = runs["language"], "The dog sleeps in the garden."
    ids = run._encode_prompts([text])[0]
    with torch.no_grad():
        whole = run.model(target=torch.tensor([ids])).log_softmax(-1)[0]
    target = select_output(run, text, OutputSelection(position="5")).target
    torch.testing.assert_close(target.full_score()[0], whole[target.step, target.output].double(), atol=1e-5, rtol=0)


def test_explain_set_of_a_masked_model_masks_one_word_of_each_text(runs, tmp_path):
    found = explain_set(runs["masked"], "valid", "occlusion", number=6)
    assert found.number >= 5 and {"comprehensiveness", "sufficiency"} <= set(found.scores["occlusion"])
    result = CliRunner().invoke(app, ["explain", str(runs["masked"].folder), "--heads", "-n", "3", "--json"])
    heads = json.loads(result.stdout)["heads"]
    assert len(heads) == 4 and all(head["loss_without"] is not None for head in heads)


def test_explain_command_explains_masks_and_positions(runs):
    for task, words in (
        ("masked", [TEXT, "--word", "runs", "--against", "cat"]),
        ("masked", ["The [MASK] [MASK].", "--position", "[MASK]:2"]),
        ("language", ["The dog sleeps.", "--position", "3", "--word", "sleeps"]),
    ):
        command = ["explain", str(runs[task].folder), *words, "--method", "occlusion", "--json"]
        found = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
        assert len(found["attributions"]["occlusion"]) == len(found["tokens"])


def test_server_explains_the_selected_mask(runs):
    request = ExplainRequest(model="masked", text="The [MASK] saw a [MASK].", position="[MASK]:2", method="occlusion")
    assert "at mask 2 of 2" in explain_response("masked", runs["masked"], request.text, request).target


def test_word_of_a_text_is_found_by_number_as_written_and_by_occurrence():
    words = ["the", "dog,", "and", "the", "cat."]
    assert [find_word(position, words) for position in ("1", "dog", "dog,", "the", "the:2", "cat:1")] == [0, 1, 1, 0, 3, 4]


@pytest.mark.parametrize(
    ("task", "text", "settings", "cure"),
    [
        ("masked", "The dog sleeps.", {}, r"no mask; write \[MASK\]"),
        ("masked", "[MASK]", {}, "nothing to explain"),
        ("masked", TEXT, {"label": "x"}, "use --word"),
        ("masked", TEXT, {"position": "99"}, "words 1 to 6"),
        ("masked", TEXT, {"position": "cow"}, "not in the text"),
        ("masked", TEXT, {"position": "[MASK]:2"}, "1 times"),
        ("language", "The dog", {"position": "1"}, "before the first"),
    ],
)
def test_user_errors_of_masks_and_positions_are_one_line(runs, task, text, settings, cure):
    with pytest.raises(UserError, match=cure) as mistake:
        runs[task].explain(text, "occlusion", **settings)
    assert "\n" not in str(mistake.value)


def test_word_of_several_tokens_is_scored_by_all_of_them(runs, tiny_run):
    """By the sum of the log-probabilities of its tokens, each after the ones before it or at a mask of its own."""
    word, text = "sleepwalkers", "The dog"
    for run, given in ((runs["language"], text), (runs["masked"], f"{text} [MASK] in the garden.")):
        target = select_output(run, given, OutputSelection(word=word)).target
        tokens = [target.output, *(token for _, token in target.further)]
        steps = [target.step, *(step for step, _ in target.further)]
        assert len(tokens) > 1 and run.tokenizers[0].decode([tokens])[0].strip() == word
        with torch.no_grad():
            log_p = run.model(**target.inputs)[0].log_softmax(-1)
        assert float(target.full_score()) == pytest.approx(float(sum(log_p[s, t] for s, t in zip(steps, tokens))), abs=1e-5)
        assert len(target.positions) == len(select_output(run, given).target.positions)  # the same features for every word
    ids = runs["masked"]._encode_masked(f"{text} {'[MASK]' * len(tokens)} in the garden.")
    assert target.input[0].tolist().count(runs["masked"]._mask_id) == len(tokens) == ids.count(runs["masked"]._mask_id)
    found = runs["language"].explain(text, "occlusion", word=word, against="dog")
    assert f"word '{word}' of {len(tokens)} tokens" in found.output
    translation = tiny_run._best(["The dog sleeps."])[0]
    words = [
        select_output(tiny_run, "The dog sleeps.", OutputSelection(word=str(number + 1))).target
        for number in range(len(translation.text.split()))
    ]
    assert sum(1 + len(target.further) for target in words) == len(translation.tokens)
    end = replace(words[-1], further=(*words[-1].further, (len(translation.tokens), tiny_run._special_tokens.eos)))
    inputs = {**end.inputs, "target": torch.tensor([[*words[0].inputs["target"][0, :1].tolist(), *translation.tokens]])}
    total = sum(float(target.full_score()) for target in words[:-1]) + float(replace(end, inputs=inputs).full_score())
    assert total == pytest.approx(translation.log_probability, abs=1e-4)
