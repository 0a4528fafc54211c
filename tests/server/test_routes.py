"""Responses equal what the run returns: response or streamed, alone or in a batch with other requests."""

import base64
import json
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

import regard

TEXTS = ["The dog sleeps .", "The old woman sees the small cat .", "", "A book", "The cat and the dog run home ."]


def post(client, verb, **body):
    response = client.post(f"/v1/{verb}", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def stream(client, verb, **body):
    with client.stream("POST", f"/v1/{verb}", json={**body, "stream": True}) as response:
        assert response.status_code == 200 and response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_models_list_their_verbs_and_inputs(client, runs):
    found = {model["id"]: model for model in client.get("/v1/models").json()["data"]}
    assert list(found) == list(runs)
    views = ["attention", "explain", "lens", "flow", "search"]
    assert found["gpt"]["verbs"] == ["generate", "embed", *views, "completions", "chat/completions", "embeddings"]
    assert found["en-de"]["attention_kinds"] == ["cross", "encoder", "decoder"] and found["clip"]["inputs"] == ["text", "image"]
    assert found["kinds"]["labels"] and found["draw"]["verbs"] == ["draw"]
    assert client.get("/v1/models/gpt").json() == found["gpt"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"beam": 1},
        {"beam": 3, "number": 2},
        {"temperature": 1.5, "seed": 4},
        {"temperature": 1.5, "number": 3},
        {"max_tokens": 4},
    ],
)
def test_translate_equals_the_runs_translations(client, runs, options):
    response = post(client, "translate", text=TEXTS, **options)
    for text, found, expected in zip(
        TEXTS, response["results"], runs["en-de"].translate(TEXTS, **{"number": 1, **options}), strict=True
    ):
        assert [found["text"], *(one["text"] for one in found["alternatives"])] == [one.text for one in expected]
        assert len(expected) == (options.get("number", 1) if text else 1)
        assert found["score"] == pytest.approx(expected[0].score, abs=1e-4)


def test_samples_of_a_caption_equal_the_runs(client, runs, image, encode_image):
    options = {"temperature": 1.5, "number": 3, "seed": 2}
    (found,) = post(client, "caption", image=encode_image(image), **options)["results"]
    expected = runs["caption"].caption(image, **options)
    assert [found["text"], *(one["text"] for one in found["alternatives"])] == [one.text for one in expected]
    assert len({one.text for one in expected}) > 1


def test_more_samples_than_texts_are_allowed_are_refused(client):
    response = client.post("/v1/translate", json={"text": TEXTS[:1] * 64, "temperature": 1.0, "number": 8})
    assert response.status_code == 422 and "samples are more than" in response.json()["error"]["message"]


@pytest.mark.parametrize("options", [{"beam": 1}, {"beam": 3}, {"temperature": 1.5, "seed": 4}])
def test_streamed_translation_equals_the_whole_response(client, options):
    *events, last = stream(client, "translate", text=TEXTS, alignment=True, **options)
    response = post(client, "translate", text=TEXTS, alignment=True, **options)
    assert last["done"] == response
    for number, found in enumerate(response["results"]):
        assert "".join(event["text"] for event in events if event["index"] == number) == found["text"]


def test_translation_alignment_and_beam_tree(client, runs):
    (found,) = post(client, "translate", text=TEXTS[1], alignment=True, beam_tree=True)["results"]
    expected = runs["en-de"].align(TEXTS[1])
    assert found["alignment"]["source"] == expected.source and found["alignment"]["target"] == expected.target
    np.testing.assert_allclose(found["alignment"]["weights"], expected.view()[0], atol=1e-3)
    np.testing.assert_allclose(found["alignment"]["heads"], expected.weights, atol=1e-3)
    path = [node["token"] for node in found["beam_tree"] if node["on_best_path"]]
    assert path[: len(found["tokens"])] == found["tokens"]
    assert all(-1 <= node["parent"] < index for index, node in enumerate(found["beam_tree"]))


SAMPLING_OPTIONS = [
    {},
    {"temperature": 1.2, "seed": 3, "number": 2, "top_k": 20},
    {"repetition_penalty": 1.5, "stop": ["e", " d"]},
]


