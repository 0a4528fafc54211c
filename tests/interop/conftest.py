"""Tiny `transformers` models of every family with random weights, and tokenizers for them."""

import json

import pytest
import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import regard
import regard.run.convert
from regard.interop.families.qwen import QWEN2
from regard.tasks import build_recipe, recipe_task
from regard.tasks.shared.run_folder import tokenizer_files
from regard.tokens.tokenizer import train_tokenizer
from regard.training.checkpoint import named_weights, write_weights

V = 61


@pytest.fixture(autouse=True, scope="session")
def short_verification():
    """Verify conversions on texts of a few tokens: the ninth differs from the eighth in nothing but its position."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regard.run.convert, "VERIFIED_TOKENS", 8)
        yield


TEXT = [
    "the dog sees a small cat",
    "a cat sleeps near the old house",
    "the old dog and the small cat run home",
    "she reads a book in the house",
    "home again, the cat sleeps; the dog does not!",
    "a book, a house, a dog",
] * 3
LINES = ["the dog sleeps", "a small cat reads the old book in the house", "home", "the cat and the dog run, again!"]


def wordpiece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    tokenizer.train_from_iterator(
        TEXT,
        trainers.WordPieceTrainer(
            vocab_size=V, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_truncation(8)  # as in all-MiniLM's file: neither may truncate or pad our texts
    tokenizer.enable_padding(length=16)
    return tokenizer, {
        "mask_token": "[MASK]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "unk_token": "[UNK]",
    }


def byte_level(specials, template=None, pair=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=V, special_tokens=specials, show_progress=False))
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=pair or f"{template} $B", special_tokens=[(name, i) for i, name in enumerate(specials)]
        )
    return tokenizer, {"pad_token": specials[min(1, len(specials) - 1)], "eos_token": specials[-1]}


def qwen_tokenizer():
    """Return a tokenizer that splits texts into words as Qwen2's does, without special tokens around them."""
    tokenizer, names = byte_level(["<|endoftext|>"])
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2.tokenizer_pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer, names


def sentencepiece(specials, template, pair=None, **names):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.train_from_iterator(
        TEXT, trainers.UnigramTrainer(vocab_size=V, special_tokens=specials, unk_token="<unk>", show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=template, pair=pair or f"{template} $B", special_tokens=[(name, i) for i, name in enumerate(specials)]
    )
    return tokenizer, {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", **names}


def gpt_tokenizer():
    """Return a tokenizer like the first GPT's: an end-of-word suffix, and no special token but <unk>."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.BertPreTokenizer(), decoders.BPEDecoder(suffix="</w>")
    tokenizer.train_from_iterator(
        TEXT, trainers.BpeTrainer(vocab_size=V, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False)
    )
    return tokenizer, {"unk_token": "<unk>"}


TOKENIZERS = {
    "bert": wordpiece,
    "distilbert": wordpiece,
    "albert": wordpiece,
    "electra": wordpiece,
    "modernbert": wordpiece,
    "roberta": lambda: (lambda tokenizer: (tokenizer[0], {**tokenizer[1], "mask_token": "<mask>"}))(
        byte_level(["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<s> $A </s>", "<s> $A </s> </s> $B:0 </s>")
    ),
    "xlm-roberta": lambda: sentencepiece(
        ["<s>", "<pad>", "</s>", "<unk>", "<mask>"], "<s> $A </s>", "<s> $A </s> </s> $B:0 </s>", mask_token="<mask>"
    ),
    "gpt2": lambda: byte_level(["<|endoftext|>"]),
    "openai-gpt": gpt_tokenizer,
    "t5": lambda: sentencepiece(["<pad>", "</s>", "<unk>"], "$A </s>"),
    "bart": lambda: byte_level(["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>"),
    "mbart": lambda: sentencepiece(["<s>", "<pad>", "</s>", "<unk>", "en_XX", "ro_RO"], "en_XX $A </s>"),
    "m2m_100": lambda: sentencepiece(["<s>", "<pad>", "</s>", "<unk>", "eng_Latn", "deu_Latn"], "eng_Latn $A </s>"),
    "mt5": lambda: sentencepiece(["<pad>", "</s>", "<unk>"], "$A </s>"),
    "marian": lambda: sentencepiece(["</s>", "<unk>", "<pad>"], "$A </s>"),
    "llama": lambda: byte_level(["<unk>", "<s>", "</s>"], "<s> $A"),
    "qwen2": qwen_tokenizer,
    "qwen3": qwen_tokenizer,
    "gemma": lambda: byte_level(["<unk>", "<s>", "</s>"], "<s> $A"),
    "gemma2": lambda: byte_level(["<unk>", "<s>", "</s>"], "<s> $A"),
    "gemma3_text": lambda: byte_level(["<unk>", "<s>", "</s>"], "<s> $A"),
    "mistral": lambda: byte_level(["<unk>", "<s>", "</s>"], "<s> $A"),
}


@pytest.fixture(scope="session")
def randomize_weights():
    """Return a function that randomizes weights: initial ones are too small to tell layers, heads and positions apart."""

    def change(model):
        learned = dict(model.named_parameters()) | {name: p for name, p in model.named_buffers() if name == "final_logits_bias"}
        zero_centered = model.config.model_type.startswith("gemma")  # norms multiply by 1 + weight
        with torch.no_grad():
            for name, p in learned.items():
                if p.requires_grad or name == "final_logits_bias":  # not the sinusoids
                    scales = name.endswith("weight") and p.dim() == 1 and not zero_centered
                    p.copy_((1.0 if scales else 0.0) + 0.25 * torch.randn_like(p))
        return model.eval()

    return change


@pytest.fixture(scope="session")
def write_huggingface_model():
    """Return a function that writes a `transformers` model with a tokenizer of its family as a folder."""

    def write(model, folder, **options):
        model.save_pretrained(folder, **options)
        library, names = TOKENIZERS.get(model.config.model_type, wordpiece)()
        (folder / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
        return folder

    return write


@pytest.fixture(scope="session")
def lines():
    return LINES


@pytest.fixture(scope="session", autouse=True)
def quiet():
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def make_run():
    return own_run


def own_run(folder, task, model):
    """Return a run with random weights, in a folder as training leaves it."""
    kind = {} if task in ("translate", "span-corruption", "text-to-text") else {"kind": "transformer"}
    data = {"pairs": {"world": {}, "text_pair": 2}, "text-to-text": {"tasks": {"say": {"prefix": "say: ", "world": {}}}}}.get(
        task, {"world": {}}
    )
    task = "classify" if task == "pairs" else task
    recipe = build_recipe(
        {"task": task, "data": data, "tokens": {"size": 180}, "model": {**kind, **model}, "decode": {"length_penalty": 0.0}}
    )
    folder.mkdir()
    (folder / "recipe.toml").write_text(recipe.to_toml(), encoding="utf-8")
    registered = recipe_task(recipe)
    tokenizer = train_tokenizer(recipe.tokens, TEXT, registered.run._extra_special_tokens)
    for name in tokenizer_files(recipe):
        (folder / name).write_text(tokenizer.to_json(), encoding="utf-8")
    if task in ("classify", "tag"):
        (folder / "labels.json").write_text(json.dumps(["good", "bad", "neither"]))
    if task == "regress":
        (folder / "scale.json").write_text(json.dumps({"mean": 100.0, "std": 15.0}))
    run = registered.run(registered, folder, recipe, torch.device("cpu"))
    with torch.no_grad():
        for p in run.model.parameters():
            p.add_(0.25 * torch.randn_like(p))
    write_weights(folder / "model.safetensors", named_weights(run.model))
    return regard.load(folder, device="cpu")
