"""Tiny random models of every text family: outputs equal `transformers`; the round trip is bit for bit."""

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

import regard
from regard.interop.convert import write_huggingface_folder
from regard.layers.quantized import convert_precision
from regard.run.convert import verify_conversion

V = 61
CLOSE = dict(atol=1e-4, rtol=0.0)


def encoder(**other):
    return dict(
        vocab_size=V,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=64,
        **other,
    )


def modern(**other):
    return dict(
        encoder(),
        num_hidden_layers=5,
        local_attention=6,
        pad_token_id=0,
        cls_token_id=2,
        sep_token_id=3,
        bos_token_id=2,
        eos_token_id=3,
        **other,
    )


def distil(**other):
    return dict(dict(vocab_size=V, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=64), **other)


def gpt(**other):
    return dict(vocab_size=V, n_embd=24, n_layer=2, n_head=3, n_positions=64, **other)


def t5(**other):
    return dict(
        dict(
            vocab_size=V,
            d_model=24,
            d_kv=5,
            num_layers=2,
            num_heads=3,
            d_ff=40,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=12,
            decoder_start_token_id=0,
        ),
        **other,
    )


def marian(**other):
    return dict(
        dict(
            vocab_size=V,
            d_model=24,
            encoder_layers=2,
            decoder_layers=1,
            encoder_attention_heads=3,
            decoder_attention_heads=3,
            encoder_ffn_dim=40,
            decoder_ffn_dim=40,
            max_position_embeddings=64,
            pad_token_id=2,
            decoder_start_token_id=2,
            eos_token_id=0,
            forced_eos_token_id=None,
        ),
        **other,
    )


