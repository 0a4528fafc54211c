"""Explanations of models of transformers: opened as our own, and as their library runs them."""

import json

import pytest
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import regard
from regard.explain.methods import METHODS

TEXT = ["the dog sees a small cat", "a cat sleeps near the old house", "the old dog and the small cat run home"] * 3
SIZES = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=64)


def bert_tokenizer():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(TEXT, trainers.WordPieceTrainer(vocab_size=61, special_tokens=special, show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer, dict(mask_token="[MASK]", pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]")


def byte_tokenizer(special=("<s>", "<pad>", "</s>", "<unk>", "<mask>"), template="<s> $A </s>", **names):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=61, special_tokens=list(special), show_progress=False))
    if template:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=template, pair=f"{template} $B", special_tokens=[(name, i) for i, name in enumerate(special)]
        )
    return tokenizer, names


def roberta_tokenizer():
    return byte_tokenizer(mask_token="<mask>", pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def with_large_weights(model):
    """Randomize the weights so that tokens, positions and heads make a difference."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            p.copy_((1.0 if name.endswith("weight") and p.dim() == 1 else 0.0) + 0.25 * torch.randn_like(p))
    return model.eval()


def write_folder(folder, model, tokenizer=bert_tokenizer):
    """Write a model with a tokenizer as a Hugging Face folder."""
    model.save_pretrained(folder)
    library, names = tokenizer()
    (folder / "tokenizer.json").write_text(library.to_str(), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", **names}))
    return folder


def bert(**other):
    return with_large_weights(transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=61, **SIZES, **other)))


def roberta():
    config = transformers.RobertaConfig(vocab_size=61, pad_token_id=1, bos_token_id=0, eos_token_id=2, **SIZES)
    return with_large_weights(transformers.RobertaForMaskedLM(config))


@pytest.mark.parametrize(
    ("make", "tokenizer", "mask"), [(bert, bert_tokenizer, "[MASK]"), (roberta, roberta_tokenizer, "<mask>")]
)
def test_masked_huggingface_folder_is_explained_by_every_method(make, tokenizer, mask, tmp_path):
    run = regard.load(write_folder(tmp_path, make(), tokenizer), device="cpu")
    text = f"the small {mask} sleeps near the house"
    found = run.explain(text)
    assert set(found.attributions) == set(METHODS) and not found.unavailable
    best = run.fill([text])[0].candidates[0][0]
    assert found.score == pytest.approx(best.probability, abs=1e-5)
    chosen = run.explain(text, "occlusion", word="cat", against="dog")
    assert "'cat'" in chosen.output or "of 'cat'" in chosen.output
