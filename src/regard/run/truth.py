"""What only a world knows: whether each "it" was translated right, and which word aligns with which."""

from collections.abc import Iterator, Sequence

from regard.run.base import Result
from regard.run.translate import Alignment, Translator
from regard.scoring import accuracy, alignment_error, best_head, links, uniform_error
from regard.worlds import bilingual

HEAD_SENTENCES = 300


def score_against_truth(run: Translator, result: Result, gold: list[bilingual.Pair]) -> None:
    """What only a world knows: whether each "it" was translated right, and which word aligns with which."""
    riddles = [(pair, said) for pair, said in zip(gold, result.outputs) if pair.pronouns]
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


def align_gold(run: Translator, gold: Sequence[bilingual.Pair], kind: str = "cross") -> Iterator[Alignment]:
    """The attention while the reference itself is read."""
    return run.align([pair.source for pair in gold], run.tokenizers[1].encode([pair.target for pair in gold]), kind=kind)


def alignment_head(run: Translator) -> tuple[int, int]:
    """The (layer, head) whose attention is nearest to the gold alignment of validation sentences."""
    gold = run.data.valid.gold
    assert gold is not None, "only a world has gold alignments"
    chosen = gold[:HEAD_SENTENCES]
    head, _ = best_head([found.weights for found in align_gold(run, chosen)], [set(pair.alignment) for pair in chosen])
    return head
