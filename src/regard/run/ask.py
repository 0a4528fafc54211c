"""What of a run is explained: the label of a text, a word of a translation, the word that comes next."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from regard.batches.ragged import Ragged
from regard.batches.rows import ClassPairs, Translations
from regard.batches.side import Side
from regard.chance import mix
from regard.corpus.examples import Labelled, Lines, Pairs, Tasks
from regard.corpus.pairs import read_pairs
from regard.corpus.single import read_labelled, read_text
from regard.corpus.table import kind_of
from regard.errors import Mistake
from regard.explain.faithful import Gold
from regard.explain.target import Target
from regard.run.base import Run
from regard.run.classify import Classifier
from regard.run.language import LanguageRun
from regard.run.pictures import PictureClassifier
from regard.run.translate import Translator
from regard.run.truth import with_gold
from regard.tokens.special import NO_MARK
from regard.tokens.tokenizer import Tokenizer
from regard.worlds import bilingual

NOT_EXPLAINED = "{run.folder} {run.does}; what is explained are labels of texts, words of translations, and what comes next"
STAND_INS = ("<mask>", "[MASK]", "<unk>", "[UNK]", "<pad>", "[PAD]")


@dataclass(frozen=True)
class Asked:
    """An answer of a run, the tokens it is explained by, and those that are known to matter."""

    target: Target
    tokens: list[str]
    answer: str
    """What is explained, in words."""
    gold: dict[str, Gold] = field(default_factory=dict)


def ask(run: Run, text: str, *, label: str | None = None, word: str | None = None) -> Asked:
    """What a run says of a text: by itself, or the label or word that is asked for."""
    if isinstance(run, Classifier) and not isinstance(run, PictureClassifier):
        return ask_label(run, text, label, word)
    if label is not None:
        raise Mistake(f"--class {label}: {run.folder} {run.does}, and has no classes; use --word")
    if isinstance(run, Translator):
        return ask_translation(run, text, word)
    if isinstance(run, LanguageRun):
        return ask_next(run, text, word)
    raise Mistake(NOT_EXPLAINED.format(run=run))


def ask_label(run: Classifier, text: str, label: str | None = None, word: str | None = None) -> Asked:
    if word is not None:
        raise Mistake(f"--word {word}: {run.folder} {run.does}; use --class with one of: {', '.join(run.labels[:8])}")
    if label is not None and label not in run.numbers:
        raise Mistake(f"--class {label}: there is no such label; there are: {', '.join(run.labels[:8])}")
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
    answer = run.numbers[label] if label is not None else -1
    asked = asked_of(run, inputs, "source", places, answer, None)
    said = "asked for" if label is not None else "the likeliest"
    return named(asked, f"the label {run.labels[asked.target.answer]!r}, {said}")


def ask_translation(run: Translator, text: str, word: str | None = None, reference: list[int] | None = None) -> Asked:
    """A word of the run's own translation, or of a reference, by its number from 1 or as it stands there; its first piece."""
    (source,) = run.ids([text])
    if not source:
        raise Mistake("there is nothing to explain of an empty text")
    said = run.best([text])[0].tokens if reference is None else reference
    words, numbers = run.tokenizers[1].decode([said])[0].split(), run.tokenizers[1].words(said)
    chosen = word_number(word, words)
    if chosen not in numbers:
        raise Mistake(f"--word {word}: the translation has no piece of it: {' '.join(words)!r}")
    step = numbers.index(chosen)
    rows = Translations(Side(Ragged.of([source])), Side(Ragged.of([said])), run.marks)
    inputs = dict(rows.batch(np.arange(1), 0, 0).to(run.device).inputs)
    inputs["target"] = inputs["target"][:, :step + 1]                             # what comes later has no part in it
    places = range(len(run.marks.before), len(run.marks.before) + len(source))
    asked = asked_of(run, inputs, "source", places, said[step], step)
    piece = "" if numbers.count(chosen) == 1 else f", by its first piece {run.tokenizers[1].piece(said[step]).strip()!r}"
    return named(asked, f"the word {words[chosen]!r}{piece}, {chosen + 1} of {len(words)} in {' '.join(words)!r}")


def word_number(word: str | None, words: Sequence[str]) -> int:
    """Which word is meant, counted from 0."""
    if not words:
        raise Mistake("the translation is empty: there is nothing to explain")
    if word is not None and not word.isdigit():
        plain = [one.strip(".,;:!?") for one in words]
        if word not in (*words, *plain):
            raise Mistake(f"--word {word}: not in the translation {' '.join(words)!r}; give one of its words, or a number from 1")
        return words.index(word) if word in words else plain.index(word)
    number = int(word or 1)
    if not 1 <= number <= len(words):
        raise Mistake(f"--word {number}: the translation has words 1 to {len(words)}: {' '.join(words)!r}")
    return number - 1