@pytest.mark.parametrize("options", SAMPLING_OPTIONS)
def test_streamed_text_equals_the_whole_response_and_the_runs_text(client, runs, options):
    prompts = ["Der Hund", "Die alte Frau"]
    response = post(client, "generate", prompt=prompts, max_tokens=20, attention=True, **options)
    expected = [one for found in runs["gpt"].generate(prompts, max_tokens=20, **{"number": 1, **options}) for one in found]
    assert [one["text"] for one in response["results"]] == [one.text for one in expected]
    *events, last = stream(client, "generate", prompt=prompts, max_tokens=20, attention=True, **options)
    assert last["done"] == response
    for number, found in enumerate(response["results"]):
        own = [event for event in events if event["index"] == number]
        assert "".join(event["text"] for event in own) == found["continuation"]
        assert [event["token"] for event in own if event["token"]] == found["tokens"]
        attention = found["attention"]
        assert [step["token"] for step in attention["steps"]] == found["tokens"]
        np.testing.assert_allclose([step["probability"] for step in attention["steps"]], found["probabilities"], atol=1e-3)
        assert np.shape(attention["weights"]) == (len(attention["steps"]), len(attention["keys"]))
        np.testing.assert_allclose(np.sum(attention["weights"], 1), 1, atol=0.01)


def test_concurrent_requests_equal_one_by_one(client, runs):
    """With different prompts, lengths and sampling settings."""
    requests = [
        {
            "prompt": f"Der {'alte ' * (number % 4)}Hund",
            "max_tokens": 3 + number % 17,
            "seed": number,
            **({"temperature": 1.0} if number % 2 else {}),
        }
        for number in range(40)
    ]
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda one: post(client, "generate", **one)["results"][0]["text"], requests))
    assert found == [runs["gpt"].generate([one.pop("prompt")], **one)[0].text for one in requests]
    beams = [{"text": TEXTS[number % 2] + " now" * (number % 3), "beam": 1 + number % 4} for number in range(24)]
    with ThreadPoolExecutor(16) as clients:
        found = list(clients.map(lambda one: post(client, "translate", **one)["results"][0]["text"], beams))
    assert found == [runs["en-de"]._best([one["text"]], beam=one["beam"])[0].text for one in beams]


def test_caption_with_the_attention_of_each_word(client, runs, image, encode_image):
    run = runs["caption"]
    (found,) = post(client, "caption", image=encode_image(image), number=2, attention=True)["results"]
    expected = run.caption(image, number=2)
    assert [found["text"], *(one["text"] for one in found["alternatives"])] == [one.text for one in expected]
    expected_attention = run.align(image)
    assert found["attention"]["words"] == expected_attention.words and found["attention"]["grid"] == [4, 4]
    np.testing.assert_allclose(found["attention"]["maps"], expected_attention.weights, atol=1e-3)
    assert to_pixels(found["attention"]["image"]).shape == (32, 32, 3)
    *events, last = stream(client, "caption", image=encode_image(image), beam=1)
    assert "".join(event["text"] for event in events) == last["done"]["results"][0]["text"]


def to_pixels(data):
    return np.asarray(Image.open(BytesIO(base64.b64decode(data))))


def test_fill_classify_tag_match_and_draw_equal_the_run(client, runs, image, encode_image):
    filled = post(client, "fill", text="the [MASK] sleeps", number=3)["results"][0]
    (expected,) = runs["masked"].fill(["the [MASK] sleeps"], number=3)
    assert filled["text"] == expected.text and len(filled["candidates"][0]) == 3
    labels = post(client, "classify", model="classify", text=["the dog sleeps", "a cat"])["results"]
    assert [one["labels"][0]["label"] for one in labels] == [
        one.label for one in runs["classify"].classify(["the dog sleeps", "a cat"])
    ]
    (seen,) = post(client, "classify", model="kinds", image=encode_image(image, "JPEG"))["results"]
    assert sum(one["probability"] for one in seen["labels"]) == pytest.approx(1, abs=1e-3)
    tagged = post(client, "tag", text="the dog sleeps")["results"][0]
    assert tagged["words"] == ["the", "dog", "sleeps"] and len(tagged["labels"]) == 3
    matched = post(client, "match", image="data:image/png;base64," + encode_image(image), labels=["a red circle", "a blue star"])
    expected = runs["clip"].match(image, ["a red circle", "a blue star"])
    assert [one["label"] for one in matched["results"]] == [one.label for one in expected]
    (drawn,) = post(client, "draw", text="a red circle", seed=2)["results"]
    np.testing.assert_array_equal(to_pixels(drawn["image"]), runs["draw"].draw("a red circle", seed=2).image)


