"""What of a run that reads texts is explained: the label of a text, a word of a translation, the word that comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import PairClassificationRows, TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import ImageExamples, LabelledTexts, SentencePairs, TaskMixture, TextLines
from regard.corpus.image_files import read_images
from regard.corpus.pairs import read_pairs
from regard.corpus.table import file_kind
from regard.corpus.text_files import read_labelled, read_text
from regard.errors import UserError
from regard.explain.faithfulness import GroundTruth
from regard.explain.image_outputs import image_output, image_outputs
from regard.explain.selection import (
    PREDICTED,
    ExplainedOutput,
    OutputSelection,
    first_token_id,
    label_index,
    pick,
    with_predicted_output,
    word_index,
)
from regard.explain.target import AttributionTarget, TextTarget
from regard.tasks.base import Run
from regard.tasks.classify import ClassifyRun
from regard.tasks.language import LanguageRun
from regard.tasks.shared.gold import attach_gold_alignments
from regard.tasks.shared.labels import pair_rows, single_rows
from regard.tasks.translate import TranslateRun
from regard.tokens.special_tokens import NO_TOKEN
from regard.tokens.tokenizer import Tokenizer
from regard.worlds import bilingual

NOT_EXPLAINED = (
    "{run.folder} {run.task.does}; what is explained are labels of texts and pictures, words of translations and of "
    "captions, what comes next, and how well a picture fits a text"
)
REPLACEMENT_TOKENS = ("<mask>", "[MASK]", "<unk>", "[UNK]", "<pad>", "[PAD]")


def select_output(run: Run, given: Any, question: OutputSelection = PREDICTED) -> ExplainedOutput:
    """What a run says of a text or a picture: by itself, or what is asked for."""
    if (run.task.explains is not None and "image" in run.task.reads):
        return image_output(run, given, question)
    if run.task.explains == "label":
        return label_output(run, given, question)
    if run.task.explains in ("translation", "next_token"):
        question.refuse(run, but="word", cure="use --word")
        return (
            translation_output(run, given, question) if run.task.explains == "translation" else next_token_output(run, given, question)
        )
    raise UserError(NOT_EXPLAINED.format(run=run))


def label_output(run: ClassifyRun, text: str, question: OutputSelection) -> ExplainedOutput:
    question.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    answer = -1 if question.label is None else label_index("class", question.label, run.labels)
    marks = run._special_tokens
    paired = run.recipe.data.text_pair is not None if run._huggingface is None else "\t" in text
    rows: Any = pair_rows(run, {0: text}) if paired else single_rows(run, {0: text})
    inputs = rows.batch(np.arange(1), 0, 0).to(run.device).inputs
    length = inputs["source"].size(1)
    if isinstance(rows, PairClassificationRows):
        second = length - len(marks.suffix) - int(rows.second.lengths(0, 0)[0])
        places = [*range(len(marks.prefix), second - len(marks.separator)), *range(second, length - len(marks.suffix))]
    else:
        places = list(range(len(marks.prefix), length - len(marks.suffix)))
    target, tokens = text_target(run, inputs, "source", places, answer, None)
    said, other = "asked for" if question.label is not None else "the likeliest", question.against
    return ExplainedOutput(
        target,
        tokens,
        f"the label {run.labels[target.answer]!r}, {said}",
        against=None if other is None else (label_index("against", other, run.labels), f"the label {other!r}"),
    )


def translation_output(
    run: TranslateRun, text: str, question: OutputSelection, reference: list[int] | None = None
) -> ExplainedOutput:
    """A word of the run's own translation, or of a reference, by its number from 1 or as it stands there; its first piece."""
    (source,) = run._ids([text])
    if not source:
        raise UserError("there is nothing to explain of an empty text")
    said = run._best([text])[0].tokens if reference is None else reference
    words, numbers = run.tokenizers[1].decode([said])[0].split(), run.tokenizers[1].word_ids(said)
    chosen = word_index(question.word, words)
    if chosen not in numbers:
        raise UserError(f"--word {question.word}: the translation has no piece of it: {' '.join(words)!r}")
    step = numbers.index(chosen)
    rows = TranslationRows(TokenStore(Ragged.from_rows([source])), TokenStore(Ragged.from_rows([said])), run._special_tokens)
    inputs = dict(rows.batch(np.arange(1), 0, 0).to(run.device).inputs)
    inputs["target"] = inputs["target"][:, : step + 1]  # what comes later has no part in it
    places = range(len(run._special_tokens.prefix), len(run._special_tokens.prefix) + len(source))
    target, tokens = text_target(run, inputs, "source", places, said[step], step)
    first = "" if numbers.count(chosen) == 1 else f", by its first piece {run.tokenizers[1].piece(said[step]).strip()!r}"
    return ExplainedOutput(
        target,
        tokens,
        f"the word {words[chosen]!r}{first}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        against=None
        if question.against is None
        else (first_token_id("against", question.against, run.tokenizers[1]), f"the word {question.against!r} in its place"),
    )


