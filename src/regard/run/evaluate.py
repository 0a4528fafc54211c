"""Score a run on its test sets or on other files; compare runs."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from regard.batches.batches import in_order
from regard.batches.lengths import evaluation_store
from regard.corpus.pairs import Pairs, read_pairs
from regard.errors import Mistake
from regard.run.opened import Alignment, Run
from regard.scoring import (
    Score,
    accuracy,
    alignment_error,
    best_head,
    compare,
    links,
    perplexity,
    score_by_length,
    translation_scores,
    uniform_error,
)
from regard.tokens.special import PAD
from regard.training.objectives import sentence_log_probabilities
from regard.worlds import bilingual

HEAD_SENTENCES = 300


@dataclass
class Result:
    """The scores of one set, and what they were computed from."""

    name: str
    pairs: Pairs
    hypotheses: list[str]
    scores: dict[str, Score]
    by_length: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def evaluate(run: Run, *, source: Path | None = None, reference: Path | None = None, save: bool = True) -> list[Result]:
    """Score the recipe's test sets, or one pair of files, and write scores.json into the run folder."""
    if (source is None) != (reference is None):
        raise Mistake("--source and --reference go together")
    if source is not None and reference is not None:
        sets = {source.name.split(".")[0]: read_pairs([source, reference])}
    else:
        sets = run.data.tests or {"valid": run.data.valid}
    results = [score_set(run, name, pairs) for name, pairs in sets.items()]
    if save:
        write_scores(run, results)
    return results


def score_set(run: Run, name: str, pairs: Pairs) -> Result:
    hypotheses = [translation.text for translation in run.best(pairs.source)]
    scores = translation_scores(hypotheses, pairs.target)
    scores["perplexity"] = sentence_perplexity(run, pairs)
    result = Result(name, pairs, hypotheses, scores, score_by_length(pairs.source, hypotheses, pairs.target))
    if pairs.gold is not None:
        score_against_truth(run, result, pairs.gold)
    signature = run.signature()
    result.scores = {metric: replace(score, signature=f"{score.signature}|{signature}") for metric, score in scores.items()}
    return result


def sentence_perplexity(run: Run, pairs: Pairs) -> Score:
    """Perplexity a token of the references."""
    store = evaluation_store(pairs, run.tokenizers, max_length=run.recipe.model.max_length, too_long="truncate")
    log_p, counts = np.zeros(len(pairs)), np.zeros(len(pairs))
    for batch in in_order(store, run.recipe.decode.batch_tokens):
        log_p[batch.rows] = sentence_log_probabilities(run.model, batch.to(run.device)).cpu()
        counts[batch.rows] = (batch.labels != PAD).sum(1)
    return perplexity(log_p, counts)


def score_against_truth(run: Run, result: Result, gold: list[bilingual.Pair]) -> None:
    """What only a world knows: whether each "it" was translated right, and which word aligns with which."""
    riddles = [(pair, said) for pair, said in zip(gold, result.hypotheses) if pair.pronouns]
    result.scores["pronouns"] = accuracy([bilingual.pronouns_right(pair, said) for pair, said in riddles], "pronouns")
    guesses = ", ".join(f"{name} {share:.1%}" for name, share in bilingual.baselines(gold).items())
    result.notes.append(f"pronouns: guessing by {guesses}")
    if not run.attends:
        return
    layer, head = alignment_head(run)
    aligned = list(align_gold(run, gold))
    truth = [set(pair.alignment) for pair in gold]
    result.scores["alignment_error"] = alignment_error([links(found.weights[layer, head]) for found in aligned], truth)
    diagonal = uniform_error([found.weights[0, 0].shape for found in aligned], truth)
    result.notes.append(f"alignment: layer {layer + 1}, head {head + 1} (chosen on validation sentences); "
                        f"the diagonal has error {diagonal.score:.3f}")


def align_gold(run: Run, gold: Sequence[bilingual.Pair]) -> Iterator[Alignment]:
    """The attention while the reference itself is read."""
    return run.align([pair.source for pair in gold], run.tokenizers[1].encode([pair.target for pair in gold]))


def alignment_head(run: Run) -> tuple[int, int]:
    """The (layer, head) whose attention is nearest to the gold alignment of validation sentences."""
    gold = run.data.valid.gold
    assert gold is not None, "only a world has gold alignments"
    chosen = gold[:HEAD_SENTENCES]
    head, _ = best_head([found.weights for found in align_gold(run, chosen)], [set(pair.alignment) for pair in chosen])
    return head


def write_scores(run: Run, results: Sequence[Result]) -> None:
    """scores.json: {set: {metric: {score, low, high, signature}}}; the translations; BLEU by sentence length as a picture."""
    path = run.folder / "scores.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    known |= {result.name: {metric: score.to_json() for metric, score in result.scores.items()} for result in results}
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    (run.folder / "translations").mkdir(exist_ok=True)
    for result in results:
        (run.folder / "translations" / f"{result.name}.txt").write_text("\n".join(result.hypotheses) + "\n", encoding="utf-8")
        draw_by_length({run.folder.name: result.by_length}, run.folder / "pictures" / f"bleu-by-length-{result.name}.svg")


def draw_by_length(series: dict[str, list[dict[str, Any]]], path: Path) -> None:
    from regard.pictures.curves import score_by_length as picture
    from regard.pictures.style import save

    save(picture(series), path)


def compare_runs(runs: Sequence[Run], *, source: Path | None = None,
                 reference: Path | None = None) -> dict[str, list[dict[str, Any]]]:
    """Paired tests of each run against the first, on the first one's test sets or on given files."""
    folders = [run.folder.name for run in runs]
    names = [name if folders.count(name) == 1 else f"{number} {name}" for number, name in enumerate(folders, start=1)]
    sets = {source.name.split(".")[0]: read_pairs([source, reference])} if source and reference else runs[0].data.tests
    if not sets:
        raise Mistake(f"{runs[0].folder} names no test sets; give --source and --reference")
    return {name: compare({label: [t.text for t in run.best(pairs.source)] for label, run in zip(names, runs)}, pairs.target)
            for name, pairs in sets.items()}
