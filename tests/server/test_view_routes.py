"""The lens and the flow over HTTP: the data of the exported pages, for the models that have them."""

import pytest

from regard.server.view_routes import FlowResponse, LensResponse
from regard.show.forward_pass.lens import logit_lens

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
