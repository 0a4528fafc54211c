"""Runs loaded from Hugging Face folders: every verb gives the same results as `transformers`."""

import builtins
import json
import math

import numpy as np
import pytest
import torch
import transformers

import regard
from regard.batches.ragged import Ragged
from regard.batches.rows import encoder_pair_inputs
from regard.run.load import download
from regard.show.generation import generated_inputs, trace_generation
from regard.show.neurons import record_neurons
from regard.show.recording import attention_maps, record_attention
from regard.show.selection import ViewSelection
from regard.tokens.special_tokens import NO_TOKEN, SpecialTokens

V = 61
SIZES = dict(
    vocab_size=V, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40, max_position_embeddings=64
)
DISTIL = dict(vocab_size=V, dim=24, n_layers=2, n_heads=3, hidden_dim=40, max_position_embeddings=64)
GPT = dict(vocab_size=V, n_embd=24, n_layer=2, n_head=3, n_positions=64)
T5 = dict(vocab_size=V, d_model=24, d_kv=8, num_layers=2, num_heads=3, d_ff=40, decoder_start_token_id=0)
MARIAN = dict(
    vocab_size=V,
    d_model=24,
    encoder_layers=1,
    decoder_layers=1,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
    max_position_embeddings=64,
    pad_token_id=2,
    decoder_start_token_id=2,
    eos_token_id=0,
)
MODELS = {
    "bert": ("BertModel", SIZES),
    "classify": ("BertForSequenceClassification", SIZES),
    "roberta pairs": ("RobertaForSequenceClassification", dict(SIZES, num_labels=3, type_vocab_size=1)),
    "distilbert pairs": ("DistilBertForSequenceClassification", dict(DISTIL, num_labels=3)),
    "number": ("BertForSequenceClassification", dict(SIZES, num_labels=1)),
    "roberta number": ("RobertaForSequenceClassification", dict(SIZES, num_labels=1, problem_type="regression")),
    "answer": ("BertForQuestionAnswering", SIZES),
    "roberta answer": ("RobertaForQuestionAnswering", SIZES),
    "distilbert answer": ("DistilBertForQuestionAnswering", DISTIL),
    "tag": ("RobertaForTokenClassification", SIZES),
    "fill": ("BertForMaskedLM", SIZES),
    "roberta": ("RobertaForMaskedLM", SIZES),
    "gpt2": ("GPT2LMHeadModel", dict(GPT, eos_token_id=0)),
    "openai-gpt": ("OpenAIGPTLMHeadModel", GPT),
    "llama": ("LlamaForCausalLM", dict(SIZES, num_attention_heads=4)),
    "t5": ("T5ForConditionalGeneration", T5),
    "marian": ("MarianMTModel", MARIAN),
}
SPECIAL_TOKENS = {
    "bert": SpecialTokens(2, NO_TOKEN, (2,), (3,), ()),
    "roberta": SpecialTokens(0, 2, (0,), (2,), (), (2, 2), 0),
    "t5": SpecialTokens(0, 1, (), (1,), ()),
    "marian": SpecialTokens(2, 0, (), (0,), (2,)),
    "llama": SpecialTokens(1, 2, (1,), (), (), None, 0),
    "gpt2": SpecialTokens(NO_TOKEN, 0, (), (), ()),
    "openai-gpt": SpecialTokens(NO_TOKEN, NO_TOKEN, (), (), ()),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return a function that gives, by name, a `transformers` model, its tokenizer, and the run loaded from its folder."""
    made = {}

    def give(name):
        if name not in made:
            torch.manual_seed(3)
            kind = getattr(transformers, MODELS[name][0])
            model = randomize_weights(kind(kind.config_class(**MODELS[name][1])))
            with torch.no_grad():  # make outputs end
                if name == "t5":
                    model.shared.weight[model.config.eos_token_id] *= 2
                if name == "marian":
                    model.final_logits_bias[0, model.config.eos_token_id] += 4
                    model.final_logits_bias[0, model.config.pad_token_id] += 20  # suppressed tokens must really be suppressed
            folder = write_huggingface_model(model, tmp_path_factory.mktemp(name) / "theirs")
            model = kind.from_pretrained(folder).eval()
            made[name] = model, transformers.AutoTokenizer.from_pretrained(folder), regard.load(folder, device="cpu")
        return made[name]

    return give


@pytest.mark.parametrize("name", SPECIAL_TOKENS)
def test_special_tokens_equal_the_folders(opened, name):
    _, theirs, run = opened(name)
    assert run._special_tokens == SPECIAL_TOKENS[name]
    for line in ("the dog sleeps", "a book"):
        assert theirs(line)["input_ids"][:64] == [
            *run._special_tokens.prefix,
            *run.tokenizers[0].encode([line])[0],
            *run._special_tokens.suffix,
        ]


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "llama", "openai-gpt", "t5", "marian"])
def test_pieces_join_to_the_text_and_word_ids_agree(opened, name, lines):
    tokenizer = opened(name)[2].tokenizers[0]
    for text in [*lines, "the  dog\n\n sleeps ", "naïve café ☕ the dog", ""]:
        ids, words = tokenizer.encode_words([text])[0]
        assert ids == tokenizer.encode([text])[0]
        spoken = [i for i in ids if i not in tokenizer.special_ids]
        said = tokenizer.decode([ids])[0]
        if said.isascii():  # bytes of one character are separate pieces
            assert "".join(tokenizer.pieces(spoken)).strip() == said
        assert set(tokenizer.word_ids(ids)) <= set(range(max(1, len(said.split()))))
        assert words == sorted(words) and set(words) <= set(range(max(1, len(text.split()))))
        for number, word in enumerate(text.split()):
            own = [i for i, of in zip(ids, words) if of == number and i not in tokenizer.special_ids]
            if own and word.isascii():
                assert "".join(tokenizer.decode([own])[0].split()) in (word, word.lower())


def hidden(model, theirs, texts):
    """Return their hidden states (B, S, D) of every layer for padded texts, and the mask of real tokens."""
    batch = theirs(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        return model(**batch, output_hidden_states=True).hidden_states, batch["attention_mask"].bool()


@pytest.mark.parametrize("layer", [0, 1, -1])
def test_embed_equals_hidden_states_of_transformers(opened, lines, layer):
    model, theirs, run = opened("bert")
    theirs.backend_tokenizer.no_truncation()
    states, real = hidden(model, theirs, lines)
    means = [row[mask].mean(0) for row, mask in zip(states[layer], real)]  # as sentence-transformers: special tokens included
    for pool, expected in (("mean", means), ("cls", states[layer][:, 0])):
        found = np.concatenate([one.vectors for one in run.embed(lines, layer=layer, pool=pool)])
        np.testing.assert_allclose(found, torch.stack(list(expected)).numpy(), atol=1e-5)
    of = theirs(lines[1]).word_ids()
    for one, word in zip(run.embed(lines, layer=layer, pool="words")[1].vectors, range(9)):
        np.testing.assert_allclose(one, states[layer][1, [i for i, w in enumerate(of) if w == word]].mean(0).numpy(), atol=1e-5)
    assert run.embed(["the dog, home!"], pool="words")[0].tokens == ["the", "dog,", "home!"]


def test_pool_cls_needs_a_special_token(opened):
    with pytest.raises(regard.UserError, match=r"--pool cls.*without a special token"):
        opened("gpt2")[2].embed(["the dog"], pool="cls")


def test_classify_equals_transformers(opened, lines):
    model, theirs, run = opened("classify")
    theirs.backend_tokenizer.no_truncation()
    with torch.no_grad():
        p = model(**theirs(lines, return_tensors="pt", padding=True)).logits.softmax(-1)
    for expected, judged in zip(p, run.classify(lines)):
        assert {one.label: round(one.probability, 5) for one in judged} == {
            f"LABEL_{i}": round(float(value), 5) for i, value in enumerate(expected)
        }


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert pairs"])
def test_pair_inputs_equal_transformers(opened, name):
    _, theirs, run = opened(name)
    ids = run.tokenizers[0].encode(["the dog sleeps", "a book"])
    ours = encoder_pair_inputs(Ragged.from_rows(ids[:1]), Ragged.from_rows(ids[1:]), run._special_tokens)
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    found = theirs("the dog sleeps", "a book", return_token_type_ids=True)
    assert ours["source"][0].tolist() == found["input_ids"] and ours["segments"][0].tolist() == found["token_type_ids"]


def logits_of(model, theirs, text):
    """Return their logits of one text, or of two separated by a tab."""
    theirs.backend_tokenizer.no_truncation()
    theirs.backend_tokenizer.no_padding()
    batch = theirs(*text.split("\t"), return_tensors="pt", return_token_type_ids=True)
    if not hasattr(model.config, "type_vocab_size"):
        batch.pop("token_type_ids")
    with torch.no_grad():
        return model(**batch).logits[0]


MIXED = ["the dog sleeps\ta cat reads", "home", "a small cat reads the old book in the house\tthe dog", "the\thome"]


@pytest.mark.parametrize("name", ["classify", "roberta pairs", "distilbert pairs"])
def test_text_with_a_tab_is_classified_as_a_pair(opened, name):
    model, theirs, run = opened(name)
    for text, found in zip(MIXED, run.classify(MIXED)):
        p = logits_of(model, theirs, text).softmax(-1)
        assert {one.label: one.probability for one in found} == pytest.approx(
            {f"LABEL_{i}": float(value) for i, value in enumerate(p)}, abs=1e-5
        )
    assert run.classify(["the dog\tsleeps"]) != run.classify(["the dog sleeps"])
    with pytest.raises(regard.UserError, match="line 2 has 3 texts; this run reads pairs"):
        run.classify(["home", "a\tb\tc"])


@pytest.mark.parametrize("name", ["number", "roberta number"])
def test_regression_equals_transformers(opened, name):
    model, theirs, run = opened(name)
    assert run.recipe.task == "regress"
    assert run.classify(MIXED) == pytest.approx([float(logits_of(model, theirs, text)[0]) for text in MIXED], abs=1e-4)


CONTEXT = "A small cat, the old dog — and she — reads a book; in the house the dog sleeps again. Home! The cat does not run. " * 4


def best_span(model, theirs, question, context, most, width=None):
    """Return the best span, by brute force over every window and every pair of tokens of the context."""
    cut = dict(truncation="only_second", max_length=width[0], stride=width[1], return_overflowing_tokens=True) if width else {}
    theirs.backend_tokenizer.no_padding()
    theirs.backend_tokenizer.no_truncation()
    batch = theirs(question, context, return_offsets_mapping=True, return_token_type_ids=True, **cut)
    rows = batch["input_ids"] if width else [batch["input_ids"]]
    best = (-float("inf"), None)
    for row in range(len(rows)):
        of, offsets = batch.sequence_ids(row), batch["offset_mapping"][row] if width else batch["offset_mapping"]
        inputs = {
            name: torch.tensor([batch[name][row] if width else batch[name]])
            for name in ("input_ids", *(["token_type_ids"] if model.config.model_type == "bert" else []))
        }
        with torch.no_grad():
            found = model(**inputs)
        inside = [i for i, side in enumerate(of) if side == 1 and context[slice(*offsets[i])].strip()]
        for i in inside:
            for j in inside:
                if i <= j < i + most:
                    score = float(found.start_logits[0, i] + found.end_logits[0, j])
                    best = max(best, (score, context[offsets[i][0] : offsets[j][1]].strip()), key=lambda one: one[0])
    return best[1], len(rows)


@pytest.mark.parametrize("name", ["answer", "roberta answer", "distilbert answer"])
@pytest.mark.parametrize("times", [1, 4])
def test_answer_is_the_best_span_by_transformers_logits(opened, name, times):
    """In one window, and in several overlapping ones made by their tokenizer."""
    model, theirs, run = opened(name)
    question, context = "the dog", CONTEXT[: len(CONTEXT) // 4 * times].strip()
    ids, marks = run.tokenizers[0].encode([question, context]), run._special_tokens.num_added_to_pair
    most = run.recipe.model.max_length
    room = most - marks - len(ids[0])
    wide = len(ids[1]) <= room
    expected, rows = best_span(model, theirs, question, context, 30, None if wide else (most, room - room // 2))
    found = run.answer(question, context)
    assert found.text == expected and (rows == 1) == wide and rows == len(run._encode(one(question, context)))
    assert context[found.start : found.end] == found.text


def one(question, context):
    from regard.corpus.examples import QuestionExamples

    return QuestionExamples([question], [context], [[]])


def test_tag_equals_transformers_label_of_each_words_first_token(opened, lines):
    model, theirs, run = opened("tag")
    for text, found in zip(lines, run.tag(lines)):
        batch = theirs(text, return_tensors="pt", return_offsets_mapping=True)
        offsets = batch.pop("offset_mapping")[0].tolist()
        with torch.no_grad():
            best = model(**batch).logits[0].argmax(-1).tolist()
        starts = [text.index(word, sum(len(w) + 1 for w in text.split()[:i])) for i, word in enumerate(text.split())]
        firsts = [next(i for i, (a, b) in enumerate(offsets) if a <= start < b) for start in starts]
        assert found.words == text.split() and found.labels == [f"LABEL_{best[i]}" for i in firsts]


@pytest.mark.parametrize("name, mask", [("fill", "[MASK]"), ("roberta", "<mask>")])
def test_fill_equals_transformers(opened, name, mask):
    model, theirs, run = opened(name)
    found = run.fill([f"the {mask} sleeps"], number=3)[0]
    ids = [
        *run._special_tokens.prefix,
        *run.tokenizers[0].encode(["the "])[0],
        run._mask_id,
        *run.tokenizers[0].encode([" sleeps"])[0],
        *run._special_tokens.suffix,
    ]
    with torch.no_grad():
        p = model(input_ids=torch.tensor([ids])).logits[0, ids.index(run._mask_id)].softmax(-1)
    assert [round(one.probability, 5) for one in found.candidates[0]] == [round(float(x), 5) for x in p.topk(3).values]
    assert theirs.mask_token_id == run._mask_id


@pytest.mark.parametrize("name", ["gpt2", "llama", "openai-gpt"])
def test_generate_equals_transformers_in_padded_batches(opened, lines, name):
    model, theirs, run = opened(name)
    theirs.padding_side, theirs.pad_token_id = "left", 0
    batch = theirs(lines, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    options = dict(max_new_tokens=15, do_sample=False, pad_token_id=0)
    if name == "openai-gpt":  # it does not support left padding: one by one
        found = [model.generate(input_ids=torch.tensor([theirs(line)["input_ids"]]), **options)[0] for line in lines]
    else:
        found = model.generate(**batch, **options)
    expected = [theirs.decode(row, skip_special_tokens=True).strip() for row in found]
    assert [text.text for text in run.generate(lines, max_tokens=15)] == expected


@pytest.mark.parametrize("name", ["gpt2", "llama", "openai-gpt"])
@pytest.mark.parametrize("penalty", [1.2, 3.0, 0.7])
def test_repetition_penalty_equals_transformers(opened, lines, name, penalty):
    """Theirs one by one: in a batch they would penalize the padding of short prompts as repeated tokens."""
    model, theirs, run = opened(name)
    ids = [torch.tensor([theirs(line)["input_ids"]]) for line in lines]
    options = dict(max_new_tokens=15, do_sample=False, pad_token_id=0, repetition_penalty=penalty)
    expected = [theirs.decode(model.generate(input_ids=row, **options)[0], skip_special_tokens=True).strip() for row in ids]
    assert [text.text for text in run.generate(lines, max_tokens=15, repetition_penalty=penalty)] == expected
    assert expected != [text.text for text in run.generate(lines, max_tokens=15)]


@pytest.mark.parametrize("name", ["t5", "marian"])
@pytest.mark.parametrize("beam", [1, 3])
def test_translate_equals_transformers_in_padded_batches(opened, lines, name, beam):
    model, theirs, run = opened(name)
    batch = theirs(lines, return_tensors="pt", padding=True)
    batch.pop("token_type_ids", None)
    beams = dict(length_penalty=0.0, early_stopping="never") if beam > 1 else {}
    never = [[token] for token in run._special_tokens.suppressed] or None
    found = model.generate(
        **batch, max_new_tokens=40, num_beams=beam, do_sample=False, bad_words_ids=never, forced_eos_token_id=None, **beams
    )
    expected = [theirs.decode(row, skip_special_tokens=True).strip() for row in found]
    ours = run._best(lines, beam=beam, length_penalty=0.0, max_tokens=40)
    ended = [i for i, translation in enumerate(ours) if beam == 1 or len(translation.tokens) < 40]
    assert len(ended) > 2 and any(ours[i].tokens for i in ended)  # at the limit, ours forces the end token and theirs just stops
    assert [ours[i].text for i in ended] == [expected[i] for i in ended]


def test_alignment_is_by_words(opened):
    text = "the dog sees a small cat"
    run = opened("t5")[2]
    alignment = run.align(text, "a book, home")
    assert alignment.source == text.split() and alignment.target == ["a", "book,", "home"]
    assert alignment.weights.shape[:2] == (2, 3) and alignment.weights.shape[2:] == (3, 6)
    assert (alignment.weights.sum(-1) <= 1 + 1e-5).all()


def test_empty_prompt_needs_a_bos_token(opened):
    with pytest.raises(regard.UserError, match="the prompt is empty"):
        opened("gpt2")[2].generate([""])
    assert opened("llama")[2].generate([""], max_tokens=3)[0].tokens


def test_generation_ends_at_the_last_position(opened):
    run = opened("openai-gpt")[2]  # without an end token, only the length ends it
    assert len(run.generate(["the dog"], max_tokens=500)[0].tokens) == 64 + 1 - len(run.tokenizers[0].encode(["the dog"])[0]) - 1


@pytest.mark.parametrize("name", ["gpt2", "llama", "openai-gpt"])
def test_stream_equals_generate(opened, lines, name):
    run = opened(name)[2]
    for place, (line, text) in enumerate(zip(lines, run.generate(lines, max_tokens=25, temperature=2.0))):
        writing = run.stream(line, max_tokens=25, temperature=2.0, place=place)
        assert writing.prompt + "".join(writing) == text.text and writing.result.continuation == text.continuation
        assert text.text == run.tokenizers[0].decode([[*run._encode_prompts([line])[0], *text.tokens]])[0]


def test_folder_has_no_data_and_gets_no_card(opened):
    run = opened("gpt2")[2]
    with pytest.raises(regard.UserError, match="names no data"):
        run.data  # noqa: B018
    from regard.run.card import write_card

    before = sorted(path.name for path in run.folder.iterdir())
    write_card(run)
    assert sorted(path.name for path in run.folder.iterdir()) == before


def test_evaluate_scores_a_folder_without_changing_it(opened, tmp_path, lines):
    from typer.testing import CliRunner

    from regard.cli import app

    run = opened("t5")[2]
    for name in ("source", "reference"):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    before = sorted(path.name for path in run.folder.iterdir())
    done = CliRunner().invoke(
        app,
        [
            "evaluate",
            str(run.folder),
            "--source",
            str(tmp_path / "source"),
            "--reference",
            str(tmp_path / "reference"),
            "--device",
            "cpu",
            "--json",
        ],
    )
    assert done.exit_code == 0 and '"metric": "bleu"' in done.stdout, done.output
    assert sorted(path.name for path in run.folder.iterdir()) == before


def test_hub_name_without_network_or_package(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(regard.UserError, match=r"^nobody/nothing is neither a folder.*HF_HUB_OFFLINE is set; fetch it"):
        regard.load("nobody/nothing")
    with pytest.raises(regard.UserError, match="does not exist; make one with"):
        regard.load("nothing")

    known = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("huggingface_hub"):
            raise ImportError(name)
        return known(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(regard.UserError, match=r"pip install 'regard\[hub\]'"):
        download("nobody/nothing", ["*.json"])
    assert not list(tmp_path.iterdir())


def test_hub_download_fetches_only_the_needed_files(opened, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(opened("gpt2")[2].folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert regard.load("somebody/gpt2", device="cpu").recipe.task == "language"
    assert asked[0][0] == "somebody/gpt2" and not any(pattern.endswith((".py", ".bin")) for pattern in asked[0][1])


@pytest.mark.parametrize("name", ["bert", "roberta pairs", "answer", "fill", "gpt2", "openai-gpt", "llama", "marian", "t5"])
def test_recorded_attention_equals_transformers(opened, name):
    theirs, _, run = opened(name)
    text = "the dog\ta book" if name in ("roberta pairs", "answer") else "the dog sleeps"
    record = record_attention(run, text)
    inputs = run._inputs(text)
    asked = {"input_ids": inputs.get("source", inputs.get("target"))}
    if "segments" in inputs and theirs.config.model_type == "bert":
        asked["token_type_ids"] = inputs["segments"]
    if {"source", "target"} <= set(inputs):
        asked["decoder_input_ids"] = inputs["target"]
    theirs.set_attn_implementation("eager")
    with torch.no_grad():
        said = theirs(**asked, output_attentions=True)
    maps = {group.name: group.weights for group in attention_maps(record)}
    wanted = (
        {"self-attention": said.attentions}
        if "decoder_input_ids" not in asked
        else {
            "cross-attention": said.cross_attentions,
            "self-attention of the encoder": said.encoder_attentions,
            "self-attention of the decoder": said.decoder_attentions,
        }
    )
    assert maps.keys() == wanted.keys()
    for kind, layers in wanted.items():
        np.testing.assert_allclose(maps[kind], torch.stack(layers)[:, 0].numpy(), atol=2e-6)
    found, _ = record_neurons(run, text, ViewSelection("neurons", layer=1, head=2))
    for row, one in zip(next(iter(wanted.values()))[0][0, 1], found.queries):
        np.testing.assert_allclose(one.weights, row.numpy(), atol=2e-6)
        np.testing.assert_allclose(torch.from_numpy(one.scores).softmax(-1).numpy(), row.numpy(), atol=2e-6)


@pytest.mark.parametrize("name", ["gpt2", "llama", "marian", "t5"])
def test_generation_probabilities_equal_transformers(opened, name):
    theirs, _, run = opened(name)
    read, said, rows = generated_inputs(run, "the dog sleeps", 5 if name in ("gpt2", "llama") else None)
    asked = (
        {"input_ids": read.inputs["target"]}
        if rows
        else {"input_ids": read.inputs["source"], "decoder_input_ids": read.inputs["target"]}
    )
    with torch.no_grad():
        p = theirs(**asked).logits[0].softmax(-1)
    p = p[rows] if rows else p
    steps = trace_generation(run, "the dog sleeps", ViewSelection("steps"), 5 if rows else None).steps
    np.testing.assert_allclose([step.probability for step in steps], p[range(len(said)), said].numpy(), atol=1e-4)
    np.testing.assert_allclose(steps[0].others[0][1], p[0].topk(2).values[int(said[0] == int(p[0].argmax()))].item(), atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_perplexity_on_a_file_equals_that_of_transformers(opened, lines, tmp_path, name):
    model, _, run = opened(name)
    (tmp_path / "some.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (result,) = run.evaluate(tmp_path / "some.txt")
    total, count = 0.0, 0
    for batch in run._batches(run._evaluation_rows(result.examples)):
        for target, labels in zip(batch.inputs["target"], batch.labels):
            length = int(labels.ge(0).nonzero().max()) + 1
            with torch.no_grad():
                log_p = model(target[None, :length]).logits[0].log_softmax(-1)
            counted = labels[:length].ge(0)
            total -= float(log_p[counted].gather(1, labels[:length][counted][:, None]).sum())
            count += int(counted.sum())
    assert result.scores["perplexity"].score == pytest.approx(math.exp(total / count), rel=1e-3)
    assert not (run.folder / "scores.json").exists()


GLUE_FILES = {  # as GLUE writes them: header, and the cells of one example
    "SST-2.tsv": ("sentence\tlabel", "{a}\t{label}"),
    "CoLA.tsv": ("", "gj04\t{label}\t\t{a}"),
    "MRPC.tsv": ("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String", "{label}\t{i}\t{i}9\t{a}\t{b}"),
    "RTE.tsv": ("index\tsentence1\tsentence2\tlabel", "{i}\t{a}\t{b}\tLABEL_{label}"),
    "QQP.tsv": ("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "{i}\t{i}\t{i}1\t{a}\t{b}\t{label}"),
    "mine.jsonl": ("", '{{"premise": "{a}", "hypothesis": "{b}", "label": {label}}}'),
}


@pytest.mark.parametrize("file", GLUE_FILES)
def test_evaluate_reads_the_columns_of_glue_and_numbers_of_labels(opened, tmp_path, lines, file, capsys):
    model, tokenizer, run = opened("classify")
    header, row = GLUE_FILES[file]
    pairs = [(a, b) for a in lines for b in lines]
    cells = [row.format(i=i, a=a, b=b, label=i % 2) for i, (a, b) in enumerate(pairs)]
    (tmp_path / file).write_text("\n".join([*([header] if header else []), *cells]) + "\n", encoding="utf-8")
    (result,) = run.evaluate(tmp_path / file)
    right = []
    for i, (a, b) in enumerate(pairs):
        with torch.no_grad():
            logits = model(**tokenizer(*([a, b] if "{b}" in row else [a]), return_tensors="pt", padding=False)).logits
        right.append(int(logits.argmax()) == i % 2)
    assert result.scores["accuracy"].score == pytest.approx(100 * np.mean(right))
    assert "is the text" in capsys.readouterr().err


def test_evaluate_refuses_labels_that_a_folder_does_not_have(opened, tmp_path):
    run = opened("classify")[2]
    (tmp_path / "mine.tsv").write_text("sentence\tlabel\na book\t0\nthe dog\t2\n")
    with pytest.raises(regard.UserError, match=r"mine.tsv:2 has the label '0', .*LABEL_0, LABEL_1"):
        run.evaluate(tmp_path / "mine.tsv")


def test_evaluate_scores_a_regression_folder_on_the_columns_of_sts_b(opened, tmp_path, lines):
    run = opened("number")[2]
    pairs = [(a, b) for a in lines for b in lines]
    rows = [f"{i}\t{a}\t{b}\t{i % 5 + 0.5}" for i, (a, b) in enumerate(pairs)]
    (tmp_path / "STS-B.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tscore", *rows]) + "\n", encoding="utf-8")
    (result,) = run.evaluate(tmp_path / "STS-B.tsv")
    numbers = [run.classify(f"{a}\t{b}") for a, b in pairs]
    expected = 100 * np.corrcoef(numbers, [i % 5 + 0.5 for i in range(len(pairs))])[0, 1]
    assert result.scores["pearson"].score == pytest.approx(expected, abs=0.1)


def test_perplexity_of_a_text_column_equals_that_of_its_lines(opened, lines, tmp_path):
    run = opened("gpt2")[2]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    records = [json.dumps({"id": i, "text": line}) for i, line in enumerate(lines)]
    (tmp_path / "a.jsonl").write_text("\n".join(records) + "\n", encoding="utf-8")
    (plain,), (column,) = run.evaluate(tmp_path / "a.txt"), run.evaluate(tmp_path / "a.jsonl")
    assert column.scores["perplexity"].score == plain.scores["perplexity"].score
