"""A starter recipe for one's own data, with settings fit to its size."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from regard.corpus.examples import Examples, SentencePairs
from regard.corpus.lines import iterate_lines
from regard.corpus.pairs import read_pairs
from regard.corpus.questions import read_questions
from regard.corpus.text_files import read_labelled, read_tagged, read_text
from regard.errors import UserError
from regard.tasks.starters.starter_files import held_out_size, root_and_names
from regard.tasks.starters.starter_pairs import caption_recipe, contrastive_recipe
from regard.tasks.starters.starter_pictures import image_codes_recipe, text_to_image_recipe
from regard.tasks.starters.starter_tasks import detect_tasks

# (pairs up to, preset, vocabulary, steps, tokens a batch, learning rate, dropout, R-Drop, BPE-dropout)
SIZES = [
    (5_000, "tiny", 2_000, 3_000, 2048, 2e-3, 0.3, 0.0, 0.1),
    (50_000, "small", 6_000, 8_000, 4096, 1e-3, 0.3, 4.0, 0.1),
    (500_000, "small", 12_000, 30_000, 8192, 1e-3, 0.2, 2.0, 0.1),
    (5_000_000, "base", 32_000, 100_000, 25_000, 7e-4, 0.1, 0.0, 0.0),
    (float("inf"), "big", 32_000, 300_000, 25_000, 5e-4, 0.1, 0.0, 0.0),
]


def starter_recipe(task: str, files: Sequence[Path]) -> str:
    """A commented TOML recipe of a task for `files`."""
    if task in STARTERS:
        return STARTERS[task](files)
    raise UserError(f"no task {task!r}; there are: {', '.join(STARTERS)}")


def translate_recipe(files: Sequence[Path]) -> str:
    """For two aligned files, or one .tsv or .jsonl."""
    if not files:
        raise UserError("name your data: --source F --target F, or --pairs F.tsv")
    pairs = read_pairs(files)
    held_out = held_out_size(pairs)
    longest = longest_words(pairs)
    preset, size, steps, tokens, rate, dropout, r_drop, bpe_dropout = next(row[1:] for row in SIZES if len(pairs) <= row[0])
    root, names = root_and_names(files)
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
ema_decay = 0.999                     # keep a moving average of the weights, and evaluate that

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


def tasks_recipe(files: Sequence[Path]) -> str:
    """For several tables, and two aligned files: a task each."""
    tasks = detect_tasks(files)
    number = sum(len(task.pairs) for task in tasks)
    preset, size, steps, tokens, rate, dropout, _, _ = next(row[1:] for row in SIZES if number <= row[0])
    longest = max(longest_words(task.pairs) for task in tasks)
    root = root_and_names(files)[0]
    parts = "\n".join(task.part(files) for task in tasks)
    return f"""\
# Texts answered with texts, from {number:,} examples of your own. Train it with:  regard train THIS_FILE --out runs/mine
# and ask it with:  regard translate runs/mine "…" --task {tasks[0].name}
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "text-to-text"
seed = 1

[data]
root = "{root}"                       # relative paths start here
mixing = "proportional"         # or "equal", or a temperature such as 2.0: how often each task is read
origin = ""                     # where the data come from, and their licence; printed on the model's card

{parts}
[tokens]
kind = "bpe"
size = {size}

[model]
preset = "{preset}"                # tiny, small, base, big, or T5's: t5-tiny, t5-small, t5-base, t5-large
norm_first = true
max_length = {min(512, max(64, 4 * longest))}                # the longest line has {longest} words

