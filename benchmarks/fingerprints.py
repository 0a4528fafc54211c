"""Fingerprints of results: a tiny model of every task, trained on the embedded worlds, and hashes of what it computes.

    python benchmarks/fingerprints.py --out new.json [--only tag]          all entries, or one
    python benchmarks/fingerprints.py --out new.json --compare old.json    exit with status 1 if any entry differs

A change that should not change results is checked by comparing the files from before and after it, made on the same machine.
Only values are hashed: parameters, attention layers, metrics and fields may be renamed. Takes two minutes on one core.
Vocabularies of the kinds wordpiece and unigram are left out: `tokenizers` does not train the same one twice.
"""

import argparse
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", RAYON_NUM_THREADS="1")

import numpy as np
import torch
from safetensors.numpy import load_file

import regard
from regard.attention.recording import AttentionRecording
from regard.batches.batches import Batches, sequential_batches
from regard.corpus.dataset import read_dataset
from regard.run.evaluate import evaluate
from regard.studies.demo import run_demo
from regard.worlds import bilingual, shapes

# ---- Names of regard: besides the imports above, they are all from here to the next such line.

PAIRS = {split: bilingual.generate(number, 3, level=1, split=split) for split, number in (("train", 200), ("valid", 20))}
SENTENCES, PROMPTS = [pair.source for pair in PAIRS["valid"][:3]], [pair.target[:9].strip() for pair in PAIRS["valid"][:3]]
MASKED = [" ".join("[MASK]" if i in (1, 3) else word for i, word in enumerate(text.split())) for text in SENTENCES]
IMAGES = [picture.pixels() for picture in shapes.generate(3, 5, split="test", size=40, shapes=(1, 2))]
CAPTIONS = ["a red circle", "a blue square", "a green star"]
SAMPLED = dict(temperature=1.3, top_k=20, top_p=0.9, seed=7)
FIELDS = [
    "text",
    "label",
    "score",
    "log_probability",
    "probability",
    "start",
    "end",
    "tokens",
    "candidates",
    "words",
    "labels",
    "vectors",
    "codes",
    "image",
    "prediction",
    "penalty",
]  # what is hashed of the objects that runs and models return

TRAIN = dict(
    steps=80,
    evaluate_every=40,
    save_every=40,
    log_every=40,
    precision="fp32",
    optimizer=dict(learning_rate=5e-3),
    schedule=dict(warmup_steps=4),
    regularize=dict(dropout=0.1),
)
TEXT = dict(
    data=dict(world=dict(number=300, held_out=20)),
    tokens=dict(size=300),
    decode=dict(beam=2),
    train=dict(TRAIN, tokens_per_batch=512),
)
FILES = dict(TEXT, data=dict(root="files:"))
IMAGE = dict(
    data=dict(size=32, world=dict(kind="shapes", number=60, held_out=8, shapes=[1, 2])), train=dict(TRAIN, images_per_batch=12)
)
CAPTIONED = dict(IMAGE, tokens=dict(kind="words"), decode=dict(beam=2))
NUMBERS, GISTS = (dict(train=[f"{name}.train.tsv"], valid=[f"{name}.valid.tsv"]) for name in ("numbers", "gists"))
BLOCKS, CELLS = dict(layers=2, width=32, heads=2, feed_forward=64), dict(width=32, max_length=64)
STACK = dict(BLOCKS, kind="transformer", max_length=64)
PAIRED = dict(encoder_layers=2, decoder_layers=2, width=32, heads=2, feed_forward=64, max_length=64)
CNN, CODES = dict(widths=[8, 8], strides=[4, 2]), dict(codebook_size=16, code_width=8, width=16, layers=1, anneal_steps=15)

