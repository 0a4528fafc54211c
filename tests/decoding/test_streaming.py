"""Laws of streamed text: no piece is ever taken back, and the text ends before the first stop string."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library
from tokenizers import decoders, models

from regard.decoding.streaming import TextStreamer
from regard.tokens.tokenizer import Tokenizer


def tokenizer_with(pieces):
    """A tokenizer with exactly these tokens, and their ids."""
    numbers = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    library = Library(models.WordLevel(numbers, unk_token="?"))
    library.decoder = decoders.Fuse()
    return Tokenizer(library), [numbers[piece] for piece in pieces]


def split(text, places):
    edges = sorted({0, len(text), *(place for place in places if place < len(text))})
    return [text[a:b] for a, b in pairwise(edges)]


def stream(prompt, pieces, stops):
    """The piece emitted at each token and at the end, and how many tokens it took."""
    tokenizer, ids = tokenizer_with([*prompt, *pieces])
    streamer = TextStreamer(tokenizer, ids[: len(prompt)], stops)
    emitted = []
    for number in ids[len(prompt) :]:
        emitted.append(streamer.add(number))
        if streamer.finished:
            break
    else:
        emitted.append(streamer.end())
    assert streamer.finished and streamer.text == "".join(emitted) and streamer.tokens == ids[len(prompt) :][: len(emitted)]
    return emitted, len(streamer.tokens)


def cut(text, stops):
    places = [text.find(stop) for stop in stops if stop in text]
    return text[: min(places)] if places else text.rstrip()


TEXTS = st.text("ab \n", max_size=14)
STOPS = st.lists(st.text("ab \n", min_size=1, max_size=4), max_size=3)


@settings(max_examples=400)
@given(TEXTS, st.sets(st.integers(1, 13)), STOPS, st.sampled_from([[], ["x"], ["x", " "]]))
def test_text_ends_before_the_first_stop_string_wherever_tokens_start(text, places, stops, prompt):
    emitted, _ = stream(prompt, split(text, places), stops)
    assert "".join(emitted) == cut(text if prompt else text.lstrip(), stops)


@settings(max_examples=400)
@given(TEXTS, st.sets(st.integers(1, 13)), st.text("ab \n", min_size=1, max_size=4))
def test_no_token_is_read_after_a_stop_string(text, places, stop):
    pieces = split(text, places)
    ends = text.find(stop) + len(stop) if stop in text else len(text)
    needed = next(n for n in range(len(pieces) + 1) if len("".join(pieces[:n])) >= ends)
    assert stream(["x"], pieces, [stop])[1] == max(needed, 1 if text else 0)


@given(TEXTS, st.sets(st.integers(1, 13)))
def test_everything_but_trailing_white_space_is_emitted_at_once(text, places):
    pieces = split(text, places)
    emitted, _ = stream(["x"], pieces, [])
    assert all("".join(emitted[:n]) == "".join(pieces[:n]).rstrip() for n in range(len(pieces) + 1))


def test_partial_stop_string_is_held_back_until_it_cannot_match():
    assert stream(["x"], ["a", "b", "c", "d"], ["bcb"])[0] == ["a", "", "", "bcd", ""]
    assert stream(["x"], ["a", "b", "c", "b", "d"], ["bcb"])[0] == ["a", "", "", ""]
    assert stream(["x"], ["a", "a", "b"], ["aab"])[0] == ["", "", ""]
    assert stream(["x"], ["a", "b"], ["bc"])[0] == ["a", "", "b"]
    assert stream(["x"], ["a", " ", "b"], ["b"])[0] == ["a", "", " "]


def test_stop_string_inside_another_waits_for_the_one_that_started_first():
    assert "".join(stream(["x"], ["a", "b", "c", "d"], ["c", "bcd"])[0]) == "a"
    assert "".join(stream(["x"], ["a", "b", "c", "e"], ["c", "bcd"])[0]) == "ab"
    assert "".join(stream(["x"], ["a", "b", "c"], ["c", "bcd"])[0]) == "ab"


def test_stop_string_in_the_prompt_is_ignored():
    assert "".join(stream(["b", "b"], ["b", "a"], ["bb"])[0]) == "ba"
