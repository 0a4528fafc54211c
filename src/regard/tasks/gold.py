"""What a world knows, or a file of gold alignments: whether each "it" was translated right, and which word aligns with which."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from regard.corpus.examples import SentencePairs
from regard.corpus.lines import read_lines
from regard.errors import UserError
from regard.scoring import accuracy, alignment_error, argmax_links, best_head, parse_moses, uniform_alignment_error
from regard.tasks.base import EvaluationResult, Run
from regard.tasks.translate import Alignment, TranslateRun
from regard.worlds import bilingual

HEAD_SENTENCES = 300


def attach_gold_alignments(run: Run, pairs: SentencePairs, path: Path) -> SentencePairs:
    """Pairs of files with their gold alignments: a line for each line of the text, of links such as `0-0 1-2 3?4`."""
    if not isinstance(run, TranslateRun) or hasattr(run, "prefixed"):
        raise UserError(f"--gold {path}: word alignments are for a run that translates; {run.folder} {run.does}")
    if not run.attends:
        raise UserError(f"--gold {path}: a model without attention aligns no words (model.attention = 'none')")
    lines, expected = read_lines(path), len(read_lines(Path(pairs.name)))
    if len(lines) != expected:
        raise UserError(
            f"{path} has {len(lines):,} lines but {pairs.name} has {expected:,}; line n of one must align line n of the other"
        )
    return replace(
        pairs,
        gold=[
            parse_gold_pair(source, target, lines[line - 1], f"{path}:{line}")
            for source, target, line in zip(pairs.source, pairs.target, pairs.lines)
        ],
    )


def parse_gold_pair(source: str, target: str, line: str, where: str) -> bilingual.SentencePair:
    sure, possible = parse_moses(line, where)
    S, T = len(source.split()), len(target.split())
    for s, t in sorted(sure | possible):
        if s >= S or t >= T:
            raise UserError(
                f"{where}: the link {s}-{t} leads outside the sentence, which has {S} source and {T} target words; "
                "words are what spaces separate, counted from 0"
            )
    return bilingual.SentencePair(source, target, tuple(sorted(sure)), (), tuple(sorted(possible)))


def add_gold_scores(run: TranslateRun, result: EvaluationResult, gold: list[bilingual.SentencePair]) -> None:
    """Whether each "it" was translated right, where there are any; and how far attention is from the gold alignment."""
    riddles = [(pair, said) for pair, said in zip(gold, result.outputs) if pair.pronouns]
    if riddles:
        result.scores["pronouns"] = accuracy([bilingual.pronouns_correct(pair, said) for pair, said in riddles], "pronouns")
        guesses = ", ".join(f"{name} {share:.1%}" for name, share in bilingual.pronoun_baselines(gold).items())
        result.notes.append(f"pronouns: guessing by {guesses}")
    if not run.attends:
        return
    found = list(align_gold(run, gold))
    heads, how = choose_heads(run, found, gold)
    sure, possible = gold_links(gold)
    read = [argmax_links(one.weights[head]) for one, head in zip(found, heads)]
    result.scores["alignment_error"] = alignment_error(read, sure, possible)
    diagonal = uniform_alignment_error([one.weights[0, 0].shape for one in found], sure, possible)
    result.notes.append(f"alignment: {how}; the diagonal has error {diagonal.score:.3f}")


def gold_links(gold: Sequence[bilingual.SentencePair]) -> tuple[list[set[tuple[int, int]]], list[set[tuple[int, int]]]]:
    """The sure and the possible links."""
    return [set(pair.alignment) for pair in gold], [set(pair.possible) for pair in gold]


def choose_heads(
    run: TranslateRun, found: Sequence[Alignment], gold: Sequence[bilingual.SentencePair]
) -> tuple[list[tuple[int, int]], str]:
    """The (layer, head) to read each sentence's alignment off, chosen on others: validation sentences that have a gold alignment,
    or else, of these sentences, those of the other half."""
    if run.huggingface is None and getattr(run.data.valid, "gold", None):
        layer, head = best_alignment_head(run)
        return [(layer, head)] * len(found), f"layer {layer + 1}, head {head + 1} (chosen on validation sentences)"
    if len(gold) < 2:
        raise UserError("one sentence has a gold alignment: a head is chosen on some and scored on others, so give two or more")
    sure, possible = gold_links(gold)
    chosen = [best_head([one.weights for one in found[half::2]], sure[half::2], possible[half::2])[0] for half in (0, 1)]
    names = dict.fromkeys(f"layer {layer + 1}, head {head + 1}" for layer, head in chosen)
    return [chosen[(i + 1) % 2] for i in range(len(found))], f"{' and '.join(names)} (chosen on one half, scored on the other)"


def align_gold(run: TranslateRun, gold: Sequence[bilingual.SentencePair], kind: str = "cross") -> Iterator[Alignment]:
    """The attention while the reference itself is read."""
    return run.align([pair.source for pair in gold], [pair.target for pair in gold], kind=kind)


def best_alignment_head(run: TranslateRun) -> tuple[int, int]:
    """The (layer, head) whose attention is nearest to the gold alignment of validation sentences."""
    gold = run.data.valid.gold
    assert gold is not None, "only a world has gold alignments"
    chosen = gold[:HEAD_SENTENCES]
    head, _ = best_head([found.weights for found in align_gold(run, chosen)], *gold_links(chosen))
    return head
