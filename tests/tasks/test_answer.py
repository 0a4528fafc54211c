"""Question answering: training on decomposed letters and unusual white space, scoring, loading and the command line."""

import json
import random

import numpy as np
import pytest

import regard
from regard.corpus.questions import read_questions
from regard.errors import UserError
from regard.run.card import card
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train

KINDS = {
    "who?": ["Åsa", "A\u030ake\u0301", "кот", "dog"],
    "where?": ["cafe\u0301", "Straße", "\u1112\u1161\u11ab\u1100\u116e\u11a8", "zoo"],
    "what?": ["Äpfel", "😀", "ﬁns", "tea"],
    "when?": ["e\u0301te\u0301", "Ωm", "x\u0301y", "noon"],
}
OTHERS = ["und", "naïve", "o\u0308d", "so", "is"]
SPACES = [" ", "  ", "\r\n", "\n", "\u00a0", " \t"]
STACK = {
    "kind": "transformer",
    "layers": 1,
    "width": 64,
    "heads": 2,
    "feed_forward": 128,
    "max_length": 16,
    "segments": 2,
    "positions": {"kind": "rotary"},
}
TRAIN = {
    "steps": 300,
    "tokens_per_batch": 1024,
    "evaluate_every": 150,
    "save_every": 300,
    "log_every": 50,
    "optimizer": {"learning_rate": 3e-3},
    "schedule": {"warmup_steps": 10},
    "regularize": {"dropout": 0.0, "label_smoothing": 0.0},
}


def example(number):
    """Return a question of one kind and a context that holds one word of every kind among other words."""
    rng = random.Random(number)
    words = {kind: rng.choice(choices) for kind, choices in KINDS.items()}
    chosen = [*words.values(), *rng.choices(OTHERS, k=10)]
    rng.shuffle(chosen)
    starts, context = {}, ""
    for word in chosen:
        starts[word], context = len(context), context + word + rng.choice(SPACES)
    kind = rng.choice(list(KINDS))
    return {"question": kind, "context": context, "answers": [{"text": words[kind], "start": starts[words[kind]]}]}


def settings(root, **changes):
    config = {
        "task": "answer",
        "data": {"root": str(root), "train": ["train.jsonl"], "valid": ["valid.jsonl"]},
        "tokens": {"size": 100},
        "model": STACK,
        "train": TRAIN,
    }
    return {name: {**part, **changes.get(name, {})} if isinstance(part, dict) else part for name, part in config.items()}


@pytest.fixture(scope="module")
def question_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    for name, numbers in (("train", range(1500)), ("valid", range(2000, 2080))):
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(example(number)) for number in numbers), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def run(question_folder, tmp_path_factory):
    trained = train(settings(question_folder), tmp_path_factory.mktemp("answer") / "run", device="cpu")
    evaluate(trained)
    return trained


@pytest.fixture(scope="module")
def valid_questions(run):
    valid = run.data.valid
    return valid.question, valid.context, [gold for (gold,) in valid.answer_texts()]


def test_answers_are_correct_and_their_spans_index_the_context(run, valid_questions):
    questions, contexts, golds = valid_questions
    scores = json.loads((run.folder / "scores.json").read_text())["valid"]
    assert scores["exact_match"]["low"] > 80 and scores["f1"]["low"] > 80 and "norm:squad" in scores["f1"]["signature"]
    found = run.answer(questions, contexts)
    exact = [best.text == gold for best, gold in zip(found, golds)]
    assert np.mean(exact) > 0.85, "exact characters, without SQuAD normalization"
    for best, context in zip(found, contexts):
        assert context[best.start : best.end] == best.text and 0 < best.probability <= 1
    assert (run.folder / "outputs" / "valid.txt").read_text(encoding="utf-8").splitlines() == [best.text for best in found]


def test_batched_answers_equal_one_by_one_in_any_order(run, valid_questions):
    questions, contexts, _ = (part[:12] for part in valid_questions)
    together = run.answer(questions, contexts, number=3)
    for question, context, best in zip(questions, contexts, together):
        alone = run.answer(question, context, number=3)
        assert [(one.text, one.start, one.end) for one in best] == [(one.text, one.start, one.end) for one in alone]
        assert [one.probability for one in best] == pytest.approx([one.probability for one in alone], abs=1e-5)
        assert run.answer(question, context).text == best[0].text
    assert [one.text for one in run.answer(questions[::-1], contexts[::-1])] == [best[0].text for best in together[::-1]]


