"""Search by head: what is found is what the other views show, hits are the heaviest pairs, a word restricts the queries."""

import numpy as np
import pytest

from regard.cli import app
from regard.errors import UserError
from regard.show.recording import attention_maps, record_attention
from regard.show.search import MAX_HITS, RELATIONS, search_heads, search_texts, special_labels

TEXTS = ["the goat sees the cake", "A pig falls asleep.", "the dog sees the goat, but it sleeps"]
SPECIAL = {"<s>", "</s>"}


@pytest.fixture(scope="module")
def found(tiny_run):
    return search_heads(tiny_run, TEXTS)


def maps_of(run, text):
    return {maps.name: maps for maps in attention_maps(record_attention(run, text))}


def test_a_hit_is_the_heaviest_pair_of_words_in_the_map_that_the_heads_view_shows(tiny_run, found):
    maps = {text: maps_of(tiny_run, text) for text in TEXTS}
    assert len(found.heads) == sum(one.weights.shape[0] * one.weights.shape[1] for one in maps[TEXTS[0]].values())
    for head in found.heads:
        name = head.name.partition(", layer")[0]
        assert [hit.weight for hit in head.hits] == sorted((hit.weight for hit in head.hits), reverse=True)
        for hit in head.hits:
            shown = maps[TEXTS[hit.sentence]][name]
            weights = shown.weights[head.layer - 1, head.head - 1].copy()
            assert found.words(head, hit) == (shown.queries[hit.query], shown.keys[hit.key])
            weights[[query in SPECIAL for query in shown.queries]] = -1
            weights[:, [key in SPECIAL for key in shown.keys]] = -1
            weights[(shown.weights > 0).any((0, 1)).sum(-1) == 1] = -1  # the first token of the decoder sees itself alone
            assert hit.weight == pytest.approx(weights.max()) == weights[hit.query, hit.key]


def test_the_weight_on_a_relation_is_the_mean_over_the_queries_that_have_it(tiny_run, found):
    for head in (head for head in found.heads if head.kind == "encoder"):
        weights = [maps_of(tiny_run, text)["self-attention of the encoder"] for text in TEXTS]
        chosen = [one.weights[head.layer - 1, head.head - 1] for one in weights]
        previous = np.concatenate([np.diagonal(one, -1) for one in chosen])
        assert head.role.weights["previous word"][0] == pytest.approx(float(previous.mean()), abs=1e-5)
        first = np.concatenate([one[:, 0] for one in chosen])
        assert head.role.weights["first token"][0] == pytest.approx(float(first.mean()), abs=1e-5)
    assert {name for head in found.heads for name in head.role.weights} <= set(RELATIONS)
    assert all("next word" not in head.role.weights for head in found.heads if head.kind == "cross")


def test_a_word_restricts_the_queries_and_only_so_many_hits_are_kept(tiny_run):
    found = search_heads(tiny_run, [TEXTS[0]] * (MAX_HITS + 3), word="goat")
    encoder = [head for head in found.heads if head.kind == "encoder"]
    assert all(len(head.hits) == MAX_HITS for head in encoder)
    assert {found.words(head, hit)[0] for head in encoder for hit in head.hits} == {"goat"}
    assert special_labels(tiny_run) >= SPECIAL


def test_sentences_that_the_model_does_not_take_are_skipped_and_counted(tiny_run):
    assert search_heads(tiny_run, ["a dog " * 100, TEXTS[0]]).skipped == 1
    with pytest.raises(UserError, match="tokens"):
        search_heads(tiny_run, ["a dog " * 100])


def test_search_of_a_run_needs_no_texts_and_its_figure_names_the_selected_head(tiny_run, tmp_path):
    figure = tiny_run.show(view="search", head="encoder 2.1")
    assert figure.data.texts == search_texts(tiny_run, "valid", 64)
    assert "self-attention of the encoder, layer 2, head 1\n" in figure.text()
    page = figure.save(tmp_path / "search.html").read_text()
    assert page.index("self-attention of the encoder, layer 2, head 1</h2>") < page.index("weight on each relation (chance)</h2>")
    for name in ("a.svg", "a.png"):
        assert figure.save(tmp_path / name).stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "valid"], "--data and --number are for --view search"),
        (["--view", "search"], "--view search reads many sentences"),
        (["--view", "search", "--head", "9.9"], "--view search reads many sentences"),
    ],
)
def test_options_that_contradict_the_search_are_refused(tiny_run, options, message):
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, ["show", str(tiny_run.folder), "a text", "--terminal", *options])
    assert done.exit_code != 0 and message in str(done.exception or done.output)


def test_command_searches_a_file_by_head(tiny_run, tmp_path):
    from typer.testing import CliRunner

    file = tmp_path / "lines.txt"
    file.write_text("\n".join(TEXTS) + "\n")
    words = ["show", str(tiny_run.folder), "--view", "search", "--data", str(file), "--head", "cross 1.2", "--terminal"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "heads over 3 sentences" in done.output and "cross-attention, layer 1, head 2\n" in done.output
    assert all(text in done.output for text in TEXTS)
