"""Questions: SQuAD's two versions and lines of JSON say the same; what is wrong is named; the world knows its answers."""

import gzip
import json
import lzma

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.corpus.dataset import hold_out, read_dataset, unique_aligned_words
from regard.corpus.questions import read_questions
from regard.errors import UserError
from regard.recipe import QuestionData
from regard.worlds import bilingual

CONTEXT = "Die Köni\u0301gin kauft\r\nsieben Äpfel, 😀 und Äpfel."
ASKED = [("what?", [("sieben", 20)]), ("which?", [("Äpfel", 27), ("Äpfel", 40), ("Äpfel", 27)]), (" why?", [])]


def squad(version):
    """As SQuAD has them; 1.1 without the question that has no answer."""
    qas = [
        {
            "id": f"q{i}",
            "question": question,
            "answers": [{"text": text, "answer_start": start} for text, start in answers],
            **({"is_impossible": not answers, "plausible_answers": []} if version == "v2.0" else {}),
        }
        for i, (question, answers) in enumerate(ASKED)
        if answers or version == "v2.0"
    ]
    return {"version": version, "data": [{"title": "x", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}


def flat(columns=False):
    def answers(found):
        if columns:
            return {"text": [text for text, _ in found], "answer_start": [start for _, start in found]}
        return [{"text": text, "start": start} for text, start in found]

    rows = [{"question": question, "context": CONTEXT, "answers": answers(found)} for question, found in ASKED]
    return "\n".join(map(json.dumps, rows))


def test_every_file_format_and_compression_gives_the_same_questions(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps(squad("v2.0"), ensure_ascii=False, indent=1), encoding="utf-8")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(json.dumps(squad("v2.0")).encode()))
    (tmp_path / "c.jsonl.xz").write_bytes(lzma.compress(b"\xef\xbb\xbf" + flat().encode()))
    (tmp_path / "d.jsonl").write_text(flat(columns=True) + "\n\n")
    for path in sorted(tmp_path.iterdir()):
        found = read_questions([path])
        assert found.question == ["what?", "which?", "why?"] and found.context == [CONTEXT] * 3
        assert found.answers == [[(20, 26)], [(27, 32), (40, 45)], []] and found.answer_texts() == [
            ["sieben"],
            ["Äpfel", "Äpfel"],
            [],
        ]
    assert read_questions([tmp_path / "a.json"]).where(1) == f"{tmp_path / 'a.json'} question q1"
    assert read_questions([tmp_path / "a.json", tmp_path / "d.jsonl"]).where(4) == f"{tmp_path / 'd.jsonl'}:2"
    (tmp_path / "old.json").write_text(json.dumps(squad("1.1")))
    assert read_questions([tmp_path / "old.json"], unanswerable=False).answers == [[(20, 26)], [(27, 32), (40, 45)]]


def change(what):
    """SQuAD's file with one thing changed."""
    whole = squad("v2.0")
    paragraph = whole["data"][0]["paragraphs"][0]
    what(paragraph, paragraph["qas"][0])
    return json.dumps(whole)


WRONG = {
    "not json": ("{", r"a.json is not JSON: .*line 1.*\.jsonl"),
    "lines of json": (flat(), r"a.json is not JSON: Extra data.*one object per line is .jsonl"),
    "a list": ("[]", "a.json lacks 'data', which should be a list"),
    "nothing": ('{"data": []}', "a.json has no questions"),
    "no paragraphs": ('{"data": [{}]}', r"a.json data\[0\] lacks 'paragraphs'"),
    "no context": (change(lambda p, q: p.pop("context")), r"data\[0\].paragraphs\[0\] lacks 'context'"),
    "no question": (change(lambda p, q: q.pop("question")), "question q0 lacks 'question', which should be a text"),
    "empty question": (change(lambda p, q: q.update(question=" ")), "question q0 has an empty 'question'"),
    "no id": (change(lambda p, q: (q.pop("id"), q.pop("question"))), r"paragraphs\[0\].qas\[0\] lacks 'question'"),
    "no answers": (change(lambda p, q: q.pop("answers")), "question q0 lacks 'answers'"),
    "an answer of nothing": (
        change(lambda p, q: q.update(answers=[{"text": "", "answer_start": 0}])),
        "question q0, an answer, has an empty 'text'",
    ),
    "no start": (change(lambda p, q: q["answers"][0].pop("answer_start")), "answer 'sieben' lacks 'answer_start'"),
    "wrong start": (
        change(lambda p, q: q["answers"][0].update(answer_start=21)),
        "q0: the answer 'sieben' should be at answer_start = 21, which reads 'ieben '; it is at 20 ",
    ),
    "start outside": (change(lambda p, q: q["answers"][0].update(answer_start=-5)), "answer_start = -5, outside the context"),
    "not there at all": (change(lambda p, q: q["answers"][0].update(text="acht")), "the context does not have it"),
    "impossible with answers": (change(lambda p, q: q.update(is_impossible=True)), "is marked impossible but has answers"),
    "half a character": (change(lambda p, q: q.update(question="\ud83d?")), "q0 has a lone surrogate"),
    "deep": ("[" * 100_000, "is not JSON"),
    "nul": ("{\0}", "has a NUL byte"),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_name_file_and_question(tmp_path, name):
    text, said = WRONG[name]
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=said) as error:
        read_questions([tmp_path / "a.json"])
    assert "\n" not in str(error.value) and str(tmp_path / "a.json") in str(error.value)


def test_other_files_and_unanswerable_questions_are_refused(tmp_path):
    (tmp_path / "a.tsv").write_text("x\ty\n")
    with pytest.raises(UserError, match=r"a.tsv: questions come as SQuAD's .json or as .jsonl"):
        read_questions([tmp_path / "a.tsv"])
    (tmp_path / "a.jsonl").write_text(flat())
    with pytest.raises(UserError, match=r"a.jsonl:3 has no answer; set data.unanswerable = true"):
        read_questions([tmp_path / "a.jsonl"], unanswerable=False)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 40) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["question", "context", "answers", "text", "start", "answer_start", "data", "paragraphs", "qas"]),
            inner,
        )
    ),
)


@given(JUNK, st.sampled_from(["a.json", "a.jsonl"]))
def test_any_json_is_read_or_refused_in_one_line(tmp_path_factory, junk, name):
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(json.dumps(junk))
    try:
        read_questions([path])
    except UserError as error:
        assert "\n" not in str(error)


def test_world_questions_ask_for_the_translation_of_a_word():
    world = {"number": 200, "held_out": 40}
    plain, some = (read_dataset(QuestionData(world=world, unanswerable=none)).train for none in (False, True))
    gold = {pair.target: pair for pair in bilingual.generate(200, 1, level=1)}
    for found in (plain, some):
        for question, context, answers in zip(found.question, found.context, found.answers):
            pair = gold[context]
            assert answers == [span for word, span in unique_aligned_words(pair) if word == question]
            for start, end in answers:
                at = pair.source.lower().replace(",", "").replace(".", "").split().index(question)
                words = [pair.target.split()[j] for i, j in pair.alignment if i == at]
                assert context[start:end] == " ".join(words).rstrip(".,")
    assert len(plain) > 190 and all(plain.answers)
    assert 0.25 < sum(not answers for answers in some.answers) / len(some) < 0.35
    assert len({*plain.question}) > 60, "many words are asked for"
    train, valid, test = hold_out(plain, 10)
    assert not {*train.context} & {*valid.context, *test.context} and len(valid) == len(test) == 10
