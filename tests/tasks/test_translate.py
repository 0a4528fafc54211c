"""Translation: decoding, scores, alignments and starter recipes of a small trained run."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import regard
from regard.batches.ragged import Ragged
from regard.batches.rows import TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.text_files import read_pairs
from regard.errors import UserError
from regard.run.train import train
from regard.tasks import parse_recipe, starter_recipe
from regard.tasks.shared.long_texts import fitting_parts, split_tokens
from regard.training.losses import sequence_log_probs


def test_batched_translation_equals_one_by_one_in_any_order(tiny_run):
    texts = tiny_run.data.valid.source[:12]
    together = tiny_run._best(texts)
    assert [t.text for t in tiny_run._best(texts[::-1])][::-1] == [t.text for t in together]
    assert [tiny_run._best([text])[0].text for text in texts[:4]] == [t.text for t in together[:4]]
    assert tiny_run._best(["", texts[0], "  "])[0].text == "" == tiny_run._best(["", texts[0], "  "])[2].text


def test_translation_score_equals_the_rescored_log_probability(tiny_run):
    texts = tiny_run.data.valid.source[:10]
    for text, found in zip(texts, tiny_run._best(texts, length_penalty=0.0)):
        rows = TranslationRows(
            TokenStore(Ragged.from_rows(tiny_run.tokenizers[0].encode([text]))), TokenStore(Ragged.from_rows([found.tokens]))
        )
        rescored = float(sequence_log_probs(tiny_run.model, rows.batch(np.array([0]), 0, 0))[0])
        assert found.score == pytest.approx(rescored, abs=1e-3)


def test_n_best_translations_are_distinct_and_sorted_by_score(tiny_run):
    for found in tiny_run.translate(tiny_run.data.valid.source[:5], beam=4, number=4):
        assert len({tuple(t.tokens) for t in found}) == len(found) > 1
        assert [t.score for t in found] == sorted((t.score for t in found), reverse=True)
    with pytest.raises(UserError, match="set --beam 3"):
        tiny_run.translate(["x"], beam=2, number=3)


def test_sampled_translations_are_reproducible_by_seed(tiny_run):
    texts = tiny_run.data.valid.source[:5]

    def sample(seed):
        return [t.text for t in tiny_run._best(texts, temperature=1.5, seed=seed)]

    assert sample(1) == sample(1) != sample(2)


def test_alignment_weights_cover_the_words_of_source_and_translation(tiny_run):
    texts = tiny_run.data.valid.source[:3]
    for text, found, translation in zip(texts, tiny_run.align(texts), tiny_run._best(texts)):
        assert found.source == text.split() and found.target == translation.text.split()
        assert found.weights.shape == (2, 2, len(found.target), len(found.source))
        sums = found.weights.sum(-1)
        assert np.all((np.abs(sums - 1) < 1e-5) | (sums == 0))


def test_encoder_alignment_equals_recorded_attention_summed_over_tokens(tiny_run):
    """Sum the recorded attention over the tokens of each word, without the end token."""
    texts = ["The dog sleeps.", "The cat saw the dog because it slept."]
    for text, found in zip(texts, tiny_run.align(texts, kind="encoder")):
        assert found.source == found.target == text.split()
        assert found.weights.shape == (2, 2, len(found.source), len(found.source))
        np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)
        with torch.no_grad(), regard.watch(tiny_run.model, kinds=r"^encoder\.") as seen:
            tiny_run.model(**tiny_run._inputs(text))
        raw, pieces = seen.stack()[:, 0], [*tiny_run.tokenizers[0].word_ids(tiny_run._ids([text])[0]), -1]
        assert pieces.count(0) == 1, "the first word is one token"
        row = raw[..., 0, :].numpy()  # (L, H, S)
        expected = np.stack([row[..., np.array(pieces) == word].sum(-1) for word in range(len(found.source))], -1)
        np.testing.assert_allclose(found.weights[:, :, 0], expected / expected.sum(-1, keepdims=True), atol=1e-5)


def test_text_longer_than_max_length_is_refused(tiny_run):
    with pytest.raises(UserError, match=r"line 2 has \d+ tokens, the model takes 48"):
        tiny_run._best(["The dog sleeps.", "The dog sleeps. " * 40])


def test_a_long_text_is_truncated_or_split_and_the_others_are_translated_as_ever(tiny_run):
    short, long = "The dog sleeps.", "The dog sleeps. " * 40
    limit = 48 - tiny_run._special_tokens.num_added
    cut = tiny_run.tokenizers[0].decode([tiny_run.tokenizers[0].encode([long])[0][:limit]])[0]
    alone = [one.text for one in tiny_run.translate([short, cut])]
    assert [one.text for one in tiny_run.translate([short, long], too_long="truncate")] == alone
    first, found = tiny_run.translate([short, long], too_long="split")
    assert first.text == alone[0]
    parts = fitting_parts(tiny_run, [long], "split")[0]
    texts = tiny_run.tokenizers[0].decode(parts)
    assert all(text.endswith(".") for text in texts) and " ".join(texts) == long.strip()
    each = tiny_run.translate(texts)
    assert found.text == " ".join(one.text for one in each)
    assert found.score == pytest.approx(sum(one.score for one in each), abs=1e-3)
    with pytest.raises(UserError, match="too_long = 'cut': choose from error, truncate, split"):
        tiny_run.translate(short, too_long="cut")


@given(st.text("ab .", max_size=60), st.integers(1, 9))
def test_the_parts_of_a_split_text_fit_and_joined_are_its_tokens(text, limit):
    ids = [ord(letter) for letter in text if letter != " "]
    words = [number for number, word in enumerate(text.split()) for _ in word]
    parts = split_tokens(text, ids, words, limit)
    assert [token for part in parts for token in part] == ids
    assert all(0 < len(part) <= limit for part in parts) or not ids
    assert len(parts) <= max(1, len(ids))


def test_several_sampled_translations_begin_with_the_single_one_whatever_is_beside(tiny_run):
    texts = tiny_run.data.valid.source[:4]

    def sample(texts, **options):
        return [[one.text for one in several] for several in tiny_run.translate(texts, temperature=1.5, seed=4, **options)]

    found = sample(texts, number=3)
    assert [len(several) for several in found] == [3] * 4
    assert len({text for several in found for text in several}) > 4
    assert [several[:1] for several in found] == sample(texts, number=1)
    assert sample(texts[2:], number=3, place=2) == found[2:]


def test_separate_source_and_target_vocabularies(tiny_settings, tmp_path):
    settings = {
        **tiny_settings,
        "tokens": {"size": 300, "joint": False},
        "model": {**tiny_settings["model"], "tie": "target"},
        "train": {**tiny_settings["train"], "steps": 2, "evaluate_every": 2, "save_every": 2},
    }
    run = train(settings, tmp_path / "two", device="cpu")
    assert run.tokenizers[0].to_json() != run.tokenizers[1].to_json()
    assert regard.load(run.folder, device="cpu")._best(["The dog sleeps."]) == run._best(["The dog sleeps."])


def test_starter_recipe_of_translation_files_trains(tmp_path):
    from regard.worlds import bilingual

    bilingual.write(tmp_path / "world", 300, 1, 1)
    text = starter_recipe("translate", [tmp_path / "world" / "train.en", tmp_path / "world" / "train.de"]).to_toml()
    recipe = parse_recipe(text)
    sources = set(read_pairs([tmp_path / "world" / "train.en"] * 2).source)
    assert recipe.model.preset == "tiny" and recipe.data.held_out == len(sources) // 20
    quick = [
        "train.steps=2",
        "train.evaluate_every=2",
        "train.save_every=2",
        "train.evaluate_sentences=2",
        "tokens.size=200",
        "model.width=16",
    ]
    run = train(parse_recipe(text, quick), tmp_path / "run", device="cpu")
    assert run._best(["The dog sleeps."])
