"""A starter recipe for one's own parallel text, with settings fit to its size."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from regard.corpus.pairs import Pairs, read_pairs
from regard.errors import Mistake

# (pairs up to, preset, vocabulary, steps, tokens a batch, learning rate, dropout, R-Drop, BPE-dropout)
SIZES = [
    (5_000, "tiny", 2_000, 3_000, 2048, 2e-3, 0.3, 0.0, 0.1),
    (50_000, "small", 6_000, 8_000, 4096, 1e-3, 0.3, 4.0, 0.1),
    (500_000, "small", 12_000, 30_000, 8192, 1e-3, 0.2, 2.0, 0.1),
    (5_000_000, "base", 32_000, 100_000, 25_000, 7e-4, 0.1, 0.0, 0.0),
    (float("inf"), "big", 32_000, 300_000, 25_000, 5e-4, 0.1, 0.0, 0.0),
]


def starter_recipe(task: str, files: Sequence[Path]) -> str:
    """A commented TOML recipe for `files`: two aligned ones, or one .tsv or .jsonl."""
    if task != "translate":
        raise Mistake(f"no task {task!r}; there is: translate")
    if not files:
        raise Mistake("name your data: --source F --target F, or --pairs F.tsv")
    pairs = read_pairs(files)
    held_out = min(2000, max(1, len(set(pairs.source)) // 20))
    longest = longest_words(pairs)
    preset, size, steps, tokens, rate, dropout, r_drop, bpe_dropout = next(row[1:] for row in SIZES if len(pairs) <= row[0])
    names = ", ".join(f'"{path.name if same_folder(files) else path.resolve()}"' for path in files)
    root = files[0].parent if same_folder(files) else Path()
    return f"""\
# Translation, from {len(pairs):,} sentence pairs of your own. Train it with:  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "translate"
seed = 1

[data]
root = "{root}"                       # relative paths start here
train = [{names}]
held_out = {held_out}                 # so many source sentences are set aside to validate, and as many to test;
                                # or name your own:  valid = ["dev.en", "dev.de"]  and  test.mine = ["test.en", "test.de"]
too_long = "drop"               # pairs of more than model.max_length tokens: "error", "drop" or "truncate"
origin = ""                     # where the data come from, and their licence; printed on the model's card

[tokens]
kind = "bpe"
size = {size}                     # sub-words in the vocabulary, shared by both languages

[model]
preset = "{preset}"                # tiny, small, base or big; any field of it can be set here
norm_first = true               # trains more steadily than the published order
max_length = {max(64, 4 * longest)}                # the longest line has {longest} words

[train]
steps = {steps}
tokens_per_batch = {tokens}
evaluate_every = {max(100, steps // 20)}
evaluate_sentences = {min(500, held_out)}        # decoded for BLEU at each evaluation
save_every = {max(100, steps // 20)}
ema = 0.999                     # keep a moving average of the weights, and evaluate that

[train.optimizer]
kind = "adamw"
learning_rate = {rate}

[train.schedule]
kind = "cosine"
warmup_steps = {max(100, steps // 10)}

[train.regularize]
dropout = {dropout}
label_smoothing = 0.1
r_drop = {r_drop}                    # two passes that must agree: slower, and better on little data
bpe_dropout = {bpe_dropout}

[decode]
beam = 5
length_penalty = 0.6
"""


def same_folder(files: Sequence[Path]) -> bool:
    return len({path.parent for path in files}) == 1


def longest_words(pairs: Pairs) -> int:
    return int(np.max([len(text.split()) for text in (*pairs.source, *pairs.target)]))