def bart(**other):
    return marian(**{"pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2, "forced_eos_token_id": 2, **other})


def llama(**other):
    return dict(
        dict(
            vocab_size=V,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        ),
        **other,
    )


CASES = [
    ("BertModel", encoder()),
    ("BertForMaskedLM", encoder()),
    ("BertForMaskedLM", encoder(hidden_act="relu")),
    ("BertForPreTraining", encoder(layer_norm_eps=1e-3)),
    ("BertForSequenceClassification", encoder(num_labels=3)),
    ("BertForTokenClassification", encoder(num_labels=5)),
    (
        "BertForSequenceClassification",
        dict(encoder(), hidden_size=16, num_attention_heads=1, num_hidden_layers=3, hidden_act="relu", type_vocab_size=1),
    ),
    ("BertForQuestionAnswering", encoder()),
    ("BertForSequenceClassification", encoder(num_labels=1, problem_type="regression")),
    ("RobertaModel", encoder(type_vocab_size=1)),
    ("RobertaForMaskedLM", encoder()),
    ("RobertaForSequenceClassification", encoder(num_labels=4)),
    ("RobertaForTokenClassification", dict(encoder(), num_hidden_layers=1, hidden_act="gelu_new")),
    ("RobertaForQuestionAnswering", encoder(type_vocab_size=1)),
    ("RobertaForSequenceClassification", encoder(num_labels=1, type_vocab_size=1)),
    ("XLMRobertaModel", encoder(type_vocab_size=1)),
    ("XLMRobertaForMaskedLM", encoder(type_vocab_size=1)),
    ("XLMRobertaForSequenceClassification", encoder(num_labels=3, layer_norm_eps=1e-5)),
    ("XLMRobertaForTokenClassification", encoder(num_labels=4, type_vocab_size=1)),
    ("XLMRobertaForQuestionAnswering", encoder(type_vocab_size=1)),
    ("AlbertModel", encoder(embedding_size=10)),
    ("AlbertForMaskedLM", dict(encoder(embedding_size=10), num_hidden_layers=3)),
    ("AlbertForPreTraining", encoder(embedding_size=24, hidden_act="relu")),
    ("AlbertForSequenceClassification", encoder(embedding_size=10, num_labels=3)),
    ("AlbertForTokenClassification", encoder(embedding_size=30)),
    ("AlbertForQuestionAnswering", encoder(embedding_size=10, layer_norm_eps=1e-3)),
    ("ElectraModel", encoder(embedding_size=10)),
    ("ElectraForPreTraining", encoder(embedding_size=24)),
    ("ElectraForMaskedLM", encoder(embedding_size=10, hidden_act="relu")),
    ("ElectraForSequenceClassification", encoder(embedding_size=10, num_labels=3)),
    ("ElectraForTokenClassification", encoder(embedding_size=24, num_labels=4)),
    ("ElectraForQuestionAnswering", encoder(embedding_size=10)),
    ("ModernBertModel", modern()),
    ("ModernBertForMaskedLM", modern()),
    ("ModernBertForMaskedLM", modern(norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)),
    ("ModernBertForSequenceClassification", modern(num_labels=3)),
    (
        "ModernBertForSequenceClassification",
        modern(classifier_pooling="mean", classifier_activation="silu", global_attn_every_n_layers=2),
    ),
    ("ModernBertForTokenClassification", modern(num_labels=4, hidden_activation="gelu_pytorch_tanh")),
    ("ModernBertForQuestionAnswering", modern(layer_types=["sliding_attention"] * 5, norm_eps=1e-3)),
    ("DistilBertModel", distil()),
    ("DistilBertForMaskedLM", distil(sinusoidal_pos_embds=True)),
    ("DistilBertForSequenceClassification", distil(num_labels=3)),
    ("DistilBertForQuestionAnswering", distil()),
    ("DistilBertForTokenClassification", distil(n_layers=1, n_heads=6, activation="relu")),
    ("GPT2LMHeadModel", gpt(eos_token_id=0)),
    ("GPT2LMHeadModel", dict(gpt(eos_token_id=0), n_head=1, n_inner=50, activation_function="relu", scale_attn_weights=False)),
    ("GPT2LMHeadModel", dict(gpt(eos_token_id=0, tie_word_embeddings=False), n_layer=3)),
    ("GPT2Model", gpt(eos_token_id=0)),
    ("OpenAIGPTLMHeadModel", gpt()),
    ("OpenAIGPTLMHeadModel", dict(gpt(afn="relu"), n_layer=1, n_head=4)),
    ("T5ForConditionalGeneration", t5(num_decoder_layers=3)),
    ("T5ForConditionalGeneration", t5(feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_heads=2, d_kv=12)),
    (
        "T5ForConditionalGeneration",
        t5(feed_forward_proj="gated-silu", num_layers=1, relative_attention_num_buckets=32, relative_attention_max_distance=40),
    ),
    ("T5Model", t5()),
    ("MT5ForConditionalGeneration", t5(feed_forward_proj="gated-gelu", num_decoder_layers=3)),
    ("MT5ForConditionalGeneration", t5(feed_forward_proj="relu")),
    ("MT5Model", t5()),
    ("MarianMTModel", marian(scale_embedding=True, activation_function="swish")),
    ("MarianMTModel", marian(share_encoder_decoder_embeddings=False)),
    ("MarianMTModel", marian(encoder_layers=1, decoder_layers=3, encoder_attention_heads=4, decoder_attention_heads=4)),
    ("BartForConditionalGeneration", bart(forced_bos_token_id=0)),
    ("BartForConditionalGeneration", bart(activation_function="relu", scale_embedding=True, decoder_layers=2)),
    ("BartModel", bart()),
    ("MBartForConditionalGeneration", bart(scale_embedding=True, forced_bos_token_id=5)),
    ("MBartForConditionalGeneration", bart(decoder_start_token_id=5)),
    ("MBartModel", bart()),
    ("M2M100ForConditionalGeneration", bart(forced_bos_token_id=5, scale_embedding=True)),
    ("M2M100ForConditionalGeneration", bart(activation_function="relu", encoder_attention_heads=4, decoder_attention_heads=4)),
    ("M2M100Model", bart()),
    ("LlamaForCausalLM", llama()),
    (
        "LlamaForCausalLM",
        llama(
            num_key_value_heads=4,
            head_dim=8,
            attention_bias=True,
            mlp_bias=True,
            tie_word_embeddings=True,
            rms_norm_eps=1e-3,
            rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        ),
    ),
    ("LlamaForCausalLM", llama(num_hidden_layers=1, num_key_value_heads=1)),
    ("LlamaForCausalLM", llama(rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0})),
    (
        "LlamaForCausalLM",
        llama(
            hidden_size=48,  # six pairs: unscaled, interpolated and scaled ones
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        ),
    ),
    ("MistralForCausalLM", llama(sliding_window=None, eos_token_id=2, bos_token_id=1)),
    ("MistralForCausalLM", llama(sliding_window=3, eos_token_id=2, bos_token_id=1)),
    ("MistralForCausalLM", llama(sliding_window=1, num_hidden_layers=3, eos_token_id=2, bos_token_id=1)),
    ("MistralForCausalLM", llama(eos_token_id=2, bos_token_id=1)),  # a window of 4096, longer than any text
    ("Qwen2ForCausalLM", llama(eos_token_id=0)),
    (
        "Qwen2ForCausalLM",
        llama(eos_token_id=0, num_hidden_layers=3, use_sliding_window=True, sliding_window=3, max_window_layers=1, head_dim=10),
    ),
    ("Qwen2Model", llama(eos_token_id=0, tie_word_embeddings=True)),
    ("Qwen3ForCausalLM", llama(eos_token_id=0, head_dim=10, tie_word_embeddings=True)),
    (
        "Qwen3ForCausalLM",
        llama(
            eos_token_id=0,
            head_dim=6,
            num_hidden_layers=3,
            use_sliding_window=True,
            sliding_window=2,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
            rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 3.0},
        ),
    ),
    ("GemmaForCausalLM", llama(eos_token_id=0, bos_token_id=1, head_dim=10)),
    ("GemmaForCausalLM", llama(eos_token_id=2, bos_token_id=1, head_dim=6, num_key_value_heads=1, hidden_act="gelu")),
    (
        "Gemma2ForCausalLM",
        llama(eos_token_id=2, bos_token_id=1, head_dim=10, num_hidden_layers=3, sliding_window=3, attn_logit_softcapping=2.0),
    ),
    (
        "Gemma2ForCausalLM",
        llama(
            eos_token_id=2,
            bos_token_id=1,
            head_dim=6,
            query_pre_attn_scalar=20,
            sliding_window=2,
            attn_logit_softcapping=None,
            final_logit_softcapping=4.0,
            layer_types=["full_attention", "sliding_attention"],
            tie_word_embeddings=False,
        ),
    ),
    ("Gemma2Model", llama(eos_token_id=2, bos_token_id=1, head_dim=6, query_pre_attn_scalar=6)),
    (
        "Gemma3ForCausalLM",
        llama(
            eos_token_id=2,
            bos_token_id=1,
            head_dim=6,
            num_hidden_layers=3,
            sliding_window=3,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
            query_pre_attn_scalar=12,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        ),
    ),
    ("Gemma3ForCausalLM", llama(eos_token_id=2, bos_token_id=1, head_dim=6, final_logit_softcapping=5.0)),
    ("Gemma3TextModel", llama(eos_token_id=2, bos_token_id=1, head_dim=6, sliding_window=2)),
]
NAMES = [f"{name}-{number}" for number, (name, _) in enumerate(CASES)]