ENTRIES = {  # name: (task, settings, model, other changes of the settings), or the entry whose run is used
    "demo": ("demo", {}, {}, {}),
    "translate": (
        "translate",
        TEXT,
        dict(PAIRED, norm_first=True),
        dict(train=dict(evaluate_sentences=6, regularize=dict(attention_dropout=0.1, switchout=0.1, bpe_dropout=0.1))),
    ),
    "translate-bahdanau": ("translate", TEXT, dict(CELLS, kind="recurrent"), {}),
    "translate-luong": (
        "translate",
        TEXT,
        dict(CELLS, kind="recurrent", cell="lstm", decoder="luong", attention="general"),
        dict(tokens=dict(joint=False)),
    ),
    "translate-universal": ("translate", TEXT, dict(PAIRED, kind="universal"), dict(train=dict(regularize=dict(r_drop=1.0)))),
    "translate-addition": (
        "translate",
        TEXT,
        dict(PAIRED, positions=dict(random_offset=9)),
        dict(data=dict(world=dict(kind="addition", longest=3, tests=[3, 5])), tokens=dict(kind="characters")),
    ),
    "translate-resumed": ("translate", TEXT, PAIRED, dict(train=dict(steps=40, schedule=dict(kind="constant")))),
    "language": (
        "language",
        TEXT,
        dict(STACK, window=8, positions=dict(kind="rotary")),
        dict(
            data=dict(language="target", pack=True),
            tokens=dict(kind="bytes", size=400),
            train=dict(gradient_accumulation_steps=2),
        ),
    ),
    "language-recurrent": ("language", TEXT, dict(CELLS, attention="dot"), dict(data=dict(language="target", stream=True))),
    "language-elmo": ("language", TEXT, dict(CELLS, kind="elmo"), {}),
    "masked": ("masked", TEXT, STACK, dict(tokens=dict(lowercase=True))),
    "masked-next-sentence": (
        "masked",
        TEXT,
        dict(STACK, segments=2, pool="first"),
        dict(data=dict(language="both"), masking=dict(whole_words=True, next_sentence=True)),
    ),
    "span-corruption": ("span-corruption", TEXT, dict(PAIRED, preset="t5-tiny"), {}),
    "text-to-text": (
        "text-to-text",
        FILES,
        PAIRED,
        dict(
            tokens=dict(kind="words"),
            train=dict(steps=240),
            data=dict(
                mixing=2.0,
                tasks=dict(
                    german=dict(prefix="German: ", world=dict(number=200, held_out=10)),
                    gender=dict(prefix="gender: ", kind="classify", world=dict(number=100, held_out=10)),
                    length=dict(NUMBERS, prefix="length: ", kind="regress", step=1.0),
                    gist=dict(GISTS, prefix="gist: ", kind="summarise", weight=2.0),
                ),
            ),
        ),
    ),
    "classify": (
        "classify",
        TEXT,
        dict(STACK, pool="max", convolution=3),
        dict(train=dict(regularize=dict(r_drop=1.0, drop_path=0.1))),
    ),
    "classify-recurrent": ("classify", TEXT, dict(CELLS, attention="additive"), dict(tokens=dict(kind="words"))),
    "classify-features": ("classify", TEXT, dict(CELLS, features=dict(run="run:language-elmo")), {}),
    "classify-fine-tuned": (
        "classify",
        TEXT,
        dict(STACK, segments=2, pool="first"),
        dict(train=dict(init_from=dict(run="run:masked-next-sentence", modules=["encoder."]), optimizer=dict(layer_decay=0.8))),
    ),
    "classify-images": (
        "classify",
        IMAGE,
        dict(BLOCKS, kind="vit", patch_size=8),
        dict(
            data=dict(label_attribute="kind"),
            train=dict(augment=dict(crop_padding=2, flip=True, rand_augment={}, random_erasing=0.2, mixup=0.2, cutmix=0.5)),
        ),
    ),
    "regress": ("regress", FILES, dict(STACK, positions=dict(kind="alibi")), dict(data=NUMBERS, train=dict(ema_decay=0.9))),
    "tag": ("tag", TEXT, dict(STACK, positions=dict(kind="learned")), dict(train=dict(average_checkpoints=2))),
    "answer": ("answer", TEXT, dict(STACK, segments=2, norm="rms"), dict(train=dict(optimizer=dict(kind="muon")))),
    "caption-lstm": ("caption", CAPTIONED, dict(encoder=CNN, decoder=dict(width=32)), {}),
    "caption-hard": ("caption", CAPTIONED, dict(encoder=CNN, decoder=dict(width=32, attention="hard")), {}),
    "caption-transformer": (
        "caption",
        CAPTIONED,
        dict(encoder=dict(BLOCKS, kind="patches", patch_size=8), decoder=dict(BLOCKS, kind="transformer")),
        {},
    ),
    "contrastive": ("contrastive", CAPTIONED, dict(projection_width=16, image=dict(BLOCKS, patch_size=8), text=BLOCKS), {}),
    "image-codes": ("image-codes", IMAGE, CODES, dict(train=dict(optimizer=dict(learning_rate=1e-3)))),
    "image-codes-vq": ("image-codes", IMAGE, dict(CODES, quantizer="vq", reconstruction_loss="l1"), {}),
    "text-to-image": (
        "text-to-image",
        CAPTIONED,
        dict(BLOCKS, image_codes=dict(run="run:image-codes-vq"), attention=["row", "column"], text_length=32),
        dict(sample=dict(reranker="run:contrastive", candidates=2)),
    ),
    "sampling": "language",
    "beam-search": "demo",
    "explain": "classify",
}
VERBS = {  # what a run is asked, by the longest beginning of its entry's name
    "demo": lambda run: run.translate(SENTENCES, number=2),
    "translate": lambda run: run.translate(SENTENCES, number=2),
    "translate-addition": lambda run: run.translate(["1+2", "123+45"], number=2),
    "language": lambda run: run.generate(PROMPTS, max_tokens=12),
    "language-elmo": lambda run: [*run.embed(SENTENCES), *run.embed(SENTENCES, layer=1, pool="words")],
    "masked": lambda run: [*run.fill(MASKED), *run.embed(SENTENCES, pool="cls")],
    "span-corruption": lambda run: run.fill(MASKED),
    "text-to-text": lambda run: [run.translate(run._prefixed(SENTENCES, "german"), number=1), run.classify(SENTENCES, "gender")],
    "classify": lambda run: run.classify(SENTENCES),
    "classify-images": lambda run: [*run.classify(IMAGES), *run.embed(IMAGES)],
    "regress": lambda run: run.classify(SENTENCES),
    "tag": lambda run: run.tag(SENTENCES),
    "answer": lambda run: run.answer(["horse", "it", "table"], [pair.target for pair in PAIRS["valid"][:3]], number=2),
    "caption": lambda run: run.caption(IMAGES, number=2),
    "contrastive": lambda run: [*run.match(IMAGES, CAPTIONS, ["this is {}"]), *run.embed([*IMAGES, *CAPTIONS])],
    "image-codes": lambda run: [run.encode(IMAGES), run.decode(run.encode(IMAGES))],
    "text-to-image": lambda run: run.draw(CAPTIONS, number=2, **SAMPLED),
    "sampling": lambda run: [
        text for found in run.generate(PROMPTS, max_tokens=12, number=2, repetition_penalty=1.2, **SAMPLED) for text in found
    ],
    "beam-search": lambda run: [
        run.translate(SENTENCES, beam=5, number=5, length_penalty=1.0),
        run.translate(SENTENCES, number=1, **SAMPLED),
    ],
    "explain": lambda run: [getattr(run.explain(SENTENCES[0]), field) for field in ("attributions", "faithfulness")],
}


