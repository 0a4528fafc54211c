"""Heads switched off by a request, and the distribution of the next token."""

import math

import pytest

from regard.attention.modules import attention_modules
from regard.explain.heads import ablate_heads
from regard.server.ablation import find_head

SENTENCE = "The goat finds the cake under the sofa because it is baked."


def post(client, verb, status=200, **body):
    response = client.post(f"/v1/{verb}", json=body)
    assert response.status_code == status, response.text
    return response.json()


def all_heads(run, kind):
    modules = attention_modules(run.model, kinds=kind)
    return [f"{kind}.{layer}.{head}" for layer in range(1, len(modules) + 1) for head in (1, 2)]


def test_translation_without_heads_is_that_of_the_edited_model(client, runs):
    heads = all_heads(runs["en-de"], "cross")[:3]
    (found,) = post(client, "translate", model="en-de", text=SENTENCE, ablate=heads)["results"]
    model = runs["en-de"].model
    with ablate_heads(model, [find_head(model, head) for head in heads]):
        expected = runs["en-de"].translate(SENTENCE)
    assert found["text"] == expected.text
    assert found["log_probability"] == pytest.approx(expected.log_probability, abs=1e-3)


def test_ablation_changes_the_answer_of_its_own_request_only(client, runs):
    before = post(client, "translate", model="en-de", text=SENTENCE)["results"][0]
    without = post(client, "translate", model="en-de", text=SENTENCE, ablate=all_heads(runs["en-de"], "cross"))["results"][0]
    after = post(client, "translate", model="en-de", text=SENTENCE, alignment=True)["results"][0]
    assert without["log_probability"] != pytest.approx(before["log_probability"], abs=1e-3)
    assert after["text"] == before["text"] and after["log_probability"] == before["log_probability"]


@pytest.mark.parametrize(
    "name, verb, body",
    [
        ("masked", "fill", {"text": "Der [MASK] schläft."}),
        ("classify", "classify", {"text": "the dog sleeps"}),
        ("gpt", "next-token", {"text": "Der Hund"}),
    ],
)
def test_probabilities_change_without_any_attention(client, runs, name, verb, body):
    heads = ["1.1", "1.2"]
    assert post(client, verb, model=name, **body) != post(client, verb, model=name, **body, ablate=heads)


@pytest.mark.parametrize(
    "head, message",
    [
        ("cross.9.1", "layers 1 to"),
        ("cross.1.99", "heads 1 to"),
        ("1.1", "several kinds"),
    ],
)
def test_heads_that_the_model_does_not_have_are_refused_in_words(client, head, message):
    assert message in post(client, "translate", 422, model="en-de", text="a dog", ablate=[head])["error"]["message"]


def test_ablated_request_has_bounds(client):
    for heads in (["1.1"] * 1900, ["0.1"], ["1"], ["1.1.1"], ["cross.1.1\n"], [{"layer": 1}]):
        post(client, "classify", 422, model="classify", text="a", ablate=heads)
    post(client, "generate", 422, model="gpt", prompt="Der", stream=True, ablate=["1.1"])


def test_next_token_distribution_sums_to_one_and_agrees_with_generation(client):
    found = post(client, "next-token", model="gpt", text="Der Hund", number=20)
    named = sum(math.exp(value) for value in found["log_probabilities"])
    rest = sum(count * math.exp(mean) for mean, count in found["rest"])
    assert named + rest == pytest.approx(1, abs=0.02)
    (generated,) = post(client, "generate", model="gpt", prompt="Der Hund", max_tokens=1)["results"]
    first = generated["tokens"][0] if generated["tokens"] else None
    assert first is None or (found["tokens"][0].lstrip("·"), round(math.exp(found["log_probabilities"][0]), 3)) == (
        first.lstrip("·"),
        round(generated["probabilities"][0], 3),
    )
