"""Windows of a context: nothing is lost, labels point at the answer, the row is a pair of texts."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from regard.batches.batches import sequential_batches
from regard.batches.question_rows import NO_ANSWER, OUTSIDE, build_question_rows
from regard.corpus.examples import QuestionExamples
from regard.recipe import TokenSettings
from regard.tokens.special_tokens import BOS, BOS_AND_EOS, EOS, SpecialTokens
from regard.tokens.tokenizer import train_tokenizer

WORDS = ["Die", "Köni\u0301gin", "kauft", "sieben", "Äpfel,", "und", "isst", "sie."]
TOKENIZER = train_tokenizer(TokenSettings(size=60), [" ".join(WORDS)] * 20)
ROBERTA = SpecialTokens(prefix=(BOS,), suffix=(EOS,), pair_separator=(EOS, EOS), second_segment=0)


@st.composite
def question_examples(draw):
    """Draw questions about texts, and the spans of some words as answers."""
    found = QuestionExamples([], [], [])
    for _ in range(draw(st.integers(1, 4))):
        words = draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=25))
        starts = np.cumsum([0, *(len(word) + 2 for word in words)]).tolist()
        first = draw(st.integers(0, len(words) - 1))
        last = draw(st.integers(first, min(first + 2, len(words) - 1)))
        found.question.append(" ".join(draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6))))
        found.context.append(" \n".join(words))
        found.answers.append([(starts[first], starts[last] + len(words[last]))] if draw(st.booleans()) else [])
    return found


@given(question_examples(), st.integers(12, 60), st.integers(1, 40), st.sampled_from([BOS_AND_EOS, ROBERTA]))
def test_windows_cover_the_context_and_labels_point_at_the_answer(examples, max_length, stride, special_tokens):
    TOKENIZER.special_tokens = special_tokens
    rows = build_question_rows(examples, TOKENIZER, max_length=max_length, stride=stride)
    seen = [np.zeros(len(rows.token_spans(i)), bool) for i in range(len(examples))]
    whole = [False] * len(examples)
    for batch in sequential_batches(rows, 200):
        for row, source, length, segments, label in zip(
            batch.rows, batch.inputs["source"], batch.inputs["lengths"].tolist(), batch.inputs["segments"], batch.labels.tolist()
        ):
            asks, first, last, begin = (
                rows.question_of_window[row],
                rows.first[row],
                rows.last[row],
                int(rows.context_starts(np.array([row]))[0]),
            )
            question, context = TOKENIZER.encode([examples.question[asks], examples.context[asks]])
            room = max_length - special_tokens.num_added_to_pair
            expected = [
                *special_tokens.prefix,
                *question[: room // 2],
                *special_tokens.separator,
                *context[first:last],
                *special_tokens.suffix,
            ]
            assert source.tolist()[:length] == expected and length <= max_length
            assert segments.tolist() == [0] * begin + [special_tokens.second_segment] * (length - begin) + [0] * (
                len(segments) - length
            )
            seen[asks][first:last] = True
            answers, spans = examples.answers[asks], rows.token_spans(asks)[first:last]
            if label == [NO_ANSWER, NO_ANSWER]:
                assert (rows.answer[row] == OUTSIDE).all()
            else:
                a, b = (position - begin for position in label)
                assert answers == [(spans[a][0], spans[b][1])] and 0 <= a <= b < last - first
                whole[asks] = True
    for i, (answers, row) in enumerate(zip(examples.answers, seen)):
        assert row.all()
        width = max_length - special_tokens.num_added_to_pair - len(rows.question[i])
        tokens = sum(bool(a < answers[0][1] and b > answers[0][0]) for a, b in rows.token_spans(i)) if answers else 0
        assert whole[i] == bool(answers) or tokens > width - width // 2


def test_windows_start_a_stride_apart_and_overlap_by_at_least_half():
    TOKENIZER.special_tokens = BOS_AND_EOS
    examples = QuestionExamples(["und"], [" ".join(WORDS * 20)], [[]])
    far, near = (build_question_rows(examples, TOKENIZER, max_length=40, stride=stride) for stride in (1000, 7))
    width = 40 - 3 - len(TOKENIZER.encode(["und"])[0])
    assert (np.diff(far.first) == width // 2).all() and (np.diff(near.first) == 7).all() and len(near) > len(far) > 2
    for rows in (far, near):
        assert rows.first[0] == 0 and rows.last[-1] == len(rows.token_spans(0)) and (rows.last - rows.first <= width).all()
        assert rows.last[-2] < rows.last[-1], "no superfluous window"


def test_the_label_is_the_first_gold_answer_complete_in_the_window():
    TOKENIZER.special_tokens = BOS_AND_EOS
    context = " ".join(WORDS * 6)
    golds = [(context.rindex("sie."), len(context)), (0, 3)]
    rows = build_question_rows(QuestionExamples(["und"], [context], [golds]), TOKENIZER, max_length=40, stride=10)
    spans = rows.token_spans(0)
    answer_spans = [(spans[first, 0], spans[last, 1]) if first != OUTSIDE else None for first, last in rows.answer]
    assert answer_spans[0] == (0, 3) and answer_spans[-1] == golds[0] and len(answer_spans) > 2 and None in answer_spans