[train]
steps = {steps}
tokens_per_batch = {tokens}
evaluate_every = {max(100, steps // 20)}
evaluate_sentences = 100        # of each task, decoded at each evaluation
save_every = {max(100, steps // 20)}
ema_decay = 0.999                     # keep a moving average of the weights, and evaluate that
# init_from = {{run = "runs/pretrained"}}      # a run of the task span-corruption, or a T5 folder, of the same shape

[train.optimizer]
kind = "adamw"
learning_rate = {rate}

[train.schedule]
kind = "cosine"
warmup_steps = {max(100, steps // 10)}

[train.regularize]
dropout = {dropout}
label_smoothing = 0.1

[decode]
beam = 4
"""


# (examples up to, steps, tokens a batch, width, dropout)
TEXT_SIZES = [(2_000, 1_000, 2048, 128, 0.4), (50_000, 4_000, 4096, 256, 0.3), (float("inf"), 20_000, 8192, 512, 0.1)]


def text_recipe(task: str, files: Sequence[Path]) -> str:
    """For plain text, labelled texts or tagged words."""
    if not files:
        raise UserError("name your data: --data F")
    words, examples, settings = DESCRIBED[task](files)
    segments = "segments = 2                    # the question, and the text beside it\n" if task == "answer" else ""
    held_out = held_out_size(examples)
    steps, tokens, width, dropout = next(row[1:] for row in TEXT_SIZES if len(examples) <= row[0])
    longest = max(len(text.split()) for text in examples.texts()[0])
    root, names = root_and_names(files)
    return f"""\
# {words}, from {len(examples):,} examples of your own. Train it with:  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "{task}"
seed = 1

[data]
root = "{root}"                       # relative paths start here
train = [{names}]
held_out = {held_out}                 # so many texts are set aside to validate, and as many to test;
                                # or name your own:  valid = ["dev.txt"]  and  test.mine = ["test.txt"]
{settings}origin = ""                     # where the data come from, and their licence; printed on the model's card

[tokens]
kind = "bpe"
size = {min(8000, max(500, 20 * len(examples) // 100 * 10))}

[model]
kind = "transformer"
layers = 4
width = {width}
heads = 4
feed_forward = {4 * width}
{segments}max_length = {min(512, max(32, 4 * longest))}                # the longest text has {longest} words

[train]
steps = {steps}
tokens_per_batch = {tokens}
evaluate_every = {max(100, steps // 20)}
save_every = {max(100, steps // 20)}

[train.optimizer]
learning_rate = 5e-4

[train.schedule]
warmup_steps = {max(100, steps // 10)}

[train.regularize]
dropout = {dropout}
label_smoothing = 0.0
"""


def labelled(files: Sequence[Path]) -> tuple[str, Examples, str]:
    """Text and label are in the first two columns, unless the first line names them."""
    first = next(iter(iterate_lines(files[0])), "").lower().split("\t")
    named = next((name for name in ("sentence", "text") if name in first and "label" in first), None)
    text, label = (0, 1) if named is None else (named, "label")
    lines = [f"text = {json.dumps(text)}", f"label = {json.dumps(label)}"]
    settings = "".join(f"{line:<32}# a column's number, counted from 0, or its name\n" for line in lines)
    return "Labels of texts", read_labelled(files, text=text, label=label), settings


def asked(files: Sequence[Path]) -> tuple[str, Examples, str]:
    """Whether some questions have no answer is seen in the data."""
    found = read_questions(files)
    line = f"unanswerable = {json.dumps(not all(found.answers))}"
    settings = f"{line:<32}# whether some questions have no answer in their context\n"
    return "Answers in texts", found, settings + f"{'stride = 128':<32}# tokens between two windows of a long context\n"


DESCRIBED: dict[str, Callable[[Sequence[Path]], tuple[str, Examples, str]]] = {
    "language": lambda files: ("What comes next in a text", read_text(files), ""),
    "masked": lambda files: ("Masked words", read_text(files), ""),
    "classify": labelled,
    "tag": lambda files: ("Labels of words", read_tagged(files), ""),
    "answer": asked,
}
STARTERS: dict[str, Callable[[Sequence[Path]], str]] = {
    "translate": translate_recipe,
    "text-to-text": tasks_recipe,
    **{task: partial(text_recipe, task) for task in DESCRIBED},
    "caption": caption_recipe,
    "contrastive": contrastive_recipe,
    "codes": image_codes_recipe,
    "draw": text_to_image_recipe,
}


def longest_words(pairs: SentencePairs) -> int:
    return int(np.max([len(text.split()) for text in (*pairs.source, *pairs.target)]))