def test_embed_equals_the_runs_vectors(client, runs, image, encode_image):
    found = post(client, "embed", model="gpt", text=["Der Hund", "Die"])["results"]
    expected = runs["gpt"].embed(["Der Hund", "Die"])
    np.testing.assert_allclose([one["vectors"][0] for one in found], [one.vectors[0] for one in expected], atol=1e-5)
    words = post(client, "embed", model="masked", text="the dog sleeps", pool="words")["results"][0]
    assert words["tokens"] == ["the", "dog", "sleeps"] and len(words["vectors"]) == 3
    image = post(client, "embed", model="clip", image=encode_image(image))["results"][0]
    assert len(image["vectors"][0]) == 8 and image["tokens"] == []


def test_text_that_names_a_file_is_read_as_text(client, runs, tmp_path, image):
    """Otherwise a client could learn which files exist, or what is in them."""
    path = tmp_path / "there.png"
    image.save(path)
    there, gone = (post(client, "embed", model="clip", text=str(one))["results"][0] for one in (path, tmp_path / "gone.png"))
    expected = runs["clip"]._text_vectors([str(path)])[0]
    np.testing.assert_allclose(there["vectors"][0], expected, atol=1e-5)
    assert len(gone["vectors"][0]) == 8
    recorded = post(client, "attention", model="clip", text=str(path))
    assert recorded["grid"] is None and "1,1" not in recorded["keys"]
    for model, verb in (("kinds", "classify"), ("kinds", "explain"), ("clip", "explain"), ("caption", "attention")):
        response = client.post(f"/v1/{verb}", json={"model": model, "text": str(path)})
        assert response.status_code == 422 and "image" in response.json()["error"]["message"]


@pytest.mark.parametrize("name, text", [("en-de", TEXTS[1]), ("gpt", "Der alte Hund"), ("masked", "the [MASK] sleeps")])
def test_attention_equals_the_recorded_weights(client, runs, name, text):
    from regard.show.recording import attention_maps, record_attention

    response = post(client, "attention", model=name, text=text, digits=5)
    first = attention_maps(record_attention(runs[name], text))[0]
    assert (response["name"], response["queries"], response["keys"]) == (first.name, list(first.queries), list(first.keys))
    np.testing.assert_allclose(response["weights"], first.weights, atol=1e-4)
    part = post(client, "attention", model=name, text=text, layers=[1], heads=[2], digits=5)
    assert part["layers"] == [1] and part["heads"] == [2]
    np.testing.assert_allclose(part["weights"], first.weights[:1, 1:2], atol=1e-4)


def test_attention_files(client, runs, tmp_path, image, encode_image):
    def fetch(**body):
        response = client.post("/v1/attention", json=body)
        assert response.status_code == 200, response.text
        return response

    path = tmp_path / "a.attn"
    path.write_bytes(fetch(model="en-de", text=TEXTS[0], format="attn").content)
    assert regard.Record.read(path).tokens["source"]
    assert fetch(model="en-de", text=TEXTS[0], format="svg", view="model").text.lstrip().startswith("<?xml")
    assert fetch(model="en-de", text=TEXTS[0], format="svg", view="beam").headers["content-type"] == "image/svg+xml"
    assert Image.open(BytesIO(fetch(model="kinds", image=encode_image(image), format="png").content)).format == "PNG"
    seen = fetch(model="kinds", image=encode_image(image)).json()
    assert seen["grid"] == [4, 4] and len(seen["keys"]) >= 16 and to_pixels(seen["image"]).shape == (32, 32, 3)


def test_explanations_come_with_their_faithfulness(client, runs, image, encode_image):
    found = post(client, "explain", model="classify", text="the dog sleeps", method="attention,occlusion")
    assert set(found["attributions"]) == {"attention", "occlusion"}
    assert len(found["attributions"]["occlusion"]) == len(found["tokens"]) == 3
    assert "comprehensiveness" in found["faithfulness"]["occlusion"] and found["summary"][0] == found["verdict"]
    assert found["unit"] == "nats" and found["best"] in ("attention", "occlusion", None)
    one = post(client, "explain", model="classify", text="the dog sleeps", method="attention", layer=1, head=2)
    assert one["attention"] == "layer 1 of 1, head 2" and one["attributions"] != found["attributions"]
    seen = post(client, "explain", model="kinds", image=encode_image(image), method="attention")
    assert seen["grid"] == [4, 4] and len(seen["attributions"]["attention"]) == 16


def test_text_longer_than_the_model_is_rejected_with_a_message(client):
    response = client.post("/v1/attention", json={"model": "gpt", "text": "Hund " * 2000})
    assert response.status_code == 422 and "tokens" in response.json()["error"]["message"]
