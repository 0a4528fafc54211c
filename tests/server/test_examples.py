"""Examples: inputs of a model's own validation set, with which the page opens."""

import pytest

from regard.server.app import create_app
from regard.server.examples import best_first
from regard.server.settings import ServerSettings


def get_examples(client, name, **options):
    response = client.get(f"/v1/models/{name}/examples", params=options)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("name", ["en-de", "gpt", "masked", "classify", "tag"])
def test_examples_are_texts_of_the_validation_set(client, runs, name):
    found = get_examples(client, name, number=5)
    assert len(found["text"]) == 5 and found["images"] == []
    valid = runs[name].data.valid
    assert set(found["text"]) <= {*valid.keys(), *valid.texts()[0]}


@pytest.mark.parametrize("name", ["kinds", "clip", "caption"])
def test_examples_of_image_models_can_be_sent_back(client, name):
    found = get_examples(client, name)
    (image,) = found["images"]
    verb = {"kinds": "classify", "clip": "match", "caption": "caption"}[name]
    labels = {"labels": found["labels"]} if verb == "match" else {}
    assert client.post(f"/v1/{verb}", json={"model": name, "image": image, **labels}).status_code == 200


def test_first_example_is_of_medium_length_and_has_a_pronoun():
    texts = ["no", "The old goat in the garden drinks the water.", "The goat drinks the water because it is thirsty."]
    assert best_first(texts) == [texts[2], texts[1], texts[0]]


def test_examples_of_a_run_without_its_data_are_empty(client, runs, monkeypatch):
    from regard.errors import UserError

    def missing(self):
        raise UserError("valid.en: no such file")

    monkeypatch.setattr(type(runs["tag"]), "data", property(missing))
    assert get_examples(client, "tag") == {"model": "tag", "text": [], "questions": [], "images": [], "labels": []}


def test_number_of_examples_has_bounds_and_unknown_models_are_refused(client):
    assert client.get("/v1/models/en-de/examples", params={"number": 10_000}).status_code == 422
    assert client.get("/v1/models/nobody/examples").status_code == 404


def test_path_of_a_run_is_told_to_its_own_machine_only(runs):
    named = {"tag": runs["tag"]}
    for settings, known in ((ServerSettings(), True), (ServerSettings(token="0123456789abcdef", host="0.0.0.0"), False)):
        (model,) = create_app(named, settings).state.models.by_name.values()
        assert model.info.path == (str(runs["tag"].folder) if known else None)
