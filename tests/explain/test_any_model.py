"""Explanations of models of transformers: opened as our own, and as their library runs them."""

import json

import numpy as np
import pytest
import torch
import transformers as library
from PIL import Image
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.explain.head_report import explain_heads
from regard.explain.heads import ablate_heads
from regard.explain.methods import METHODS, integrated_gradients
from regard.explain.report import explain_set
from regard.explain.selection import OutputSelection
from regard.explain.text_outputs import select_output
from regard.server.models import describe_model
from regard.server.render import attention_json, explain_response
from regard.server.request_types import AttentionRequest, ExplainRequest
from regard.tasks.transformers_models import open_with_transformers, wrap_model

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
    return with_large_weights(library.BertForMaskedLM(library.BertConfig(vocab_size=61, **SIZES, **other)))


def roberta():
    config = library.RobertaConfig(vocab_size=61, pad_token_id=1, bos_token_id=0, eos_token_id=2, **SIZES)
    return with_large_weights(library.RobertaForMaskedLM(config))


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


# as transformers runs them

ENCODER = dict(vocab_size=61, **SIZES)
GPT = dict(vocab_size=61, n_embd=24, n_layer=2, n_head=3, n_positions=64)
LLAMA = dict(ENCODER, num_key_value_heads=1)
BART = dict(
    dict(vocab_size=61, d_model=24, max_position_embeddings=64, eos_token_id=2, decoder_start_token_id=2, num_labels=3),
    **{f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in (("layers", 2), ("ffn_dim", 40))},
    **{f"{side}_attention_heads": 3 for side in ("encoder", "decoder")},
)
T5 = dict(vocab_size=61, d_model=24, d_kv=8, num_layers=2, num_heads=3, d_ff=40, decoder_start_token_id=0, max_length=9)
VISION = {**SIZES, "image_size": 16, "patch_size": 4}
del VISION["max_position_embeddings"]
IMAGE = Image.fromarray(np.random.RandomState(0).randint(0, 255, (20, 20, 3), dtype=np.uint8))


def fast(made):
    tokenizer, names = made
    return library.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)


def causal_tokenizer():
    return byte_tokenizer(("<unk>", "<s>", "</s>"), "<s> $A", bos_token="<s>", eos_token="</s>", unk_token="<unk>")


def image_processor():
    return library.ViTImageProcessor(size={"height": 16, "width": 16})


class Processor:
    def __init__(self):
        self.tokenizer, self.image_processor = fast(roberta_tokenizer()), image_processor()


def clip():
    text = dict(ENCODER, bos_token_id=0, eos_token_id=2, pad_token_id=1)
    return library.CLIPModel(library.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=8))


