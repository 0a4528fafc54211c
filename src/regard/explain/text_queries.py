"""What of a run that reads texts is explained: the label of a text, a word of a translation, the word that comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import ClassPairs, Translations
from regard.batches.token_store import Side
from regard.corpus.examples import Labelled, Lines, Pairs, Pictures, Tasks
from regard.corpus.image_files import read_pictures
from regard.corpus.labelled import read_labelled, read_text
from regard.corpus.pairs import read_pairs
from regard.corpus.table import kind_of
from regard.errors import Mistake
from regard.explain.faithfulness import Gold
from regard.explain.image_queries import ask_picture, ask_pictures
from regard.explain.query import ITS_OWN, Asked, Question, drawn, first_token, likeliest, named_label, word_number
from regard.explain.target import Target, TextTarget
from regard.tasks.base import Run
from regard.tasks.caption import CaptionRun
from regard.tasks.classify import Classifier
from regard.tasks.contrastive import ContrastRun
from regard.tasks.gold import with_gold
from regard.tasks.images import PictureClassifier, PictureRun
from regard.tasks.language import LanguageRun
from regard.tasks.translate import Translator
from regard.tokens.special import NO_MARK
from regard.tokens.tokenizer import Tokenizer
from regard.worlds import bilingual

NOT_EXPLAINED = (
    "{run.folder} {run.does}; what is explained are labels of texts and pictures, words of translations and of "
    "captions, what comes next, and how well a picture fits a text"
)
STAND_INS = ("<mask>", "[MASK]", "<unk>", "[UNK]", "<pad>", "[PAD]")


def ask(run: Run, given: Any, question: Question = ITS_OWN) -> Asked:
    """What a run says of a text or a picture: by itself, or what is asked for."""
    if isinstance(run, PictureClassifier | ContrastRun | CaptionRun):
        return ask_picture(run, given, question)
    if isinstance(run, Classifier):
        return ask_label(run, given, question)
    if isinstance(run, Translator | LanguageRun):
        question.refuse(run, but="word", cure="use --word")
        return ask_translation(run, given, question) if isinstance(run, Translator) else ask_next(run, given, question)
    raise Mistake(NOT_EXPLAINED.format(run=run))


def ask_label(run: Classifier, text: str, question: Question) -> Asked:
    question.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    answer = -1 if question.label is None else named_label("class", question.label, run.numbers)
    marks = run.marks
    paired = run.recipe.data.second is not None if run.foreign is None else "\t" in text
    rows: Any = run.pairs({0: text}) if paired else run.singles({0: text})
    inputs = rows.batch(np.arange(1), 0, 0).to(run.device).inputs
    length = inputs["source"].size(1)
    if isinstance(rows, ClassPairs):
        second = length - len(marks.after) - int(rows.second.lengths(0, 0)[0])
        places = [*range(len(marks.before), second - len(marks.middle)), *range(second, length - len(marks.after))]
    else:
        places = list(range(len(marks.before), length - len(marks.after)))
    target, tokens = target_of(run, inputs, "source", places, answer, None)
    said, other = "asked for" if question.label is not None else "the likeliest", question.against
    return Asked(
        target,
        tokens,
        f"the label {run.labels[target.answer]!r}, {said}",
        against=None if other is None else (named_label("against", other, run.numbers), f"the label {other!r}"),
    )


def ask_translation(run: Translator, text: str, question: Question, reference: list[int] | None = None) -> Asked:
    """A word of the run's own translation, or of a reference, by its number from 1 or as it stands there; its first piece."""
    (source,) = run.ids([text])
    if not source:
        raise Mistake("there is nothing to explain of an empty text")
    said = run.best([text])[0].tokens if reference is None else reference
    words, numbers = run.tokenizers[1].decode([said])[0].split(), run.tokenizers[1].words(said)
    chosen = word_number(question.word, words)
    if chosen not in numbers:
        raise Mistake(f"--word {question.word}: the translation has no piece of it: {' '.join(words)!r}")
    step = numbers.index(chosen)
    rows = Translations(Side(Ragged.of([source])), Side(Ragged.of([said])), run.marks)
    inputs = dict(rows.batch(np.arange(1), 0, 0).to(run.device).inputs)
    inputs["target"] = inputs["target"][:, : step + 1]  # what comes later has no part in it
    places = range(len(run.marks.before), len(run.marks.before) + len(source))
    target, tokens = target_of(run, inputs, "source", places, said[step], step)
    first = "" if numbers.count(chosen) == 1 else f", by its first piece {run.tokenizers[1].piece(said[step]).strip()!r}"
    return Asked(
        target,
        tokens,
        f"the word {words[chosen]!r}{first}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        against=None
        if question.against is None
        else (first_token("against", question.against, run.tokenizers[1]), f"the word {question.against!r} in its place"),
    )


