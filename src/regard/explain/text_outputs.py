"""Outputs of runs that read texts: the label of a text, a word of a translation; and sets of examples."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from regard.batches.ragged import Ragged
from regard.batches.rows import ClassificationRows, PairClassificationRows, TranslationRows
from regard.batches.token_store import TokenStore
from regard.corpus.examples import Examples, ImageExamples, LabelledTexts, SentencePairs, TaskMixture, TextLines
from regard.corpus.image_files import read_images
from regard.corpus.table import TABLE_KINDS, file_kind
from regard.corpus.text_files import read_labelled, read_pairs, read_text
from regard.errors import UserError
from regard.explain import transformers_outputs
from regard.explain.faithfulness import GroundTruth
from regard.explain.image_outputs import caption_word_output, image_label_output, image_outputs, similarity_output
from regard.explain.selection import (
    PREDICTED,
    ExplainedOutput,
    OutputSelection,
    explain_label,
    label_index,
    pick,
    predict_word,
    with_predicted_output,
    word_alternative,
    word_index,
)
from regard.explain.token_outputs import feature_labels, masked_token_output, next_token_output, text_target
from regard.files import path_exists
from regard.tasks.base import Run
from regard.tasks.classify import ClassifyRun
from regard.tasks.shared.gold import attach_gold_alignments
from regard.tasks.shared.images import ImageInput
from regard.tasks.shared.labels import pair_rows, reads_pairs, single_rows
from regard.tasks.transformers_models import TransformersRun
from regard.tasks.translate import TranslateRun
from regard.worlds import bilingual

NOT_EXPLAINED = (
    "{run.folder} {run.task.does}; explanations are for labels of texts and images, words of translations and captions, "
    "next and masked words, and the similarity of an image to a text"
)


def label_output(run: ClassifyRun, text: str, selection: OutputSelection) -> ExplainedOutput:
    selection.refuse(run, but="class", cure=f"use --class with one of: {', '.join(run.labels[:8])}")
    output = -1 if selection.label is None else label_index("class", selection.label, run.labels)
    rows: PairClassificationRows | ClassificationRows = (pair_rows if reads_pairs(run, text) else single_rows)(run, {0: text})
    special = rows.special_tokens
    inputs = rows.batch(np.arange(1), 0, 0).to(run.device).inputs
    end = inputs["source"].size(1) - len(special.suffix)
    if isinstance(rows, PairClassificationRows):
        second = end - int(rows.second.lengths(0, 0)[0])
        first_end = second - len(special.second_prefix) - len(special.separator)
        positions = [*range(len(special.prefix), first_end), *range(second, end)]
    else:
        positions = list(range(len(special.prefix), end))
    target = with_predicted_output(text_target(run, inputs, "source", positions, None, output))
    return explain_label(target, feature_labels(target, run.tokenizers[0]), run.labels, selection)


def translation_output(
    run: TranslateRun, text: str, selection: OutputSelection, reference: list[int] | None = None
) -> ExplainedOutput:
    """Return a word of the run's own translation, or of a reference."""
    selection.refuse(run, but="word", cure="use --word")
    (source,) = run._ids([text])
    if not source:
        raise UserError("there is nothing to explain in an empty text")
    tokenizer, special = run.tokenizers[1], run._special_tokens
    translation = run._best([text])[0].tokens if reference is None else reference
    words, word_ids = tokenizer.decode([translation])[0].split(), tokenizer.word_ids(translation)
    chosen = word_index(selection.word, words)
    if chosen not in word_ids:
        raise UserError(f"--word {selection.word}: the translation has no token of it: {' '.join(words)!r}")
    index = word_ids.index(chosen)
    step = len(special.output_prefix) + index  # the position of the decoder that predicts the word
    rows = TranslationRows(TokenStore(Ragged.from_rows([source])), TokenStore(Ragged.from_rows([translation])), special)
    inputs = dict(rows.batch(np.arange(1), 0, 0).to(run.device).inputs)
    positions = range(len(special.prefix), len(special.prefix) + len(source))
    before = inputs["target"][0, : step + 1].tolist()  # later tokens have no influence
    tokens = translation[index : index + word_ids.count(chosen)]
    target = predict_word(text_target(run, inputs, "source", positions, step), "target", before, tokens)
    return ExplainedOutput(
        target,
        feature_labels(target, run.tokenizers[0]),
        f"the word {words[chosen]!r}, {chosen + 1} of {len(words)} in {' '.join(words)!r}",
        against=word_alternative(selection.against, target, before, tokenizer),
    )


OUTPUTS: dict[str, Callable[..., ExplainedOutput]] = {
    "label": label_output,
    "translation": translation_output,
    "next_token": next_token_output,
    "masked_token": masked_token_output,
    "image_label": image_label_output,
    "similarity": similarity_output,
    "caption": caption_word_output,
}
"""By what the task explains: (run, text or image, selection) -> output."""


def select_output(run: Run, given: ImageInput, selection: OutputSelection = PREDICTED) -> ExplainedOutput:
    """Return the output for a text or an image: the run's prediction, or the selected one."""
    if run.task.explains is None:
        raise UserError(NOT_EXPLAINED.format(run=run))
    if "image" not in run.task.reads and not isinstance(given, str):
        raise UserError(f"{run.folder} {run.task.does}: it reads a text, not {type(given).__name__}")
    outputs = transformers_outputs.OUTPUTS if is_foreign(run) else OUTPUTS
    return outputs[run.task.explains](run, given, selection)


def is_foreign(run: Run) -> bool:
    """Return whether transformers runs the model."""
    return run.task.run is TransformersRun


# sets