BERT, ROBERTA, CAUSAL = (lambda: fast(bert_tokenizer())), (lambda: fast(roberta_tokenizer())), (lambda: fast(causal_tokenizer()))
T5_TOKENS = ("<pad>", "</s>", "<unk>")
T5_TOKENIZER = lambda: fast(  # noqa: E731
    byte_tokenizer(T5_TOKENS, "$A </s>", pad_token="<pad>", eos_token="</s>", unk_token="<unk>")
)
MASKED_TEXT, TEXT_TO_READ = "the small [MASK] sees a cat", "the dog sees a small cat"
MODELS = {
    "BERT": (lambda: library.BertForMaskedLM(library.BertConfig(**ENCODER)), BERT, MASKED_TEXT, {}),
    "MPNet": (lambda: library.MPNetForMaskedLM(library.MPNetConfig(**ENCODER)), ROBERTA, MASKED_TEXT, {}),
    "ALBERT": (lambda: library.AlbertForMaskedLM(library.AlbertConfig(**ENCODER, embedding_size=8)), BERT, MASKED_TEXT, {}),
    "GPT-2": (lambda: library.GPT2LMHeadModel(library.GPT2Config(**GPT)), CAUSAL, TEXT_TO_READ, {}),
    "Bloom": (
        lambda: library.BloomForCausalLM(library.BloomConfig(vocab_size=61, hidden_size=24, n_layer=2, n_head=3)),
        CAUSAL,
        TEXT_TO_READ,
        {"position": "4", "word": "a"},
    ),
    "Llama": (lambda: library.LlamaForCausalLM(library.LlamaConfig(**LLAMA)), CAUSAL, TEXT_TO_READ, {"word": "dog"}),
    "XLNet": (
        lambda: library.XLNetLMHeadModel(library.XLNetConfig(vocab_size=61, d_model=24, n_layer=2, n_head=3, d_inner=40)),
        BERT,
        TEXT_TO_READ,
        {},
    ),
    "DeBERTa classifier": (
        lambda: library.DebertaV2ForSequenceClassification(library.DebertaV2Config(**ENCODER, num_labels=3)),
        BERT,
        TEXT_TO_READ,
        {},
    ),
    "GPT-2 classifier": (
        lambda: library.GPT2ForSequenceClassification(library.GPT2Config(**GPT, num_labels=3, pad_token_id=0)),
        CAUSAL,
        TEXT_TO_READ,
        {"label": "LABEL_1", "against": "LABEL_2"},
    ),
    "T5": (lambda: library.T5ForConditionalGeneration(library.T5Config(**T5)), T5_TOKENIZER, TEXT_TO_READ, {}),
    "BART": (lambda: library.BartForConditionalGeneration(library.BartConfig(**BART)), ROBERTA, TEXT_TO_READ, {}),
    "ViT": (
        lambda: library.ViTForImageClassification(library.ViTConfig(**VISION, num_labels=3)),
        image_processor,
        IMAGE,
        {"against": "LABEL_1"},
    ),
    "BEiT": (lambda: library.BeitForImageClassification(library.BeitConfig(**VISION, num_labels=3)), image_processor, IMAGE, {}),
    "SigLIP classifier": (
        lambda: library.SiglipForImageClassification(library.SiglipConfig(vision_config=VISION, num_labels=3)),
        image_processor,
        IMAGE,
        {},
    ),
    "CLIP": (clip, Processor, IMAGE, {"fits": "the dog", "against": "a small house"}),
}
"""Models whose attention, layers and embeddings every method applies to, but for norms in XLNet."""


def open_model(name):
    make, processor, given, selection = MODELS[name]
    torch.manual_seed(0)
    return wrap_model(with_large_weights(make()), processor(), name), given, selection


def selected(name):
    run, given, selection = open_model(name)
    return select_output(run, given, OutputSelection(**selection))


def assert_every_method(found, *but):
    assert set(found.attributions) == set(METHODS) - set(but) and set(found.unavailable) == set(but)
    assert all(np.isfinite(values).all() and len(values) == len(found.features) for values in found.attributions.values())
    assert {"comprehensiveness", "sufficiency"} <= set(found.faithfulness["occlusion"]) and found.permutation_effect > 1e-6


@pytest.mark.filterwarnings("ignore:torch.nn's fused")
@pytest.mark.parametrize("name", MODELS)
def test_every_method_explains_a_model_of_transformers(name):
    run, given, selection = open_model(name)
    assert_every_method(run.explain(given, **selection), *(["norms"] if name == "XLNet" else []))


@pytest.mark.filterwarnings("ignore:torch.nn's fused")
@pytest.mark.parametrize("name", MODELS)
def test_integrated_gradients_of_a_model_of_transformers_are_complete(name):
    target = selected(name).target
    masked = target.mask(torch.ones(1, len(target.positions), dtype=torch.bool))
    whole = float((target.score(target.input) - target.score(masked))[0].detach())
    tokens = 1 + len(target.further)  # an untrained model writes one long word
    assert float(integrated_gradients(target, 256).sum()) == pytest.approx(whole, abs=1e-2 * max(1.0, abs(whole)) * tokens)


