"""The lens and the flow over HTTP: the data of the exported pages, for the models that have them."""

import pytest

from regard.server.view_routes import FlowResponse, HeadSearchResponse, LensResponse
from regard.show.forward_pass.lens import logit_lens
from regard.show.search import search_heads, search_texts

TEXTS = {"gpt": "der Hund", "masked": "the [MASK] sees", "en-de": "the goat sees the cake"}


@pytest.mark.parametrize("model", TEXTS)
def test_lens_over_http_is_that_of_python(client, runs, model):
    response = client.post("/v1/lens", json={"model": model, "text": TEXTS[model]})
    assert response.status_code == 200, response.text
    found, lens = LensResponse.model_validate_json(response.content), logit_lens(runs[model], TEXTS[model])
    assert found.answers == list(lens.answers) and found.layers[0] == "embeddings"
    assert found.cells[-1][0].top[0][1] == pytest.approx(lens.cells[-1][0].top[0][1], abs=1e-4)


@pytest.mark.parametrize("model", TEXTS)
def test_flow_over_http_has_every_stage(client, model):
    response = client.post("/v1/flow", json={"model": model, "text": TEXTS[model]})
    assert response.status_code == 200, response.text
    found = FlowResponse.model_validate_json(response.content)
    assert found.stages[0].name == "embedding" and found.stages[-1].candidates is not None


def test_models_list_lens_and_flow_among_their_verbs(client):
    verbs = {model["id"]: model["verbs"] for model in client.get("/v1/models").json()["data"]}
    for name in verbs:
        assert ("lens" in verbs[name]) == ("flow" in verbs[name]) == (name in TEXTS)
    assert client.post("/v1/lens", json={"model": "classify", "text": "a"}).status_code == 422
    assert client.post("/v1/flow", json={"model": "gpt", "text": "x " * 9000}).status_code == 422


def test_search_over_http_is_that_of_python(client, runs):
    texts = ["the goat sees the cake", "A pig falls asleep."]
    response = client.post("/v1/search", json={"model": "en-de", "text": texts, "word": "the"})
    assert response.status_code == 200, response.text
    found, expected = HeadSearchResponse.model_validate_json(response.content), search_heads(runs["en-de"], texts, word="the")
    assert [head.name for head in found.heads] == [head.name for head in expected.heads]
    for head, own in zip(found.heads, expected.heads):
        assert [hit.weight for hit in head.hits] == pytest.approx([hit.weight for hit in own.hits], abs=1e-3)
        for hit, known in zip(head.hits, own.hits):
            queries, keys = found.tokens[head.kind][hit.sentence]
            assert (queries[hit.query], keys[hit.key]) == expected.words(own, known)


def test_search_reads_the_validation_set_by_default_and_has_bounds(client, runs):
    response = client.post("/v1/search", json={"model": "gpt", "number": 3})
    assert response.json()["texts"] == search_texts(runs["gpt"], "valid", 3)
    assert client.post("/v1/search", json={"model": "gpt", "number": 500}).status_code == 422
    assert client.post("/v1/search", json={"model": "clip", "number": 3}).status_code == 422


def test_views_of_a_request_see_its_heads_switched_off(client):
    def entropies(**options):
        found = client.post("/v1/lens", json={"model": "en-de", "text": "the goat sees the cake", **options}).json()
        return [cell["entropy"] for cell in found["cells"][-1][:1]]

    off = [f"cross.{layer}.{head}" for layer in (1, 2) for head in (1, 2)]
    assert entropies(ablate=off) != pytest.approx(entropies(), abs=1e-3)
