"""Gold word alignments, of a world or of a file, and the scores against them."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from regard.corpus.examples import Examples, SentencePairs
from regard.corpus.lines import read_lines
from regard.errors import UserError
from regard.scoring import accuracy, alignment_error, argmax_links, best_head, parse_moses, uniform_alignment_error
from regard.tasks.base import Run
from regard.tasks.task import EvaluationResult
from regard.tasks.translate import Alignment, TranslateRun
from regard.worlds import bilingual

HEAD_SENTENCES = 300
"""Validation sentences that the head to score is chosen on."""
Links = list[set[tuple[int, int]]]


def attach_gold_alignments(run: Run, pairs: Examples, path: Path) -> SentencePairs:
    """Return the pairs of two files with the gold alignments of a third: one line per line, links such as `0-0 1-2 3?4`."""
    if run.task.name != "translate" or not isinstance(pairs, SentencePairs):
        raise UserError(f"--gold {path}: word alignments are for a run that translates; {run.folder} {run.task.does}")
    if not run._attends:
        raise UserError(f"--gold {path}: a model without attention aligns no words (model.attention = 'none')")
    lines, expected = read_lines(path), len(read_lines(Path(pairs.name)))
    if len(lines) != expected:
        raise UserError(
            f"{path} has {len(lines):,} lines but {pairs.name} has {expected:,}; line n of one must align line n of the other"
        )
    gold = [
        parse_gold_pair(source, target, lines[line - 1], f"{path}:{line}")
        for source, target, line in zip(pairs.source, pairs.target, pairs.lines)
    ]
    return replace(pairs, gold=gold)


def parse_gold_pair(source: str, target: str, line: str, where: str) -> bilingual.SentencePair:
    """Return a pair with the links of a line, checked to be inside the sentences."""
    sure, possible = parse_moses(line, where)
    S, T = len(source.split()), len(target.split())
    for s, t in sorted(sure | possible):
        if s >= S or t >= T:
            raise UserError(
                f"{where}: the link {s}-{t} is outside the sentence, which has {S} source and {T} target words; "
                "words are separated by spaces and counted from 0"
            )
    return bilingual.SentencePair(source, target, tuple(sorted(sure)), (), tuple(sorted(possible)))


def add_gold_scores(run: TranslateRun, result: EvaluationResult, gold: list[bilingual.SentencePair]) -> None:
    """Add the accuracy of translated pronouns, if there are any, and the alignment error of attention."""
    with_pronouns = [(pair, output) for pair, output in zip(gold, result.outputs) if pair.pronouns]
    if with_pronouns:
        right = [bilingual.pronouns_correct(pair, output) for pair, output in with_pronouns]
        result.scores["pronouns"] = accuracy(right, "pronouns")
        baselines = ", ".join(f"{name} {fraction:.1%}" for name, fraction in bilingual.pronoun_baselines(gold).items())
        result.notes.append(f"pronouns, baselines: {baselines}")
    if not run._attends:
        return
    found = list(align_gold(run, gold))
    heads, how = choose_heads(run, found, gold)
    sure, possible = gold_links(gold)
    links = [argmax_links(one.weights[head]) for one, head in zip(found, heads)]
    result.scores["alignment_error"] = alignment_error(links, sure, possible)
    diagonal = uniform_alignment_error([one.weights[0, 0].shape for one in found], sure, possible)
    result.notes.append(f"alignment: {how}; baseline, the diagonal: {diagonal.score:.3f}")


def gold_links(gold: Sequence[bilingual.SentencePair]) -> tuple[Links, Links]:
    """Return the sure and the possible links."""
    return [set(pair.alignment) for pair in gold], [set(pair.possible) for pair in gold]


def choose_heads(
    run: TranslateRun, found: Sequence[Alignment], gold: Sequence[bilingual.SentencePair]
) -> tuple[list[tuple[int, int]], str]:
    """Return the (layer, head) to score each sentence's alignment with, and how it was chosen: never on the sentence itself.

    It is chosen on validation sentences with gold alignments, or else on the other half of these sentences.
    """
    if run._huggingface is None and getattr(run.data.valid, "gold", None):
        layer, head = best_alignment_head(run)
        return [(layer, head)] * len(found), f"layer {layer + 1}, head {head + 1} (chosen on validation sentences)"
    if len(gold) < 2:
        raise UserError("one sentence has a gold alignment: a head is chosen on some and scored on others, so give two or more")
    sure, possible = gold_links(gold)
    chosen = [best_head([one.weights for one in found[half::2]], sure[half::2], possible[half::2])[0] for half in (0, 1)]
    names = dict.fromkeys(f"layer {layer + 1}, head {head + 1}" for layer, head in chosen)
    return [chosen[(i + 1) % 2] for i in range(len(found))], f"{' and '.join(names)} (chosen on one half, scored on the other)"


def align_gold(run: TranslateRun, gold: Sequence[bilingual.SentencePair], kind: str = "cross") -> Iterator[Alignment]:
    """Yield the alignment of each source with its reference."""
    return run._align([pair.source for pair in gold], [pair.target for pair in gold], kind=kind)


def best_alignment_head(run: TranslateRun) -> tuple[int, int]:
    """Return the (layer, head) whose attention has the lowest alignment error on validation sentences."""
    gold = run.data.valid.gold
    assert gold is not None, "only a world has gold alignments"
    chosen = gold[:HEAD_SENTENCES]
    head, _ = best_head([found.weights for found in align_gold(run, chosen)], *gold_links(chosen))
    return head