@pytest.mark.parametrize("name", ["BERT", "Llama", "T5", "DeBERTa classifier"])
def test_occlusion_of_a_model_of_transformers_is_the_difference_of_two_forward_passes(name):
    run, given, selection = open_model(name)
    target = select_output(run, given, OutputSelection(**selection)).target
    values = METHODS["occlusion"](target)
    names = {"source": "input_ids", "target": "decoder_input_ids" if "source" in target.inputs else "input_ids"}
    inputs = {names.get(key, key): part for key, part in target.inputs.items()}

    def log_p(ids):
        with torch.no_grad():
            logits = run.model(**{**inputs, "input_ids": ids}).logits[0]
        if target.step is None:
            return logits.log_softmax(-1)[target.output]
        return sum(logits[step].log_softmax(-1)[token] for step, token in ((target.step, target.output), *target.further))

    for value, position in zip(values, target.positions):
        masked = inputs["input_ids"].clone()
        masked[0, position] = target.replacement
        assert float(value) == pytest.approx(
            float(log_p(inputs["input_ids"]) - log_p(masked)), abs=1e-5 * (1 + len(target.further))
        )


def bert_classifier():
    return with_large_weights(library.BertForSequenceClassification(library.BertConfig(**ENCODER, num_labels=3)))


def vit_classifier():
    return with_large_weights(library.ViTForImageClassification(library.ViTConfig(**VISION, num_labels=3)))


def albert():
    return with_large_weights(library.AlbertForMaskedLM(library.AlbertConfig(**ENCODER, embedding_size=8)))


def llama():
    return with_large_weights(library.LlamaForCausalLM(library.LlamaConfig(**LLAMA)))


@pytest.mark.parametrize(
    ("make", "tokenizer", "given", "selection"),
    [
        (bert, bert_tokenizer, MASKED_TEXT, {}),
        (roberta, roberta_tokenizer, MASKED_TEXT, {"word": "dog"}),
        (albert, bert_tokenizer, MASKED_TEXT, {}),
        (llama, causal_tokenizer, TEXT_TO_READ, {"position": "4", "word": "a"}),
        (bert_classifier, bert_tokenizer, TEXT_TO_READ, {"label": "LABEL_1"}),
        (vit_classifier, bert_tokenizer, IMAGE, {}),
    ],
)
def test_attributions_of_a_folder_are_the_same_as_ours_and_as_transformers_runs_it(make, tokenizer, given, selection, tmp_path):
    write_folder(tmp_path, make(), tokenizer)
    if given is IMAGE:
        image_processor().save_pretrained(tmp_path)
    own, other = regard.load(tmp_path, device="cpu"), open_with_transformers(tmp_path, torch.device("cpu"))
    assert type(own) is not type(other)
    one, two = own.explain(given, **selection), other.explain(given, **selection)
    assert one.output == two.output and one.features == two.features and one.attributions.keys() == two.attributions.keys()
    for method, values in one.attributions.items():
        assert two.attributions[method] == pytest.approx(values, abs=1e-4), method
    assert two.permutation_effect == pytest.approx(one.permutation_effect, abs=1e-4)


@pytest.mark.parametrize(
    ("make", "processor", "given", "applies"),
    [
        (
            lambda: library.MambaForCausalLM(library.MambaConfig(vocab_size=61, hidden_size=24, num_hidden_layers=2)),
            CAUSAL,
            TEXT_TO_READ,
            {"input-gradient", "integrated-gradients", "occlusion"},
        ),
        (
            lambda: library.FunnelForMaskedLM(
                library.FunnelConfig(vocab_size=61, d_model=24, n_head=3, d_head=8, d_inner=40, block_sizes=[1, 1])
            ),
            BERT,
            MASKED_TEXT,
            {"attention", "input-gradient", "integrated-gradients", "occlusion"},
        ),
        (
            lambda: library.SwinForImageClassification(
                library.SwinConfig(
                    image_size=16, patch_size=2, embed_dim=12, depths=[1, 1], num_heads=[2, 2], window_size=4, num_labels=3
                )
            ),
            image_processor,
            IMAGE,
            {"input-gradient", "integrated-gradients", "occlusion"},
        ),
        (
            lambda: library.BartForSequenceClassification(library.BartConfig(**BART)),
            ROBERTA,
            TEXT_TO_READ,
            {"attention", "rollout", "flow", "gradient-attention", "norms", "occlusion"},
        ),
    ],
    ids=["no attention", "pooled tokens", "windows of an image", "text read twice"],
)
def test_method_that_does_not_apply_says_so_in_one_line(make, processor, given, applies):
    found = wrap_model(make(), processor(), "model").explain(given)
    assert set(found.attributions) == applies and set(found.unavailable) == set(METHODS) - applies
    assert all("\n" not in why and len(why) < 200 for why in found.unavailable.values())


