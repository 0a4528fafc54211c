"""What comes over HTTP is what the run says, whole or streamed, alone or together with others."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import regard

TEXTS = ["The dog sleeps .", "The old woman sees the small cat .", "", "A book", "The cat and the dog run home ."]


def ask(client, verb, **given):
    answer = client.post(f"/v1/{verb}", json=given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def events(client, verb, **given):
    with client.stream("POST", f"/v1/{verb}", json={**given, "stream": True}) as answer:
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models_say_what_they_can_do(client, runs):
    found = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert list(found) == list(runs)
    assert found["gpt"]["verbs"] == ["generate", "embed", "attention", "explain", "completions", "chat/completions", "embeddings"]
    assert found["en-de"]["kinds"] == ["cross", "encoder", "decoder"] and found["clip"]["reads"] == ["text", "image"]
    assert found["kinds"]["labels"] and found["draw"]["verbs"] == ["draw"]
    assert client.get("/v1/models/gpt").json() == found["gpt"]


@pytest.mark.parametrize(
    "manner", [{}, {"beam": 1}, {"beam": 3, "number": 2}, {"temperature": 1.5, "seed": 4}, {"max_tokens": 4}]
)
def test_translations(client, runs, manner):
    said = ask(client, "translate", text=TEXTS, **manner)
    for found, expected in zip(said["results"], runs["en-de"].translate(TEXTS, **manner)):
        assert [found["text"], *(one["text"] for one in found["others"])] == [one.text for one in expected]
        assert found["score"] == pytest.approx(expected[0].score, abs=1e-4)


@pytest.mark.parametrize("manner", [{"beam": 1}, {"beam": 3}, {"temperature": 1.5, "seed": 4}])
def test_a_streamed_translation_is_the_whole_one(client, manner):
    *pieces, last = events(client, "translate", text=TEXTS, align=True, **manner)
    whole = ask(client, "translate", text=TEXTS, align=True, **manner)
    assert last["done"] == whole
    for number, found in enumerate(whole["results"]):
        assert "".join(one["piece"] for one in pieces if one["index"] == number) == found["text"]


def test_what_a_translation_looked_at_and_the_tree_of_its_search(client, runs):
    (found,) = ask(client, "translate", text=TEXTS[1], align=True, tree=True)["results"]
    expected = next(runs["en-de"].align([TEXTS[1]]))
    assert found["alignment"]["source"] == expected.source and found["alignment"]["target"] == expected.target
    np.testing.assert_allclose(found["alignment"]["weights"], expected.view()[0], atol=1e-3)
    way = [node["word"] for node in found["tree"] if node["best"]]
    assert way[: len(found["tokens"])] == found["tokens"]
    assert all(-1 <= node["parent"] < place for place, node in enumerate(found["tree"]))


MANNERS = [{}, {"temperature": 1.2, "seed": 3, "number": 2, "top_k": 20}, {"repetition_penalty": 1.5, "stop": ["e", " d"]}]


@pytest.mark.parametrize("manner", MANNERS)
def test_a_streamed_text_is_the_whole_one_and_the_runs_own(client, runs, manner):
    prompts = ["Der Hund", "Die alte Frau"]
    whole = ask(client, "generate", prompt=prompts, max_tokens=20, looks=True, **manner)
    expected = runs["gpt"].generate(prompts, max_tokens=20, **manner)
    assert [one["text"] for one in whole["results"]] == [one.text for one in expected]
    *pieces, last = events(client, "generate", prompt=prompts, max_tokens=20, looks=True, **manner)
    assert last["done"] == whole
    for number, found in enumerate(whole["results"]):
        mine = [one for one in pieces if one["index"] == number]
        assert "".join(one["piece"] for one in mine) == found["written"]
        assert [one["token"] for one in mine if one["token"]] == found["tokens"]
        looks = found["looks"]
        assert [step["word"] for step in looks["steps"]] == found["tokens"]
        np.testing.assert_allclose([step["probability"] for step in looks["steps"]], found["probabilities"], atol=1e-3)
        assert np.shape(looks["weights"]) == (len(looks["steps"]), len(looks["keys"]))
        np.testing.assert_allclose(np.sum(looks["weights"], 1), 1, atol=0.01)


def test_many_at_once_are_each_what_they_are_alone(client, runs):
    """Clients that come together and one after another, with other prompts, lengths and manners."""
    asked = [
        {
            "prompt": f"Der {'alte ' * (number % 4)}Hund",
            "max_tokens": 3 + number % 17,
            "seed": number,
            **({"temperature": 1.0} if number % 2 else {}),
        }
        for number in range(40)
    ]
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda one: ask(client, "generate", **one)["results"][0]["text"], asked))
    assert found == [runs["gpt"].generate([one.pop("prompt")], **one)[0].text for one in asked]
    beams = [{"text": TEXTS[number % 2] + " now" * (number % 3), "beam": 1 + number % 4} for number in range(24)]
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda one: ask(client, "translate", **one)["results"][0]["text"], beams))
    assert found == [runs["en-de"].best([one["text"]], beam=one["beam"])[0].text for one in beams]


def test_captions_with_a_map_for_each_word(client, runs, picture, encoded):
    run = runs["caption"]
    (found,) = ask(client, "caption", image=encoded(picture), number=2, looks=True)["results"]
    (expected,) = run.caption([picture], number=2)
    assert [found["text"], *(one["text"] for one in found["others"])] == [one.text for one in expected]
    (look,) = run.align([picture])
    assert found["looks"]["words"] == look.words and found["looks"]["grid"] == [4, 4]
    np.testing.assert_allclose(found["looks"]["maps"], look.weights, atol=1e-3)
    assert as_pixels(found["looks"]["picture"]).shape == (32, 32, 3)
    *pieces, last = events(client, "caption", image=encoded(picture), beam=1)
    assert "".join(one["piece"] for one in pieces) == last["done"]["results"][0]["text"]


def as_pixels(data):
    return np.asarray(Image.open(BytesIO(base64.b64decode(data))))


def test_texts_and_pictures_are_judged(client, runs, picture, encoded):
    filled = ask(client, "fill", text="the [MASK] sleeps", number=3)["results"][0]
    (expected,) = runs["masked"].fill(["the [MASK] sleeps"], number=3)
    assert filled["text"] == expected.text and len(filled["candidates"][0]) == 3
    labels = ask(client, "classify", model="classify", text=["the dog sleeps", "a cat"])["results"]
    assert [one["labels"][0]["label"] for one in labels] == [
        one[0].label for one in runs["classify"].classify(["the dog sleeps", "a cat"])
    ]
    (seen,) = ask(client, "classify", model="kinds", image=encoded(picture, "JPEG"))["results"]
    assert sum(one["probability"] for one in seen["labels"]) == pytest.approx(1, abs=1e-3)
    tagged = ask(client, "tag", text="the dog sleeps")["results"][0]
    assert tagged["words"] == ["the", "dog", "sleeps"] and len(tagged["labels"]) == 3
    matched = ask(client, "match", image="data:image/png;base64," + encoded(picture), labels=["a red circle", "a blue star"])
    expected = runs["clip"].match([picture], ["a red circle", "a blue star"])[0]
    assert [one["label"] for one in matched["results"]] == [one.label for one in expected]
    (drawn,) = ask(client, "draw", text="a red circle", seed=2)["results"]
    np.testing.assert_array_equal(as_pixels(drawn["picture"]), runs["draw"].draw(["a red circle"], seed=2)[0][0].picture)


def test_vectors(client, runs, picture, encoded):
    found = ask(client, "embed", model="gpt", text=["Der Hund", "Die"])["results"]
    expected = runs["gpt"].embed(["Der Hund", "Die"])
    np.testing.assert_allclose([one["vectors"][0] for one in found], [one.vectors[0] for one in expected], atol=1e-5)
    words = ask(client, "embed", model="masked", text="the dog sleeps", pool="words")["results"][0]
    assert words["tokens"] == ["the", "dog", "sleeps"] and len(words["vectors"]) == 3
    image = ask(client, "embed", model="clip", image=encoded(picture))["results"][0]
    assert len(image["vectors"][0]) == 8 and image["tokens"] == []


def test_a_text_that_is_called_as_a_file_is_read_as_a_text(client, runs, tmp_path, picture):
    """Nobody learns which files there are, or what is in them."""
    path = tmp_path / "there.png"
    picture.save(path)
    there, gone = (ask(client, "embed", model="clip", text=str(one))["results"][0] for one in (path, tmp_path / "gone.png"))
    expected = runs["clip"]._text_vectors([str(path)])[0]
    np.testing.assert_allclose(there["vectors"][0], expected, atol=1e-5)
    assert len(gone["vectors"][0]) == 8
    looked = ask(client, "attention", model="clip", text=str(path))
    assert looked["grid"] is None and "1,1" not in looked["keys"]
    for model, verb in (("kinds", "classify"), ("kinds", "explain"), ("clip", "explain"), ("caption", "attention")):
        answer = client.post(f"/v1/{verb}", json={"model": model, "text": str(path)})
        assert answer.status_code == 422 and "image" in answer.json()["error"]["message"]


@pytest.mark.parametrize("name, text", [("en-de", TEXTS[1]), ("gpt", "Der alte Hund"), ("masked", "the [MASK] sleeps")])
def test_attention_is_what_the_run_attends_to(client, runs, name, text):
    from regard.show.recording import attention_maps, record_attention

    whole = ask(client, "attention", model=name, text=text, digits=5)
    first = attention_maps(record_attention(runs[name], text))[0]
    assert (whole["name"], whole["queries"], whole["keys"]) == (first.name, list(first.queries), list(first.keys))
    np.testing.assert_allclose(whole["weights"], first.weights, atol=1e-4)
    part = ask(client, "attention", model=name, text=text, layers=[1], heads=[2], digits=5)
    assert part["layers"] == [1] and part["heads"] == [2]
    np.testing.assert_allclose(part["weights"], first.weights[:1, 1:2], atol=1e-4)


def test_attention_as_files(client, runs, tmp_path, picture, encoded):
    def fetch(**given):
        answer = client.post("/v1/attention", json=given)
        assert answer.status_code == 200, answer.text
        return answer

    kept = tmp_path / "a.attn"
    kept.write_bytes(fetch(model="en-de", text=TEXTS[0], form="attn").content)
    assert regard.Record.read(kept).tokens["source"]
    assert fetch(model="en-de", text=TEXTS[0], form="svg", view="model").text.lstrip().startswith("<?xml")
    assert fetch(model="en-de", text=TEXTS[0], form="svg", view="beam").headers["content-type"] == "image/svg+xml"
    assert Image.open(BytesIO(fetch(model="kinds", image=encoded(picture), form="png").content)).format == "PNG"
    seen = fetch(model="kinds", image=encoded(picture)).json()
    assert seen["grid"] == [4, 4] and len(seen["keys"]) >= 16 and as_pixels(seen["picture"]).shape == (32, 32, 3)


def test_explanations_come_with_how_far_they_can_be_trusted(client, runs, picture, encoded):
    found = ask(client, "explain", model="classify", text="the dog sleeps", method="attention,occlusion")
    assert set(found["values"]) == {"attention", "occlusion"} and len(found["values"]["occlusion"]) == len(found["pieces"]) == 3
    assert "comprehensiveness" in found["faithfulness"]["occlusion"] and found["words"]
    seen = ask(client, "explain", model="kinds", image=encoded(picture), method="attention")
    assert seen["grid"] == [4, 4] and len(seen["values"]["attention"]) == 16


def test_a_text_of_two_thousand_tokens_is_answered_in_words(client):
    """Too long for a tiny model: it says so."""
    answer = client.post("/v1/attention", json={"model": "gpt", "text": "Hund " * 2000})
    assert answer.status_code == 422 and "tokens" in answer.json()["error"]["message"]