@pytest.fixture(scope="module", params=CASES, ids=NAMES)
def pair(request, tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return a `transformers` model, and the same model loaded by us."""
    torch.manual_seed(len(request.param[1]))
    name, settings = request.param[0], dict(request.param[1])
    forced = settings.pop("forced_bos_token_id", None)
    kind = getattr(transformers, name)
    model = randomize_weights(kind(kind.config_class(**settings)))
    if forced is not None:
        model.generation_config.forced_bos_token_id = forced
    if settings.get("feed_forward_proj") == "gated-gelu":  # T5 1.1: the output is not tied
        model.lm_head.weight = torch.nn.Parameter(0.3 * torch.randn(V, 24))
    folder = write_huggingface_model(model, tmp_path_factory.mktemp("parity") / "theirs")
    return model, regard.load(folder, device="cpu")


def batch():
    """Return rows of different lengths; the padding is random."""
    return torch.randint(5, V, (4, 9)), torch.tensor([9, 4, 1, 7]), torch.randint(5, V, (4, 6))


@torch.no_grad()
def test_logits_of_padded_batches_equal_transformers(pair):
    model, run = pair
    source, lengths, target = batch()
    real = torch.arange(9) < lengths[:, None]
    inputs = {"input_ids": source.masked_fill(~real, model.config.pad_token_id or 0), "attention_mask": real.long()}
    if run.recipe.task == "translate":
        theirs, ours = model(**inputs, decoder_input_ids=target), run.model(source, lengths, target)
    else:
        theirs = model(**inputs)
        ours = run.model(source) if run.recipe.task == "language" else run.model(source, lengths)
    if "last_hidden_state" in theirs and run.recipe.task in ("language", "translate"):  # a bare decoder has no logits
        ours = {
            "language": lambda: run.model.hidden_states(source, lengths)[-1],
            "translate": lambda: last_states(run.model, source, lengths, target),
        }[run.recipe.task]()
    if run.recipe.task == "answer":
        expected, ours = torch.stack([theirs.start_logits, theirs.end_logits], dim=-1), ours.transpose(1, 2)
        assert (ours[~real] == -torch.inf).all()
    else:
        theirs = model.electra(**inputs) if run.recipe.task == "encode" and "logits" in theirs else theirs
        expected = next(theirs[name] for name in ("logits", "prediction_logits", "last_hidden_state") if name in theirs)
    assert expected.std() > 0.1  # the comparison is not trivial
    rows = real if run.recipe.task != "translate" and expected.dim() == 3 else ...
    torch.testing.assert_close(ours[rows], expected[rows], **CLOSE)


def last_states(model, source, lengths, target):
    states = []
    model.decoder(
        model.target_embedding(target), mask=regard.Mask(causal=True), sources=model.encode(source, lengths), states=states
    )
    return states[-1]


def test_states_attention_greedy_and_beam_text_equal_transformers(pair):
    """Beam search with length penalty 0; theirs stops later (`early_stopping="never"`), which does not change the best one."""
    model, run = pair
    proof = verify_conversion(run, run.folder)
    assert proof.against == "transformers" and proof.passed, proof
    if run.recipe.task == "language":
        assert max(proof.logits, proof.states, proof.attention) < 1e-5, proof
    writes = type(model).__name__.endswith(("LMHeadModel", "CausalLM", "Generation", "MTModel"))
    assert (proof.texts > 0) == writes


@torch.no_grad()
def test_cached_steps_of_decoders_equal_the_whole_text(pair):
    """One token at a time, after a prefix whose rows begin at different positions."""
    _, run = pair
    if run.recipe.task != "language":
        pytest.skip("not a decoder alone")
    tokens, starts = torch.randint(5, V, (4, 9)), [0, 4, 3, 2]
    prefix = torch.stack([torch.cat([row.new_full((start,), -1), row[: 5 - start]]) for row, start in zip(tokens, starts)])
    whole, state = run.model(tokens), run.model.start(None, prefix)
    for number in range(4):
        read = [number + 5 - start for start in starts]  # tokens that each row has read
        logits, state = run.model.step(tokens[torch.arange(4), read][:, None], state)
        torch.testing.assert_close(logits[:, 0], whole[torch.arange(4), read], **CLOSE)


def test_gradients_of_decoders_equal_transformers(pair):
    """Of the loss with respect to the embeddings, through all layers."""
    model, run = pair
    if run.recipe.task != "language" or "ForCausalLM" not in type(model).__name__:
        pytest.skip("not a decoder with an output")
    tokens = torch.randint(5, V, (4, 9))
    logits = [model(tokens).logits, run.model(tokens)]
    tables = [model.get_input_embeddings().weight, run.model.token_embedding.weight]
    theirs, ours = (
        torch.autograd.grad(torch.nn.functional.cross_entropy(one[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()), table)[0]
        for one, table in zip(logits, tables)
    )
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
    assert theirs.abs().max() > 1e-2


@torch.no_grad()
def test_cached_steps_of_encoder_decoders_equal_the_whole_target(pair):
    _, run = pair
    if run.recipe.task != "translate":
        pytest.skip("not an encoder and a decoder")
    source, lengths, target = batch()
    whole, state = run.model(source, lengths, target), run.model.start((source, lengths), target[:, :2])
    for number in range(2, 6):
        logits, state = run.model.step(target[:, number : number + 1], state)
        torch.testing.assert_close(logits[:, 0], whole[:, number], **CLOSE)


@torch.no_grad()
def test_int8_and_bf16_give_similar_outputs(pair):
    _, run = pair
    source, lengths, target = batch()
    task, lengths = run.recipe.task, torch.full_like(lengths, 9)
    inputs = {"language": (source,), "translate": (source, lengths, target)}.get(task, (source, lengths))
    exact = run.model(*inputs)
    for precision in ("int8", "bf16"):
        outputs = convert_precision(run.model, precision)(*inputs).float()
        similar = torch.cosine_similarity(outputs.flatten(), exact.flatten(), dim=0)
        assert similar > 0.98, (precision, similar)


def test_round_trip_is_bit_for_bit(pair, tmp_path):
    _, run = pair
    back = write_huggingface_folder(run, tmp_path / "back")
    there, again = load_file(run.folder / "model.safetensors"), load_file(back / "model.safetensors")
    assert there.keys() == again.keys()
    for name in there:
        assert there[name].dtype == again[name].dtype and torch.equal(there[name], again[name]), name
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (run.folder / name).read_bytes() == (back / name).read_bytes()
    assert not list(tmp_path.glob(".*"))


def test_next_sentence_logits_equal_transformers(write_huggingface_model, randomize_weights, tmp_path):
    model = randomize_weights(transformers.BertForPreTraining(transformers.BertConfig(**encoder())))
    run = regard.load(write_huggingface_model(model, tmp_path / "theirs"), device="cpu")
    source, lengths, _ = batch()
    segments, real = (torch.arange(9) > 3).long().expand(4, -1), torch.arange(9) < lengths[:, None]
    with torch.no_grad():
        theirs = model(input_ids=source, attention_mask=real.long(), token_type_ids=segments)
        run.model(source, lengths, segments, follows=torch.zeros(4, dtype=torch.long))
    torch.testing.assert_close(run.model.next_sentence_logits, theirs.seq_relationship_logits, **CLOSE)


def old_rotation(config):
    """Spell rotary positions as Llama 3.1's folder does."""
    rope = config.pop("rope_parameters")
    del rope["original_max_position_embeddings"]  # the default
    config |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}