def test_large_model_is_not_built_a_second_time_with_random_weights(monkeypatch):
    run, given, _ = open_model("GPT-2")
    monkeypatch.setattr("regard.explain.report.MAX_RANDOMIZED_PARAMETERS", 1000)
    found = run.explain(given, "attention,occlusion", against="dog")
    assert "random weights" in found.unavailable["randomized"] and "randomized" not in found.faithfulness["attention"]
    assert "comprehensiveness" in found.faithfulness["attention"] and "map distance" in found.faithfulness["attention"]


def test_explanation_leaves_a_frozen_model_frozen():
    run, given, _ = open_model("GPT-2")
    run.model.requires_grad_(False)
    assert_every_method(run.explain(given))
    assert not any(p.requires_grad or p.grad is not None for p in run.model.parameters())


def test_padding_does_not_replace_tokens_of_a_decoder_that_pools_the_last_one():
    run, text, _ = open_model("GPT-2 classifier")
    assert run.model.config.pad_token_id == run._parts.tokenizer.unk_token_id == 0
    assert select_output(run, text).target.replacement == run._parts.tokenizer.eos_token_id


def test_label_of_a_decoder_is_explained_from_its_last_token():
    assert selected("GPT-2 classifier").target.pooled == (len(selected("GPT-2 classifier").target.input[0]) - 1,)
    assert len(selected("BEiT").target.pooled) == 16 and selected("ViT").target.pooled == (0,)


def test_user_errors_of_models_of_transformers_are_one_line():
    for name, given, selection, cure in (
        ("BERT", "no mask", {}, "no mask"),
        ("BERT", MASKED_TEXT, {"label": "x"}, "--word"),
        ("GPT-2 classifier", "the dog", {"label": "x"}, "use one of"),
        ("CLIP", IMAGE, {}, "which text"),
    ):
        with pytest.raises(UserError, match=cure) as mistake:
            open_model(name)[0].explain(given, **selection)
        assert "\n" not in str(mistake.value)


def test_explain_function_is_the_explanation_of_a_wrapped_model():
    run, text, _ = open_model("GPT-2")
    one = regard.explain(run.model, run._parts.tokenizer, text, "attention,occlusion", position=4, word="a")
    two = run.explain(text, "attention,occlusion", position="4", word="a")
    assert one.attributions == two.attributions and one.output == two.output
    from regard.explain.methods import attribute  # the package is still a package

    assert callable(attribute) and callable(regard.explain)


def test_explain_command_opens_a_folder_with_transformers(tmp_path):
    model = with_large_weights(library.MPNetForMaskedLM(library.MPNetConfig(**ENCODER)))
    write_folder(tmp_path, model, roberta_tokenizer)
    command = ["explain", str(tmp_path), "the small <mask> sees a cat", "--against", "dog", "--json", "--device", "cpu"]
    found = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert set(found["attributions"]) == set(METHODS) and not found["unavailable"] and found["alternative_attributions"]


# sets and heads


@pytest.fixture
def lines_file(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(f"{line}\n" for line in TEXT[:3]))
    return path


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "GPT-2 classifier", "T5"])
def test_faithfulness_over_a_file_of_texts(name, lines_file):
    run = open_model(name)[0]
    found = explain_set(run, str(lines_file), "attention,occlusion", number=3)
    assert found.number == 3 and {"comprehensiveness", "sufficiency"} <= set(found.scores["attention"])