def write_files(folder):
    for split, pairs in PAIRS.items():
        for name, second in (("numbers", lambda pair: len(pair.target.split())), ("gists", lambda pair: pair.source[:12])):
            (folder / f"{name}.{split}.tsv").write_text("".join(f"{pair.source}\t{second(pair)}\n" for pair in pairs))


@cache
def run_of(name, folder):
    """The run of an entry, made once. In settings, "files:" stands for the folder, and "run:NAME" for the run of an entry."""
    if name == "demo":
        run_demo(folder / name, device="cpu", overrides=["train.steps=200"])
        return regard.load(folder / name, device="cpu")
    task, settings, model, changes = ENTRIES[name]
    text = json.dumps(merged(settings, {"task": task, "model": model, **changes})).replace("files:", str(folder))
    text = re.sub(r"run:([\w-]+)", lambda found: str(run_of(found[1], folder).folder), text)
    run = regard.train(json.loads(text), folder / name, device="cpu")
    if name == "translate-resumed":
        run = regard.train(run.folder, resume=True, overrides=["train.steps=80"], device="cpu")
    evaluate(run)
    return run


def inspect(run):
    """The weights, the first training batches, what the model makes of a validation batch, and the scores."""
    rows, _ = run._training_rows(read_dataset(run.recipe.data).train)
    training = Batches(rows, run.recipe.train.budget(run._max_positions), run.recipe.seed)
    batches = [training.batch(0, index).to(run.device) for index in range(3)]
    batch = next(sequential_batches(run._evaluation_rows(run.data.valid), 512)).to(run.device)
    with torch.no_grad(), regard.watch(run.model) if run._attends else contextlib.nullcontext(AttentionRecording()) as seen:
        output = run.model(**batch.inputs)
    scores = json.loads((run.folder / "scores.json").read_text())
    return {
        "weights": digest(load_file(run.folder / "model.safetensors")),
        "forward": digest(plain(output)),
        "batches": digest([plain({**batch.inputs, "labels": batch.labels}) for batch in batches]),
        "attention": digest(plain({name: seen[name] for name in seen.names()})),
        "attention maps": len(seen.names()),
        "scores": {f"{test} {metric}": found["score"] for test, row in scores.items() for metric, found in row.items()},
    }