def no_layer_types(config):
    """Leave the layers with a window to the other settings, as older folders do."""
    del config["layer_types"]


def published_gemma3(config):
    """Spell rotary positions and windows as Gemma 3's folders do."""
    rope = config.pop("rope_parameters")
    config |= {"rope_theta": rope["full_attention"].pop("rope_theta"), "rope_scaling": rope["full_attention"]}
    config |= {"rope_local_base_freq": rope["sliding_attention"]["rope_theta"], "sliding_window_pattern": 3}
    del config["layer_types"]


def defaults_only(config):
    """Leave out what has a default."""
    names = ["layer_types", "rope_parameters", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"]
    for name in names:
        config.pop(name, None)


LLAMA3 = {"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
OLD_SPELLINGS = [
    ("LlamaForCausalLM", llama(rope_parameters=LLAMA3), old_rotation),
    (
        "Qwen2ForCausalLM",
        llama(eos_token_id=0, num_hidden_layers=4, use_sliding_window=True, sliding_window=3, max_window_layers=1),
        no_layer_types,
    ),
    ("MistralForCausalLM", llama(), lambda config: [config.pop(name) for name in ("sliding_window", "rope_parameters")]),
    ("Gemma2ForCausalLM", llama(head_dim=6, num_hidden_layers=3, sliding_window=3), defaults_only),
    ("Gemma3ForCausalLM", llama(head_dim=6, num_hidden_layers=6, sliding_window=3), defaults_only),
    (
        "Gemma3ForCausalLM",
        llama(
            head_dim=6,
            num_hidden_layers=3,
            sliding_window=3,
            rope_parameters={
                "full_attention": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            },
        ),
        published_gemma3,
    ),
]


@pytest.mark.parametrize("name, settings, respell", OLD_SPELLINGS, ids=[name for name, *_ in OLD_SPELLINGS])
def test_older_spellings_of_config_json_equal_transformers(
    write_huggingface_model, randomize_weights, tmp_path, name, settings, respell
):
    kind = getattr(transformers, name)
    folder = write_huggingface_model(randomize_weights(kind(kind.config_class(**settings))), tmp_path / "theirs")
    config = json.loads((folder / "config.json").read_text())
    respell(config)
    (folder / "config.json").write_text(json.dumps(config))
    run = regard.load(folder, device="cpu")
    proof = verify_conversion(run, folder)
    assert proof.passed, proof


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_shards_and_half_precision_round_trip(write_huggingface_model, randomize_weights, tmp_path, dtype):
    model = randomize_weights(transformers.LlamaForCausalLM(transformers.LlamaConfig(**llama()))).to(dtype)
    folder = write_huggingface_model(model, tmp_path / "theirs", max_shard_size="8KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 2 and not (folder / "model.safetensors").exists()
    back = write_huggingface_folder(regard.load(folder, device="cpu"), tmp_path / "back")
    there = {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}
    again = load_file(back / "model.safetensors")
    assert there.keys() == again.keys() and all(torch.equal(there[name], again[name]) for name in there)
    assert {tensor.dtype for tensor in again.values()} == {dtype}


@pytest.mark.parametrize("prefixed", [True, False])
def test_tensor_names_with_and_without_prefix_and_in_tensorflow_spelling(
    write_huggingface_model, randomize_weights, tmp_path, prefixed
):
    """As in bert-base-uncased: gamma and beta, a pooler that the head does not use, a copy of the embedding."""
    from safetensors.torch import save_file

    model = randomize_weights(transformers.BertForMaskedLM(transformers.BertConfig(**encoder())))
    folder = write_huggingface_model(model, tmp_path / "theirs")
    before = regard.load(folder, device="cpu")
    tensors = load_file(folder / "model.safetensors")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old = old if prefixed else {name.removeprefix("bert."): tensor for name, tensor in old.items()}
    old["bert.pooler.dense.weight"], old["bert.pooler.dense.bias"] = torch.randn(24, 24), torch.randn(24)
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    save_file(old, folder / "model.safetensors", metadata={"format": "pt"})
    after = regard.load(folder, device="cpu")
    source, lengths, _ = batch()
    assert torch.equal(before.model(source, lengths), after.model(source, lengths))
    again = load_file(write_huggingface_folder(after, tmp_path / "back") / "model.safetensors")
    assert torch.equal(again["bert.pooler.dense.weight"], old["bert.pooler.dense.weight"])