def test_faithfulness_over_a_folder_of_images(tmp_path):
    for number in range(2):
        IMAGE.rotate(90 * number).save(tmp_path / f"{number}.png")
    assert explain_set(open_model("ViT")[0], str(tmp_path), "occlusion").number == 2


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("BERT", "bert.encoder.layer.1.attention.self"),
        ("GPT-2", "transformer.h.1.attn"),
        ("T5", "decoder.block.1.layer.1.EncDecAttention"),
    ],
)
def test_heads_of_a_model_of_transformers_are_reported_by_the_names_of_its_modules(name, module, lines_file):
    run = open_model(name)[0]
    before = [p.clone() for p in run.model.parameters()]
    found = explain_heads(run, str(lines_file), number=3)
    heads = [head for head in found.heads if head.module == module]
    assert [head.head for head in heads] == [0, 1, 2] and all("separator" in head.weights for head in heads)
    assert all(abs(loss) > 1e-6 for (place, _), loss in found.importance.items() if place == module)
    assert found.pruned[0.0] != found.pruned[1.0] and all(map(torch.equal, before, run.model.parameters()))


@pytest.mark.parametrize(
    ("name", "module", "projection"),
    [
        ("BERT", "bert.encoder.layer.0.attention.self", "bert.encoder.layer.0.attention.output.dense"),
        ("GPT-2", "transformer.h.1.attn", "transformer.h.1.attn.c_proj"),
        ("Llama", "model.layers.0.self_attn", "model.layers.0.self_attn.o_proj"),
    ],
)
def test_loss_without_a_head_is_that_without_its_slice_of_the_output_projection(name, module, projection):
    run, given, selection = open_model(name)
    target = select_output(run, given, OutputSelection(**selection)).target
    with ablate_heads(run.model, [(module, 1)]):
        ablated = target.full_score()
    weight = run.model.get_submodule(projection).weight
    with torch.no_grad():
        (weight[8:16] if name == "GPT-2" else weight[:, 8:16]).zero_()  # a Conv1D is (in, out)
    torch.testing.assert_close(ablated, target.full_score(), atol=1e-5, rtol=0)
    assert (ablated - selected(name).target.full_score()).abs() > 1e-4


def test_heads_command_names_the_heads_of_a_folder(tmp_path, lines_file):
    write_folder(tmp_path, with_large_weights(library.MPNetForMaskedLM(library.MPNetConfig(**ENCODER))), roberta_tokenizer)
    command = ["explain", str(tmp_path), "--heads", "--data", str(lines_file), "--json", "--device", "cpu"]
    found = json.loads(CliRunner().invoke(app, command, catch_exceptions=False).stdout)
    assert {head["module"] for head in found["heads"]} == {f"mpnet.encoder.layer.{i}.attention.attn" for i in range(2)}


def test_heads_without_data_or_without_words_are_refused():
    with pytest.raises(UserError, match="no such file"):
        explain_heads(open_model("BERT")[0], "valid")
    with pytest.raises(UserError, match="--heads is for"):
        explain_heads(open_model("CLIP")[0], ".")


# the server


@pytest.mark.parametrize(
    ("name", "inputs", "more_verbs"),
    [
        ("BERT", {"text": MASKED_TEXT}, ["lens", "flow", "search"]),
        ("T5", {"text": TEXT_TO_READ}, ["lens", "search"]),
        ("ViT", {"image": "eA=="}, []),
    ],
)
def test_server_explains_and_shows_models_of_transformers(name, inputs, more_verbs):
    run, given, _ = open_model(name)
    info = describe_model(name, run)
    assert info.has_attention and info.verbs == ["attention", "explain", *more_verbs]
    explained = explain_response(name, run, given, ExplainRequest(model=name, **inputs))
    assert set(explained.attributions) == set(METHODS) and (explained.image is None) == (name != "ViT")
    shown = json.loads(attention_json(name, run, given, AttentionRequest(model=name, **inputs)))
    assert shown["layers"] == [1, 2] and (shown["image"] is None) == (name != "ViT")