def load_examples(run: Run, data: str, reference: Path | None = None, gold: Path | None = None) -> Examples:
    """Return the validation or a test set of the recipe by name, or the examples of a file.

    A file has labelled texts or pairs (.tsv, .jsonl), or a text per line, with its translations in `reference`; for images, a
    folder or whatever a recipe may name. Pairs may have a `gold` alignment."""
    path, settings = Path(data), run.recipe.data
    if (reference is not None or gold is not None) and run.task.explains != "translation":
        raise UserError(f"--reference and --gold are for a run that translates; {run.folder} {run.task.does}")
    if "image" in run.task.reads and path_exists(path):
        captions = getattr(settings, "captions", None) if run.task.explains == "similarity" else None
        return read_images([path], captions=captions, path=getattr(settings, "path", 0))
    if path_exists(path) and path.is_file():
        table = file_kind(path) in TABLE_KINDS
        if run.task.explains == "translation" and (table or reference is not None):
            pairs = read_pairs([path] if reference is None else [path, reference])
            return pairs if gold is None else attach_gold_alignments(run, pairs, gold)
        if gold is not None:
            raise UserError("--gold aligns the words of a text and its translation: add --reference, or use --data FILE.tsv")
        if run.task.explains == "label" and not run._is_pretrained and table:
            return read_labelled([path], text=settings.text, text_pair=settings.text_pair, label=settings.label)
        return read_text([path])
    if reference is not None or gold is not None:
        raise UserError(f"--data {data}: --reference and --gold need a file of source sentences")
    own: dict[str, Examples] = {}
    if not run._is_pretrained:
        valid = run.data.valid
        mixed = isinstance(valid, TaskMixture)
        own = {f"valid/{name}": part for name, part in valid.parts.items()} if mixed else {"valid": valid}
        own |= run.data.tests
    if data not in own:
        raise UserError(f"--data {data}: no such file" + (f" or set; the sets are: {', '.join(own)}" if own else ""))
    return own[data]


def select_outputs(
    run: Run, examples: Examples, number: int, selection: OutputSelection = PREDICTED
) -> Iterator[ExplainedOutput]:
    """Yield one output for each of `number` examples of the set; of a translation, caption or masked text, a random word."""
    chosen = range(0, len(examples), max(1, -(-len(examples) // number)))
    if is_foreign(run) and run.task.explains is not None:
        yield from transformers_outputs.example_outputs(cast(TransformersRun, run), examples, chosen, selection)
        return
    if isinstance(examples, ImageExamples) and (run.task.explains is not None and "image" in run.task.reads):
        yield from image_outputs(run, examples, chosen, selection)
        return
    for index in chosen:
        if run.task.explains == "translation" and isinstance(examples, SentencePairs | TextLines):
            yield from translated_word_outputs(cast(TranslateRun, run), examples, index, selection)
        elif isinstance(examples, LabelledTexts):
            selected = select_output(run, examples.keys()[index], selection)
            if not selected.is_compared_with_itself:
                yield selected
        elif isinstance(examples, TextLines):
            words = examples.text[index].split()
            if run.task.explains not in ("next_token", "masked_token"):
                yield select_output(run, examples.text[index], selection)
            elif len(words) > 1:
                word = len(words) - 1 if run.task.decoder_only else pick(range(len(words)), index)
                yield select_output(run, examples.text[index], replace(selection, position=str(word + 1)))
        else:
            raise UserError(NOT_EXPLAINED.format(run=run))


def translated_word_outputs(
    run: TranslateRun, examples: SentencePairs | TextLines, index: int, selection: OutputSelection
) -> Iterator[ExplainedOutput]:
    """Yield words with their gold alignment where it is known, else one random word of the run's own translation."""
    if isinstance(examples, SentencePairs) and examples.gold is not None:
        yield from aligned_word_outputs(run, examples.gold[index], index, selection)
        return
    text = examples.source[index] if isinstance(examples, SentencePairs) else examples.text[index]
    translation = run._best([text])[0].tokens
    words = [word for word in dict.fromkeys(run.tokenizers[1].word_ids(translation)) if word >= 0]
    if words and run._ids([text])[0]:
        yield translation_output(run, text, replace(selection, word=str(pick(words, index) + 1)), translation)


def aligned_word_outputs(
    run: TranslateRun, pair: bilingual.SentencePair, index: int, selection: OutputSelection = PREDICTED
) -> Iterator[ExplainedOutput]:
    """Yield the translation of each "it" in a world's reference with its antecedent; without an "it", one aligned word."""
    most = run.recipe.model.max_length - 1
    source_words = run.tokenizers[0].encode_words([pair.source])[0][1][: len(run._ids([pair.source])[0])]
    reference, target_words = (part[:most] for part in run.tokenizers[1].encode_words([pair.target])[0])
    linked = sorted({t for _, t in pair.alignment if t in target_words})

    def tokens(words: set[int]) -> tuple[int, ...]:
        return tuple(i for i, word in enumerate(source_words) if word in words)

    def word_output(word: int, measure: str, truth: GroundTruth) -> ExplainedOutput:
        selected = translation_output(run, pair.source, replace(selection, word=str(word + 1)), reference)
        return replace(selected, truth={measure: truth})

    if linked and not pair.pronouns:
        chosen = pick(linked, index)
        correct = tokens({s for s, t in (*pair.alignment, *pair.possible) if t == chosen})
        yield word_output(chosen, "alignment", GroundTruth(frozenset(correct), tokens(set(source_words))))
    for pronoun in pair.pronouns:
        truth = GroundTruth(frozenset(tokens({pronoun.antecedent_source})), tokens(set(pronoun.candidates)))
        if pronoun.target in target_words and truth.correct:  # else it is cut off
            yield word_output(pronoun.target, "antecedent", truth)