def next_token_output(run: LanguageRun, text: str, question: OutputSelection) -> ExplainedOutput:
    """What comes next after a text: the likeliest token, or the first of a word."""
    ids, tokenizer = run._encode_prompts([text])[0], run.tokenizers[0]

    def following(option: str, word: str) -> int:
        after, begun = tokenizer.encode([f"{text} {word}"])[0], tokenizer.encode([text])[0]
        return (
            after[len(begun)]
            if after[: len(begun)] == begun and len(after) > len(begun)
            else first_token_id(option, word, tokenizer)
        )

    answer = -1 if question.word is None else following("word", question.word)
    places = [place for place, token in enumerate(ids) if token not in (run._special_tokens.bos, run._special_tokens.eos)]
    target, tokens = text_target(run, {"target": torch.tensor([ids], device=run.device)}, "target", places, answer, len(ids) - 1)
    said, other = "the likeliest" if question.word is None else "asked for", question.against
    return ExplainedOutput(
        target,
        tokens,
        f"that {token_label(tokenizer, target.answer)!r} comes next, {said}",
        against=None if other is None else (following("against", other), f"that {other!r} comes next"),
    )


def text_target(
    run: Run, inputs: dict[str, torch.Tensor], side: str, places: Sequence[int], answer: int, step: int | None
) -> tuple[AttributionTarget, list[str]]:
    """And the tokens that it is explained by. An answer of -1 is the likeliest."""
    if not places:
        raise UserError("there is nothing to explain of an empty text")
    tokenizer = run.tokenizers[0]
    target = TextTarget(
        run.model, inputs, side, torch.tensor(list(places), device=run.device), answer, replacement_token(tokenizer), step
    )
    return with_predicted_output(target), [token_label(tokenizer, i) for i in inputs[side][0, list(places)].tolist()]


def token_label(tokenizer: Tokenizer, number: int) -> str:
    return tokenizer.piece(number).strip() or tokenizer.library.id_to_token(number) or str(number)


def replacement_token(tokenizer: Tokenizer) -> int:
    """What stands for a hidden token: the mask, what is unknown, or what fills rows, whichever the vocabulary has first."""
    known = (tokenizer.library.token_to_id(name) for name in REPLACEMENT_TOKENS)
    found = next((number for number in known if number is not None), tokenizer.special_tokens.eos)
    if found == NO_TOKEN:
        raise UserError("the vocabulary has no mask, unknown, padding or end mark that could stand for a hidden token")
    return found


# sets


