"""Laws of a text while it is written: what is shown is never taken back, and it ends before the first stop string."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from regard.decoding.streaming import SamplingParams, TextStreamer
from regard.errors import UserError
from regard.tokens.tokenizer import Tokenizer


def tokens_of(pieces):
    """A tokenizer whose tokens are exactly these, and their ids."""
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    library = Library(models.WordLevel(numbers, unk_token="?"))
    library.decoder = decoders.Fuse()
    return Tokenizer(library), [numbers[piece] for piece in pieces]


def split(text, places):
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


def written(prompt, pieces, stops):
    """What was shown at each token and at the end, and how many tokens it took."""
    tokenizer, ids = tokens_of([*prompt, *pieces])
    writer = TextStreamer(tokenizer, ids[: len(prompt)], stops)
    shown = []
    for number in ids[len(prompt) :]:
        shown.append(writer.add(number))
        if writer.ended:
            break
    else:
        shown.append(writer.end())
    assert writer.ended and writer.written == "".join(shown) and writer.tokens == ids[len(prompt) :][: len(shown)]
    return shown, len(writer.tokens)


def cut(text, stops):
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text.rstrip()


SOME = st.text("ab \n", max_size=14)
STOPS = st.lists(st.text("ab \n", min_size=1, max_size=4), max_size=3)


@settings(max_examples=400)
@given(SOME, st.sets(st.integers(1, 13)), STOPS, st.sampled_from([[], ["x"], ["x", " "]]))
def test_a_text_ends_before_the_first_stop_string_wherever_tokens_begin(text, places, stops, prompt):
    shown, _ = written(prompt, split(text, places), stops)
    assert "".join(shown) == cut(text if prompt else text.lstrip(), stops)


@settings(max_examples=400)
@given(SOME, st.sets(st.integers(1, 13)), st.text("ab \n", min_size=1, max_size=4))
def test_no_token_is_read_behind_a_stop_string(text, places, stop):
    pieces = split(text, places)
    ends = text.find(stop) + len(stop) if stop in text else len(text)
    needed = next(n for n in range(len(pieces) + 1) if len("".join(pieces[:n])) >= ends)
    assert written(["x"], pieces, [stop])[1] == max(needed, 1 if text else 0)


@given(SOME, st.sets(st.integers(1, 13)))
def test_all_but_white_space_at_the_end_is_shown_at_once(text, places):
    pieces = split(text, places)
    shown, _ = written(["x"], pieces, [])
    assert all("".join(shown[:n]) == "".join(pieces[:n]).rstrip() for n in range(len(pieces) + 1))


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none():
    assert written(["x"], ["a", "b", "c", "d"], ["bcb"])[0] == ["a", "", "", "bcd", ""]
    assert written(["x"], ["a", "b", "c", "b", "d"], ["bcb"])[0] == ["a", "", "", ""]
    assert written(["x"], ["a", "a", "b"], ["aab"])[0] == ["", "", ""]
    assert written(["x"], ["a", "b"], ["bc"])[0] == ["a", "", "b"]
    assert written(["x"], ["a", " ", "b"], ["b"])[0] == ["a", "", " "]


def test_a_stop_string_inside_another_waits_for_the_one_that_began_first():
    assert "".join(written(["x"], ["a", "b", "c", "d"], ["c", "bcd"])[0]) == "a"
    assert "".join(written(["x"], ["a", "b", "c", "e"], ["c", "bcd"])[0]) == "ab"
    assert "".join(written(["x"], ["a", "b", "c"], ["c", "bcd"])[0]) == "ab"


def test_a_stop_string_is_looked_for_behind_the_prompt_only():
    assert "".join(written(["b", "b"], ["b", "a"], ["bb"])[0]) == "ba"


@pytest.mark.parametrize(
    "given_, said",
    [
        ({"max_tokens": 0}, "max_tokens = 0: should be at least 1"),
        ({"max_tokens": 10**20}, "max_tokens = 100000000000000000000: "),
        ({"temperature": 0.0}, "temperature = 0.0: should be finite and at least 0.000001"),
        ({"temperature": -1.0}, "temperature = -1.0: "),
        ({"temperature": math.nan}, "temperature = nan: "),
        ({"temperature": math.inf}, "temperature = inf: "),
        ({"temperature": 1.0, "top_p": 0.0}, "top_p = 0.0: should be more than 0 and at most 1"),
        ({"temperature": 1.0, "top_p": 1.1}, "top_p = 1.1: "),
        ({"temperature": 1.0, "top_p": math.nan}, "top_p = nan: "),
        ({"top_k": -1}, "top_k = -1: should be at least 0"),
        ({"top_k": 5}, "top_k = 5: says what to draw from, and nothing is drawn without a temperature"),
        ({"top_p": 0.9}, "top_p = 0.9: says what to draw from"),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: should be from 0.001 to 1000"),
        ({"repetition_penalty": -1.2}, "repetition_penalty = -1.2: "),
        ({"repetition_penalty": math.inf}, "repetition_penalty = inf"),
        ({"stop": ["a", ""]}, "stop = '': an empty text"),
        ({"stop": ""}, "stop = '': an empty text"),
        ({"number": 0, "temperature": 1.0}, "number = 0: should be at least 1"),
        ({"number": 2}, "number = 2: without a temperature"),
        ({"seed": 10**30}, "seed = 1000000000000000000000000000000: should have at most 18 digits"),
    ],
)
def test_settings_out_of_range_are_refused_in_one_line(given_, said):
    with pytest.raises(UserError) as refused:
        SamplingParams(**given_)
    assert str(refused.value).startswith(said) and "\n" not in str(refused.value)


def test_one_stop_string_need_not_be_a_list():
    assert SamplingParams(stop="end").stops == ("end",) and SamplingParams(stop=["a", "b"]).stops == ("a", "b")
