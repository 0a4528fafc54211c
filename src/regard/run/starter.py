"""A starter recipe for one's own data, with settings fit to its size."""

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from regard.corpus.examples import Examples, Pairs
from regard.corpus.gallery import read_pictures
from regard.corpus.pairs import read_pairs
from regard.corpus.questions import read_questions
from regard.corpus.single import read_labelled, read_tagged, read_text
from regard.corpus.text import iterate_lines
from regard.errors import Mistake
from regard.run.starter_pairs import contrast_recipe, sides_of
from regard.run.starter_pictures import codes_recipe, draw_recipe
from regard.run.starter_tasks import found_tasks

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
    raise Mistake(f"no task {task!r}; there are: {', '.join(STARTERS)}")


def translate_recipe(files: Sequence[Path]) -> str:
    """For two aligned files, or one .tsv or .jsonl."""
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


def tasks_recipe(files: Sequence[Path]) -> str:
    """For several tables, and two aligned files: a task each."""
    tasks = found_tasks(files)
    number = sum(len(task.pairs) for task in tasks)
    preset, size, steps, tokens, rate, dropout, _, _ = next(row[1:] for row in SIZES if number <= row[0])
    longest = max(longest_words(task.pairs) for task in tasks)
    root = files[0].parent if same_folder(files) else Path()
    parts = "\n".join(task.part(same_folder(files)) for task in tasks)
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
ema = 0.999                     # keep a moving average of the weights, and evaluate that
# begin = {{run = "runs/pretrained"}}      # a run of the task corrupted, or a T5 folder, of the same shape

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
        raise Mistake("name your data: --data F")
    words, examples, settings = DESCRIBED[task](files)
    segments = "segments = 2                    # the question, and the text beside it\n" if task == "answer" else ""
    held_out = min(2000, max(1, len(set(examples.keys())) // 20))
    steps, tokens, width, dropout = next(row[1:] for row in TEXT_SIZES if len(examples) <= row[0])
    longest = max(len(text.split()) for text in examples.texts()[0])
    names = ", ".join(f'"{path.name if same_folder(files) else path.resolve()}"' for path in files)
    root = files[0].parent if same_folder(files) else Path()
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
    "translate": translate_recipe, "text-to-text": tasks_recipe, **{task: partial(text_recipe, task) for task in DESCRIBED},
    "contrast": contrast_recipe, "codes": codes_recipe, "draw": draw_recipe}


# (shorter sides up to, size, patch)
PICTURE_SIZES = [(40, 32, 4), (96, 64, 8), (160, 128, 16), (float("inf"), 224, 16)]
# (pictures up to, epochs, layers, width)
PICTURE_NUMBERS = [(5_000, 200, 6, 192), (100_000, 200, 9, 384), (float("inf"), 90, 12, 384)]


def picture_recipe(task: str, folder: Path) -> str:
    """For a folder with a folder for each label, or with such folders in train and valid."""
    if task != "classify":
        raise Mistake(f"--pictures: pictures are for the task classify, not {task!r}")
    if not folder.is_dir():
        raise Mistake(f"{folder} is not a folder; name one with a folder for each label")
    train = "train" if (folder / "train").is_dir() else "."
    pictures = read_pictures([folder / train], label=0)
    valid = next((name for name in ("valid", "validation", "val", "dev") if train == "train" and (folder / name).is_dir()), None)
    test = 'test.mine = ["test"]\n' if train == "train" and (folder / "test").is_dir() else ""
    held_out = min(2000, max(1, len(set(pictures.keys())) // 20))
    checked = f'valid = ["{valid}"]\n' if valid else f"""\
held_out = {held_out}                 # so many pictures are set aside to validate, and as many to test;
                                # or name your own folders:  valid = ["valid"]  and  test.mine = ["test"]
"""
    size, patch = next(row[1:] for row in PICTURE_SIZES if np.median(sides_of(pictures)) <= row[0])
    epochs, layers, width = next(row[1:] for row in PICTURE_NUMBERS if len(pictures) <= row[0])
    batch = min(256, max(8, len(pictures) // 8))
    steps = max(200, epochs * -(-len(pictures) // batch))
    return f"""\
# Labels of pictures, from {len(pictures):,} of your own. Train it with:  regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "classify"
seed = 1

[data]
root = "{folder.resolve()}"
train = ["{train}"]               # a folder for each label
{checked}{test}size = {size}                       # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card

[model]
kind = "vit"
layers = {layers}
width = {width}
heads = {width // 64}
feed_forward = {4 * width}
patch = {patch}                       # {size // patch} × {size // patch} patches are read like words

[train]
steps = {steps}                   # {epochs} times through the pictures
pictures_per_batch = {batch}
evaluate_every = {max(20, steps // 20)}
save_every = {max(20, steps // 20)}

[train.optimizer]
learning_rate = 1e-3
weight_decay = 0.05

[train.schedule]
warmup_steps = {max(20, steps // 20)}

[train.regularize]
dropout = 0.0
drop_path = 0.1
label_smoothing = 0.1

[train.augment]                 # what is done to the pictures while training; leave out what changes their meaning
crop = {max(1, size // 8)}
flip = true
rand_augment = {{ number = 2, magnitude = 9 }}
mixup = 0.8
cutmix = 1.0
erase = 0.25
"""


def caption_recipe(files: Sequence[Path]) -> str:
    """For tables of paths and captions, or indices of pictures laid end to end."""
    if not files:
        raise Mistake("name your data: --data F, a .tsv or .jsonl with the path of a picture and its captions")
    first = next(iter(iterate_lines(files[0])), "")
    laid = ".index.tsv" in files[0].name
    columns: list[int | str] = ["captions"] if ".jsonl" in files[0].name else \
        list(range(3 if laid else 1, max(4 if laid else 2, len(first.split("\t")))))
    path: int | str = "file" if ".jsonl" in files[0].name else 0
    pictures = read_pictures(files, captions=columns, path=path)
    held_out = min(1000, max(1, len(set(pictures.keys())) // 20))
    texts = pictures.texts()[0]
    steps, batch = max(500, 40 * len(pictures) // 64), min(64, max(8, len(pictures) // 8))
    names = ", ".join(f'"{file.name if same_folder(files) else file.resolve()}"' for file in files)
    root = files[0].resolve().parent if same_folder(files) else Path()
    longest = max(len(text.split()) for text in texts)
    return f"""\
# Captions of pictures, from {len(pictures):,} of your own with {len(texts):,} captions. Train it with:
#   regard train THIS_FILE --out runs/mine
# Every setting is explained in docs/settings.md; what is not written here has a default.
task = "caption"
seed = 1

[data]
root = "{root}"
train = [{names}]
path = {json.dumps(path)}                        # the column of the path: its number, counted from 0, or its name
captions = {json.dumps(columns)}
held_out = {held_out}                 # so many pictures are set aside to validate, and as many to test
too_long = "truncate"
size = 128                      # every picture is brought to this height and width: the middle of it
origin = ""                     # where the pictures come from, and their licence; printed on the model's card

[tokens]
kind = "words"
size = {min(8000, max(500, len(texts) // 4))}
lowercase = true

[model]
max_length = {max(24, 2 * longest)}                 # the longest caption has {longest} words

[model.encoder]                 # or EfficientNet-Lite0 with ImageNet's weights, which few pictures need: docs/caption.md
kind = "cnn"
widths = [32, 64, 128, 256]
strides = [2, 2, 2, 2]          # a map of 8 × 8 places

[model.decoder]
kind = "lstm"                   # or "transformer"
width = 256

[train]
steps = {steps}
pictures_per_batch = {batch}
evaluate_every = {max(20, steps // 20)}
evaluate_sentences = {min(200, held_out)}        # decoded for BLEU at each evaluation
save_every = {max(20, steps // 20)}

[train.optimizer]
learning_rate = 1e-3

[train.schedule]
warmup_steps = {max(20, steps // 20)}

[train.regularize]
dropout = 0.3
label_smoothing = 0.0

[train.augment]
crop = 8

[decode]
beam = 3
length_penalty = 0.6
"""


STARTERS["caption"] = caption_recipe


def same_folder(files: Sequence[Path]) -> bool:
    return len({path.parent for path in files}) == 1


def longest_words(pairs: Pairs) -> int:
    return int(np.max([len(text.split()) for text in (*pairs.source, *pairs.target)]))