def load_examples(run: Run, data: str, reference: Path | None = None, gold: Path | None = None) -> Any:
    """The validation set or a test set of the recipe by its name, or a file: labelled texts or pairs (.tsv, .jsonl), or a text a
    line, which may have its translation in a second file; of pictures, a folder or what else a recipe may name. Pairs may have
    a `gold` alignment."""
    path, settings = Path(data), run.recipe.data
    if (reference is not None or gold is not None) and run.task.explains != "translation":
        raise UserError(f"--reference and --gold are for a run that translates; {run.folder} {run.task.does}")
    if "image" in run.task.reads and path.exists():
        return read_images([path], captions=settings.captions if run.task.explains == "similarity" else None, path=settings.path)
    if path.is_file():
        table = file_kind(path) in (".tsv", ".jsonl")
        if run.task.explains == "translation" and (table or reference is not None):
            pairs = read_pairs([path] if reference is None else [path, reference])
            return pairs if gold is None else attach_gold_alignments(run, pairs, gold)
        if gold is not None:
            raise UserError("--gold aligns the words of a text and its translation: give --reference too, or --data FILE.tsv")
        if run.task.explains == "label" and run._huggingface is None and table:
            return read_labelled([path], text=settings.text, text_pair=settings.text_pair, label=settings.label)
        return read_text([path])
    if reference is not None or gold is not None:
        raise UserError(f"--data {data}: --reference and --gold go with a file of sources")
    own: dict[str, Any] = {}
    if run._huggingface is None:
        valid = run.data.valid
        parts = (
            {f"valid/{name}": part for name, part in valid.parts.items()} if isinstance(valid, TaskMixture) else {"valid": valid}
        )
        own = {**parts, **run.data.tests}
    if data not in own:
        raise UserError(f"--data {data}: there is no such file" + (f" or set; there are: {', '.join(own)}" if own else ""))
    return own[data]


def select_outputs(run: Run, examples: Any, number: int, question: OutputSelection = PREDICTED) -> Iterator[ExplainedOutput]:
    """One answer for each of so many examples, spread over the set; of a translation or caption one word, drawn by lot."""
    chosen = range(0, len(examples), max(1, -(-len(examples) // number)))
    if isinstance(examples, ImageExamples) and (run.task.explains is not None and "image" in run.task.reads):
        yield from image_outputs(run, examples, chosen, question)
        return
    for index in chosen:
        if isinstance(examples, SentencePairs) and examples.gold is not None and run.task.explains == "translation":
            yield from aligned_word_outputs(run, examples.gold[index], index, question)
        elif run.task.explains == "translation":
            text = examples.source[index] if isinstance(examples, SentencePairs) else examples.text[index]
            said = run._best([text])[0].tokens
            numbers = [word for word in dict.fromkeys(run.tokenizers[1].word_ids(said)) if word >= 0]
            if numbers and run._ids([text])[0]:
                yield translation_output(run, text, replace(question, word=str(pick(numbers, index) + 1)), said)
        elif isinstance(examples, LabelledTexts):
            asked = select_output(run, examples.keys()[index], question)
            if asked.against is None or asked.against[0] != asked.target.answer:
                yield asked
        elif isinstance(examples, TextLines):
            words = examples.text[index].split()
            if run.task.decoder_only and len(words) < 2:
                continue
            yield select_output(run, " ".join(words[:-1]) if run.task.decoder_only else examples.text[index], question)
        else:
            raise UserError(NOT_EXPLAINED.format(run=run))


def aligned_word_outputs(
    run: TranslateRun, pair: bilingual.SentencePair, index: int, question: OutputSelection = PREDICTED
) -> Iterator[ExplainedOutput]:
    """The pronoun that an "it" became in a world's reference; where there is none, an aligned word."""
    most = run.recipe.model.max_length - 1
    words = run.tokenizers[0].encode_words([pair.source])[0][1][: len(run._ids([pair.source])[0])]
    target, spoken = (part[:most] for part in run.tokenizers[1].encode_words([pair.target])[0])
    linked = sorted({t for _, t in pair.alignment if t in spoken})

    def tokens(of: set[int]) -> tuple[int, ...]:
        return tuple(i for i, word in enumerate(words) if word in of)

    if linked and not pair.pronouns:
        chosen = pick(linked, index)
        asked = translation_output(run, pair.source, replace(question, word=str(chosen + 1)), target)
        gold = GroundTruth(
            frozenset(tokens({s for s, t in (*pair.alignment, *pair.possible) if t == chosen})), tokens(set(words))
        )
        yield replace(asked, gold={"alignment": gold})
    for pronoun in pair.pronouns:
        gold = GroundTruth(frozenset(tokens({pronoun.antecedent_source})), tokens(set(pronoun.candidates)))
        if pronoun.target not in spoken or not gold.right:  # cut off
            continue
        asked = translation_output(run, pair.source, replace(question, word=str(pronoun.target + 1)), target)
        yield replace(asked, gold={"antecedent": gold})
