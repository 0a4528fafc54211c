"""A string is one text, a list is several: one in, one out."""

import numpy as np
import pytest

from regard.errors import UserError
from regard.tasks.shared.labels import Classification, Prediction
from regard.tasks.shared.one_or_many import as_several, best_or_ranked, is_one, one_or_many


def test_a_string_is_one_text_and_a_list_is_several():
    assert one_or_many("ab", lambda texts: [text.upper() for text in texts]) == "AB"
    assert one_or_many(["ab"], lambda texts: [text.upper() for text in texts]) == ["AB"]
    assert one_or_many((text for text in "ab"), lambda texts: [text.upper() for text in texts]) == ["A", "B"]
    assert one_or_many([], lambda texts: texts) == []


def test_an_image_is_one_and_a_batch_of_images_is_several():
    pixels = np.zeros((2, 4, 4, 3), np.uint8)
    assert is_one(pixels[0]) and not is_one(pixels) and len(as_several(pixels)) == 2


def test_a_number_of_results_adds_a_list_per_input():
    def search(texts):
        return [[f"{text}{i}" for i in range(2)] for text in texts]

    assert best_or_ranked("a", None, search) == "a0" and best_or_ranked("a", 2, search) == ["a0", "a1"]
    assert best_or_ranked(["a", "b"], None, search) == ["a0", "b0"]
    assert best_or_ranked(["a", "b"], 2, search) == [["a0", "a1"], ["b0", "b1"]]


@pytest.mark.parametrize(
    ("given", "message"), [(3, "3 is neither a text"), (b"a", "neither"), (None, "None"), (["a", 2], "item 2")]
)
def test_what_is_no_text_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        as_several(given)


def test_one_translation_alignment_and_embedding_equal_those_of_a_list(tiny_run):
    text = "The dog sleeps."
    assert tiny_run.translate(text) == tiny_run.translate([text])[0] == tiny_run.translate(text, number=1)[0]
    assert tiny_run.translate([text], beam=2, number=2) == [tiny_run.translate(text, beam=2, number=2)]
    assert str(tiny_run.translate(text)) == tiny_run.translate(text).text
    assert tiny_run.align(text).target == tiny_run.align([text])[0].target
    np.testing.assert_array_equal(tiny_run.embed(text).vectors, tiny_run.embed([text])[0].vectors)
    assert str(tiny_run.embed(text)).startswith(f"{text}\t") and str(tiny_run.embed(text)).endswith(" …")
    with pytest.raises(UserError, match="2 texts but 1 references"):
        tiny_run.align([text, text], ["Der Hund schläft."])


def test_a_classification_is_its_best_label_and_holds_all_of_them():
    found = Classification([Prediction("b", 0.75), Prediction("a", 0.25)])
    assert (found.label, found.probability, str(found)) == ("b", 0.75, "b 0.750")
    assert [one.label for one in found] == ["b", "a"]