def test_answers_from_sliding_windows_equal_answers_from_one_window(run, valid_questions):
    """Compare with a larger max_length, and test contexts ten times as long as in training."""
    questions, contexts, _ = valid_questions
    rows = run._encode(run.data.valid)
    assert len(rows) > 2 * len(questions) and rows.lengths(0, 0)[0].max() == 16
    wide = regard.load(run.folder, device="cpu")
    object.__setattr__(wide.recipe.model, "max_length", 64)
    assert len(wide._encode(wide.data.valid)) == len(questions)
    cut, whole = (one.answer(questions, contexts) for one in (run, wide))
    assert np.mean([(a.start, a.end) == (b.start, b.end) for a, b in zip(whole, cut)]) > 0.85
    before, after = "is und " * 60, " so is" * 30
    late = run.answer(questions, [before + context + after for context in contexts])
    assert np.mean([a.text == b.text and a.start == b.start + len(before) for a, b in zip(late, cut)]) > 0.85


def test_candidate_answers_are_distinct_and_limited_by_max_answer_tokens(run, valid_questions):
    question, context = valid_questions[0][0], valid_questions[1][0]
    found = run.answer(question, context, number=500)
    assert len({(one.start, one.end) for one in found}) == len(found) > 60
    assert [one.probability for one in found] == sorted((one.probability for one in found), reverse=True)
    assert sum(one.probability for one in found) <= 1 + 1e-9
    object.__setattr__(run.recipe.answering, "max_answer_tokens", 1)
    try:
        short = run.answer(question, context, number=500)
        tokens = {tuple(span) for span in run.tokenizers[0].encode_spans([context])[0][1].tolist()}
        assert {(one.start, one.end) for one in short} <= tokens
    finally:
        object.__setattr__(run.recipe.answering, "max_answer_tokens", 30)


def test_answers_are_never_spans_of_the_question(run):
    found = run.answer("who? dog", "tea zoo", number=100)
    assert {one.text for one in found} <= {"tea zoo"[a:b] for a in range(7) for b in range(a + 1, 8)}


def test_unanswerable_allows_an_empty_answer(run):
    with_none = run.answer("who?", "tea so", number=100, unanswerable=True)
    assert [(one.start, one.end) for one in with_none if not one.text] == [(0, 0)]
    assert sum(one.probability for one in with_none) == pytest.approx(1) and run.answer("who?", "tea so").text
    object.__setattr__(run.recipe.answering, "no_answer_threshold", -1e9)
    try:
        nothing = run.answer("who?", "so dog tea", unanswerable=True)
        assert (nothing.text, nothing.start, nothing.end) == ("", 0, 0) and run.answer("who?", "so dog tea").text == "dog"
    finally:
        object.__setattr__(run.recipe.answering, "no_answer_threshold", 0.0)


def test_answer_command_output_and_errors(run, valid_questions, run_cli):
    lines = [f"{question}\t{' '.join(context.split())}" for question, context, _ in zip(*(part[:3] for part in valid_questions))]
    plain = run_cli("answer", run.folder, stdin="\n".join(lines) + "\n")
    assert plain == run_cli("answer", run.folder, *lines) and len(plain) == 3
    found = [json.loads(line) for line in run_cli("answer", run.folder, *lines, "--json", "--top", 2)]
    assert len(found) == 6 and set(found[0]) == {"text", "start", "end", "probability"} and found[0]["text"] == plain[0]
    tabbed = run_cli("answer", run.folder, "--question", "wh\to?", "--context", "tea\tdog\nso", "--json")
    assert json.loads(tabbed[0])["text"] in "tea\tdog\nso" and len(tabbed) == 1
    for words, message in [
        (["--question", "x"], "go together"),
        (["a\tb", "--question", "x", "--context", "y"], "not both"),
        (["a\tb", "no tab"], "line 2 has no tab"),
        (["a\t "], "line 1 has an empty context"),
        (["\tb"], "line 1 has an empty question"),
    ]:
        with pytest.raises(UserError, match=message):
            run_cli("answer", run.folder, *words)
    with pytest.raises(UserError, match=r"answers questions .task = 'answer'.; it cannot classify"):
        run_cli("classify", run.folder, "text")
    with pytest.raises(UserError, match="2 questions but 1 contexts"):
        run.answer(["a", "b"], ["c"])