def ask_next(run: LanguageRun, text: str, word: str | None = None) -> Asked:
    """What comes next after a text: the likeliest token, or the first of a word."""
    ids, tokenizer = run.begun([text])[0], run.tokenizers[0]
    answer = -1
    if word is not None:
        after = tokenizer.encode([f"{text} {word}"])[0]
        begun = tokenizer.encode([text])[0]
        found = after[len(begun):] if after[:len(begun)] == begun else tokenizer.encode([word])[0]
        if not found:
            raise Mistake(f"--word {word!r}: there is no such token")
        answer = found[0]
    places = [place for place, token in enumerate(ids) if token not in (run.marks.begin, run.marks.end)]
    asked = asked_of(run, {"target": torch.tensor([ids], device=run.device)}, "target", places, answer, len(ids) - 1)
    said = piece(tokenizer, asked.target.answer)
    return named(asked, f"that {said!r} comes next, {'the likeliest' if word is None else 'asked for'}")


def asked_of(run: Run, inputs: dict[str, torch.Tensor], side: str, places: Sequence[int], answer: int, step: int | None) -> Asked:
    """An answer of -1 is the likeliest."""
    if not places:
        raise Mistake("there is nothing to explain of an empty text")
    tokenizer = run.tokenizers[0]
    target = Target(run.model, inputs, side, torch.tensor(list(places), device=run.device), answer, stand_in(tokenizer), step)
    if answer < 0:
        with torch.no_grad():
            target = Target(**{**vars(target), "answer": int(target.log_probabilities(target.ids)[0].argmax())})
    return Asked(target, [piece(tokenizer, i) for i in inputs[side][0, list(places)].tolist()], "")


def named(asked: Asked, answer: str) -> Asked:
    return Asked(asked.target, asked.tokens, answer, asked.gold)


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
    line, which may have its translation in a second file. Pairs may have a `gold` alignment."""
    path = Path(data)
    if path.is_file():
        table, settings = kind_of(path) in (".tsv", ".jsonl"), run.recipe.data
        if isinstance(run, Translator) and (table or reference is not None):
            pairs = read_pairs([path] if reference is None else [path, reference])
            return pairs if gold is None else with_gold(run, pairs, gold)
        if reference is not None or gold is not None:
            raise Mistake("--gold aligns the words of a text and its translation: give --reference too, or --data FILE.tsv"
                          if isinstance(run, Translator) else
                          f"--reference and --gold are for a run that translates; {run.folder} {run.does}")
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


def ask_set(run: Run, examples: Any, number: int) -> Iterator[Asked]:
    """One answer for each of so many examples, spread over the set; of a translation one word, drawn by lot."""
    chosen = range(0, len(examples), max(1, -(-len(examples) // number)))
    for index in chosen:
        if isinstance(examples, Pairs) and examples.gold is not None and isinstance(run, Translator):
            yield from ask_pair(run, examples.gold[index], index)
        elif isinstance(run, Translator):
            text = examples.source[index] if isinstance(examples, Pairs) else examples.text[index]
            said = run.best([text])[0].tokens
            numbers = [word for word in dict.fromkeys(run.tokenizers[1].words(said)) if word >= 0]
            if numbers and run.ids([text])[0]:
                yield ask_translation(run, text, str(drawn(numbers, index) + 1), said)
        elif isinstance(examples, Labelled):
            yield ask(run, examples.keys()[index])
        elif isinstance(examples, Lines):
            words = examples.text[index].split()
            if isinstance(run, LanguageRun) and len(words) < 2:
                continue
            yield ask(run, " ".join(words[:-1]) if isinstance(run, LanguageRun) else examples.text[index])
        else:
            raise Mistake(NOT_EXPLAINED.format(run=run))


def ask_pair(run: Translator, pair: bilingual.Pair, index: int) -> Iterator[Asked]:
    """The pronoun that an "it" became in a world's reference; where there is none, an aligned word."""
    most = run.recipe.model.max_length - 1
    words = run.tokenizers[0].encode_words([pair.source])[0][1][:len(run.ids([pair.source])[0])]
    target, spoken = (part[:most] for part in run.tokenizers[1].encode_words([pair.target])[0])
    linked = sorted({t for _, t in pair.alignment if t in spoken})

    def tokens(of: set[int]) -> tuple[int, ...]:
        return tuple(i for i, word in enumerate(words) if word in of)

    if linked and not pair.pronouns:
        chosen = drawn(linked, index)
        asked = ask_translation(run, pair.source, str(chosen + 1), target)
        gold = Gold(frozenset(tokens({s for s, t in (*pair.alignment, *pair.possible) if t == chosen})), tokens(set(words)))
        yield Asked(asked.target, asked.tokens, asked.answer, {"alignment": gold})
    for pronoun in pair.pronouns:
        gold = Gold(frozenset(tokens({pronoun.antecedent_source})), tokens(set(pronoun.candidates)))
        if pronoun.target not in spoken or not gold.right:                        # cut off
            continue
        asked = ask_translation(run, pair.source, str(pronoun.target + 1), target)
        yield Asked(asked.target, asked.tokens, asked.answer, {"antecedent": gold})


def drawn(values: Sequence[int], index: int) -> int:
    return values[int(mix(index)) % len(values)]