# ---- End of the names of regard.


def plain(value):
    """Numbers, texts and arrays, in lists and dictionaries."""
    if isinstance(value, str | int | float | np.ndarray | None):
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().numpy()
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    fields = [name for name in FIELDS if hasattr(value, name)]
    assert fields, f"FIELDS names none of {value!r}"
    return [plain(getattr(value, name)) for name in fields]


def digest(value):
    """SHA-256; of arrays that of type, shape and bytes. In dictionaries, neither names nor order count."""
    if isinstance(value, np.ndarray):
        data = f"{value.dtype} {value.shape} ".encode() + value.tobytes()
    elif isinstance(value, dict):
        data = " ".join(sorted(map(digest, value.values()))).encode()
    else:
        data = (" ".join(map(digest, value)) if isinstance(value, list) else repr(value)).encode()
    return hashlib.sha256(data).hexdigest()


def merged(settings, changes):
    """Settings with some of them changed, at any depth."""
    inner = {
        name: merged(settings[name], value)
        for name, value in changes.items()
        if isinstance(value, dict) and isinstance(settings.get(name), dict)
    }
    return {**settings, **changes, **inner}


def fingerprint(name, folder):
    verb = max((verb for verb in VERBS if name.startswith(verb)), key=len)
    shared = isinstance(ENTRIES[name], str)
    run = run_of(ENTRIES[name] if shared else name, folder)
    outputs = plain(VERBS[verb](run))
    said = {"outputs": digest(outputs), "excerpt": " ".join(repr(outputs).split())[:200]}
    return said if shared else {**inspect(run), **said}


def compare(old, new):
    """Print what differs, and say whether anything does. What scores are called does not count, nor how outputs are printed."""
    differing = set()
    for name in {**old, **new}:
        one, other = old.get(name, {}), new.get(name, {})
        for part in [part for part in {**one, **other} if part != "excerpt"]:
            values = [
                sorted(map(repr, side[part].values())) if part == "scores" and part in side else side.get(part)
                for side in (one, other)
            ]
            if values[0] != values[1]:
                shown = "excerpt" if part == "outputs" else part
                print(f"{name}: {part} differ\n  {one.get(shown)}\n  {other.get(shown)}")
                differing.add(name)
    print(f"{len(differing)} of {len({**old, **new})} entries differ: {', '.join(sorted(differing)) or 'none'}")
    return bool(differing)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", choices=ENTRIES, metavar="ENTRY")
    parser.add_argument("--compare", type=Path, metavar="OLD.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"regard from {Path(regard.__file__).parent}", file=sys.stderr)
    found = {"environment": {"torch": torch.__version__, "numpy": np.__version__, "cpu": torch.backends.cpu.get_cpu_capability()}}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"
        write_files(Path(folder))
        for name in [asked.only] if asked.only else ENTRIES:
            begun = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                found[name] = fingerprint(name, Path(folder))
            print(f"{time.perf_counter() - begun:6.1f} s  {name}", file=sys.stderr, flush=True)
    asked.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if asked.compare:
        old = json.loads(asked.compare.read_text(encoding="utf-8"))
        sys.exit(compare({name: old[name] for name in old if not asked.only or name in found}, found))


if __name__ == "__main__":
    main()