def test_loaded_run_answers_like_the_trained_run_and_has_a_card(run, valid_questions):
    again = regard.load(run.folder, device="cpu")
    assert again.answer(*valid_questions[:2], number=2) == run.answer(*valid_questions[:2], number=2)
    text = card(run)
    assert "regard answer" in text and "| exact match |" in text and "| f1 |" in text and "max_answer_tokens" in text
    (rows,) = compare_runs_of(run, again)
    assert [row["metric"] for row in rows] == ["exact_match"] * 2 and rows[1]["p_value"] == 1.0


def compare_runs_of(one, other):
    one.data.tests["valid"] = one.data.valid
    return compare_runs([one, other]).values()


def test_answer_run_initialized_from_a_masked_run(question_folder, tmp_path):
    """Load the encoder and the tokenizer, which has an additional mask token."""
    text = [" ".join(example(number)["context"].split()) for number in range(200)]
    (tmp_path / "text.txt").write_text("\n".join(text), encoding="utf-8")
    short = {**TRAIN, "steps": 2, "evaluate_every": 2}
    data = {"root": str(tmp_path), "train": ["text.txt"], "held_out": 20, "too_long": "truncate"}
    masked = train(
        {"task": "masked", "data": data, "tokens": {"size": 100}, "model": STACK, "train": short},
        tmp_path / "masked",
        device="cpu",
    )
    init_from = {"run": str(masked.folder), "modules": ["encoder."]}
    train_settings = {**short, "steps": 1, "evaluate_every": 1, "optimizer": {"learning_rate": 1e-9}, "init_from": init_from}
    trained = train(settings(question_folder, train=train_settings), tmp_path / "run", device="cpu")
    assert trained.tokenizers[0].to_json() == masked.tokenizers[0].to_json()
    for one, other in zip(trained.embed(["dog zoo"], pool="words"), masked.embed(["dog zoo"], pool="words")):
        assert np.allclose(one.vectors, other.vectors, atol=1e-5)


@pytest.mark.parametrize("impossible", [False, True])
def test_starter_recipe_of_a_squad_file_trains(tmp_path, impossible, run_cli):
    paragraphs = []
    for i, row in enumerate(map(example, range(60))):
        gold = [{"text": answer["text"], "answer_start": answer["start"]} for answer in row["answers"]]
        question = {"id": str(i), "question": row["question"], "answers": [] if impossible and i % 3 == 0 else gold}
        paragraphs.append({"context": row["context"], "qas": [question]})
    (tmp_path / "train.json").write_text(json.dumps({"data": [{"paragraphs": paragraphs}]}))
    (tmp_path / "mine.toml").write_text("\n".join(run_cli("new", "--minutes", "0", "answer", "--data", tmp_path / "train.json")))
    short = ["train.steps=2", "train.evaluate_every=2", "model.width=16", "model.layers=1", "model.feed_forward=16"]
    trained = train(tmp_path / "mine.toml", tmp_path / "run", overrides=short, device="cpu")
    assert trained.recipe.data.unanswerable == impossible and trained.recipe.model.segments == 2
    (result,) = evaluate(trained)
    assert set(result.scores) == {"exact_match", "f1"} and len(result.outputs) == len(result.examples)
    notes = trained._score("train", read_questions([tmp_path / "train.json"])).notes
    assert any("; 20 without one, left unanswered" in note for note in notes) == impossible


@pytest.mark.parametrize(
    "change, message",
    [
        ({"train": {"regularize": {"bpe_dropout": 0.1}}}, "an answer is a span of tokens"),
        ({"model": {"max_length": 6}}, "need at least 8"),
        ({"model": {"kind": "recurrent"}}, "model.kind = 'recurrent'"),
        ({"data": {"too_long": "drop"}}, "data.too_long = 'drop': input should be 'truncate'"),
        ({"data": {"stride": 0}}, "data.stride = 0"),
        ({"data": {"train": ["none.jsonl"]}}, r"none.jsonl:1 has no answer; set data.unanswerable = true"),
    ],
)
def test_invalid_answer_settings_are_refused_before_training(question_folder, tmp_path, change, message):
    (question_folder / "none.jsonl").write_text(json.dumps({**example(1), "answers": []}))
    with pytest.raises(UserError, match=message):
        train(settings(question_folder, **change), tmp_path / "run", device="cpu")