def ask_next(run: LanguageRun, text: str, question: Question) -> Asked:
    """What comes next after a text: the likeliest token, or the first of a word."""
    ids, tokenizer = run.begun([text])[0], run.tokenizers[0]

    def following(option: str, word: str) -> int:
        after, begun = tokenizer.encode([f"{text} {word}"])[0], tokenizer.encode([text])[0]
        return (
            after[len(begun)]
            if after[: len(begun)] == begun and len(after) > len(begun)
            else first_token(option, word, tokenizer)
        )

    answer = -1 if question.word is None else following("word", question.word)
    places = [place for place, token in enumerate(ids) if token not in (run.marks.begin, run.marks.end)]
    target, tokens = target_of(run, {"target": torch.tensor([ids], device=run.device)}, "target", places, answer, len(ids) - 1)
    said, other = "the likeliest" if question.word is None else "asked for", question.against
    return Asked(
        target,
        tokens,
        f"that {piece(tokenizer, target.answer)!r} comes next, {said}",
        against=None if other is None else (following("against", other), f"that {other!r} comes next"),
    )


def target_of(
    run: Run, inputs: dict[str, torch.Tensor], side: str, places: Sequence[int], answer: int, step: int | None
) -> tuple[Target, list[str]]:
    """And the tokens that it is explained by. An answer of -1 is the likeliest."""
    if not places:
        raise Mistake("there is nothing to explain of an empty text")
    tokenizer = run.tokenizers[0]
    target = TextTarget(run.model, inputs, side, torch.tensor(list(places), device=run.device), answer, stand_in(tokenizer), step)
    return likeliest(target), [piece(tokenizer, i) for i in inputs[side][0, list(places)].tolist()]


def piece(tokenizer: Tokenizer, number: int) -> str:
    return tokenizer.piece(number).strip() or tokenizer.library.id_to_token(number) or str(number)


def stand_in(tokenizer: Tokenizer) -> int:
    """What stands for a hidden token: the mask, what is unknown, or what fills rows, whichever the vocabulary has first."""
    known = (tokenizer.library.token_to_id(name) for name in STAND_INS)
    found = next((number for number in known if number is not None), tokenizer.marks.end)
    if found == NO_MARK:
        raise Mistake("the vocabulary has no mask, unknown, padding or end mark that could stand for a hidden token")
    return found


# sets


def read_set(run: Run, data: str, reference: Path | None = None, gold: Path | None = None) -> Any:
    """The validation set or a test set of the recipe by its name, or a file: labelled texts or pairs (.tsv, .jsonl), or a text a
    line, which may have its translation in a second file; of pictures, a folder or what else a recipe may name. Pairs may have
    a `gold` alignment."""
    path, settings = Path(data), run.recipe.data
    if (reference is not None or gold is not None) and not isinstance(run, Translator):
        raise Mistake(f"--reference and --gold are for a run that translates; {run.folder} {run.does}")
    if isinstance(run, PictureRun) and path.exists():
        return read_pictures([path], captions=settings.captions if isinstance(run, ContrastRun) else None, path=settings.path)
    if path.is_file():
        table = kind_of(path) in (".tsv", ".jsonl")
        if isinstance(run, Translator) and (table or reference is not None):
            pairs = read_pairs([path] if reference is None else [path, reference])
            return pairs if gold is None else with_gold(run, pairs, gold)
        if gold is not None:
            raise Mistake("--gold aligns the words of a text and its translation: give --reference too, or --data FILE.tsv")
        if isinstance(run, Classifier) and run.foreign is None and table:
            return read_labelled([path], text=settings.text, second=settings.second, label=settings.label)
        return read_text([path])
    if reference is not None or gold is not None:
        raise Mistake(f"--data {data}: --reference and --gold go with a file of sources")
    own: dict[str, Any] = {}
    if run.foreign is None:
        valid = run.data.valid
        parts = {f"valid/{name}": part for name, part in valid.parts.items()} if isinstance(valid, Tasks) else {"valid": valid}
        own = {**parts, **run.data.tests}
    if data not in own:
        raise Mistake(f"--data {data}: there is no such file" + (f" or set; there are: {', '.join(own)}" if own else ""))
    return own[data]


def ask_set(run: Run, examples: Any, number: int, question: Question = ITS_OWN) -> Iterator[Asked]:
    """One answer for each of so many examples, spread over the set; of a translation or caption one word, drawn by lot."""
    chosen = range(0, len(examples), max(1, -(-len(examples) // number)))
    if isinstance(examples, Pictures) and isinstance(run, PictureClassifier | ContrastRun | CaptionRun):
        yield from ask_pictures(run, examples, chosen, question)
        return
    for index in chosen:
        if isinstance(examples, Pairs) and examples.gold is not None and isinstance(run, Translator):
            yield from ask_pair(run, examples.gold[index], index, question)
        elif isinstance(run, Translator):
            text = examples.source[index] if isinstance(examples, Pairs) else examples.text[index]
            said = run.best([text])[0].tokens
            numbers = [word for word in dict.fromkeys(run.tokenizers[1].words(said)) if word >= 0]
            if numbers and run.ids([text])[0]:
                yield ask_translation(run, text, replace(question, word=str(drawn(numbers, index) + 1)), said)
        elif isinstance(examples, Labelled):
            asked = ask(run, examples.keys()[index], question)
            if asked.against is None or asked.against[0] != asked.target.answer:
                yield asked
        elif isinstance(examples, Lines):
            words = examples.text[index].split()
            if isinstance(run, LanguageRun) and len(words) < 2:
                continue
            yield ask(run, " ".join(words[:-1]) if isinstance(run, LanguageRun) else examples.text[index], question)
        else:
            raise Mistake(NOT_EXPLAINED.format(run=run))


def ask_pair(run: Translator, pair: bilingual.Pair, index: int, question: Question = ITS_OWN) -> Iterator[Asked]:
    """The pronoun that an "it" became in a world's reference; where there is none, an aligned word."""
    most = run.recipe.model.max_length - 1
    words = run.tokenizers[0].encode_words([pair.source])[0][1][: len(run.ids([pair.source])[0])]
    target, spoken = (part[:most] for part in run.tokenizers[1].encode_words([pair.target])[0])
    linked = sorted({t for _, t in pair.alignment if t in spoken})

    def tokens(of: set[int]) -> tuple[int, ...]:
        return tuple(i for i, word in enumerate(words) if word in of)

    if linked and not pair.pronouns:
        chosen = drawn(linked, index)
        asked = ask_translation(run, pair.source, replace(question, word=str(chosen + 1)), target)
        gold = Gold(frozenset(tokens({s for s, t in (*pair.alignment, *pair.possible) if t == chosen})), tokens(set(words)))
        yield replace(asked, gold={"alignment": gold})
    for pronoun in pair.pronouns:
        gold = Gold(frozenset(tokens({pronoun.antecedent_source})), tokens(set(pronoun.candidates)))
        if pronoun.target not in spoken or not gold.right:  # cut off
            continue
        asked = ask_translation(run, pair.source, replace(question, word=str(pronoun.target + 1)), target)
        yield replace(asked, gold={"antecedent": gold})
