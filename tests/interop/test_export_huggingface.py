"""Export of runs to Hugging Face folders that `transformers` loads; settings that no family supports are named."""

import json

import pytest
import torch
import transformers
from typer.testing import CliRunner

import regard
from regard import recipe as recipes
from regard.cli import app
from regard.interop.verify import ConversionProof
from regard.run.convert import convert
from regard.tasks import read_recipe, recipe_task
from regard.tokens.tokenizer import train_tokenizer
from regard.training.checkpoint import named_weights, write_weights

SMALL = dict(width=24, heads=3, feed_forward=40, max_length=40)
TEXT = [
    "the dog sees a small cat",
    "a cat sleeps near the old house",
    "the old dog and the small cat run home",
    "she reads a book in the house",
    "home again, the cat sleeps; the dog does not!",
    "a book, a house, a dog",
] * 3
LINES = ["the dog sleeps", "a small cat reads the old book in the house", "home"]
LLAMA = dict(
    norm="rms",
    norm_first=True,
    activation="swiglu",
    bias=False,
    positions={"kind": "rotary", "base": 500.0},
    tie=False,
    key_value_heads=1,
)
GEMMA = LLAMA | {"norm": "zero_centered_rms", "activation": "geglu", "tie": True}
T5 = dict(norm="rms", norm_first=True, bias=False, scale_scores=False, scale_embedding=False, positions={"kind": "relative"})
BART = dict(embedding_norm=True, positions={"kind": "learned"}, output_bias=True, activation="gelu")
MODERNBERT = dict(
    SMALL,
    layers=3,
    activation="geglu_exact",
    norm="layer_no_bias",
    bias=False,
    embedding_norm=True,
    first_norm=False,
    head_bias=False,
    positions={"kind": "rotary", "base": 900.0, "local_base": 100.0},
    window=3,
    window_layers=[1, 2],
)
BERT = {**SMALL, "preset": "bert-tiny", "width": 24}

SUPPORTED = [
    ("language", dict(SMALL, preset="gpt2", layers=2, width=24), "gpt2", "AutoModelForCausalLM"),
    ("language", dict(SMALL, preset="gpt", layers=2, width=24, feed_forward=96), "openai-gpt", "AutoModelForCausalLM"),
    ("language", dict(SMALL, layers=2, **LLAMA), "llama", "AutoModelForCausalLM"),
    (
        "language",
        dict(SMALL, layers=2, **LLAMA | {"positions": {"kind": "rotary", "scaling": {"kind": "llama3", "original_length": 40}}}),
        "llama",
        "AutoModelForCausalLM",
    ),
    ("language", dict(SMALL, layers=2, window=3, window_layers=[0, 1], **LLAMA), "mistral", "AutoModelForCausalLM"),
    ("language", dict(SMALL, layers=2, qk_norm=True, **LLAMA), "qwen3", "AutoModelForCausalLM"),
    ("language", dict(SMALL, layers=3, qk_norm=True, window=3, **LLAMA), "qwen3", "AutoModelForCausalLM"),
    ("language", dict(SMALL, layers=2, scale_embedding=True, **GEMMA), "gemma", "AutoModelForCausalLM"),
    (
        "language",
        dict(SMALL, layers=3, scale_embedding=True, sandwich_norm=True, score_cap=3.0, logit_cap=5.0, window=3, **GEMMA),
        "gemma2",
        "AutoModelForCausalLM",
    ),
    (
        "language",
        dict(SMALL, layers=3, scale_embedding=True, sandwich_norm=True, qk_norm=True, window=3, **GEMMA)
        | {"positions": {"kind": "rotary", "base": 900.0, "local_base": 30.0}, "scale_width": 20},
        "gemma3_text",
        "AutoModelForCausalLM",
    ),
    (
        "translate",
        dict(SMALL, encoder_layers=2, decoder_layers=1, positions={"sines_first": True}, output_bias=True),
        "marian",
        "AutoModelForSeq2SeqLM",
    ),
    ("translate", dict(SMALL, encoder_layers=1, decoder_layers=2, scale_output=True, **T5), "t5", "AutoModelForSeq2SeqLM"),
    *(
        ("translate", dict(SMALL, encoder_layers=1, decoder_layers=2, norm_first=first, **BART), name, "AutoModelForSeq2SeqLM")
        for first, name in ((False, "bart"), (True, "mbart"))
    ),
    (
        "translate",
        dict(SMALL, encoder_layers=1, decoder_layers=2, tie="embeddings", activation="geglu", **T5),
        "t5",
        "AutoModelForSeq2SeqLM",
    ),
    ("span-corruption", dict(SMALL, encoder_layers=1, decoder_layers=1, scale_output=True, **T5), "t5", "AutoModelForSeq2SeqLM"),
    ("text-to-text", dict(SMALL, encoder_layers=1, decoder_layers=1, scale_output=True, **T5), "t5", "AutoModelForSeq2SeqLM"),
    ("translate", dict(SMALL, encoder_layers=2, decoder_layers=1, norm_first=True), "pegasus", "AutoModelForSeq2SeqLM"),
    ("translate", dict(SMALL, encoder_layers=2, decoder_layers=1), "marian", "AutoModelForSeq2SeqLM"),
    ("language", dict(SMALL, layers=2, norm_first=True), "gpt2", "AutoModelForCausalLM"),
    ("masked", BERT, "bert", "AutoModelForMaskedLM"),
    ("classify", BERT, "bert", "AutoModelForSequenceClassification"),
    ("classify", dict(BERT, segments=0, pool="first_relu"), "distilbert", "AutoModelForSequenceClassification"),
    ("tag", BERT, "bert", "AutoModelForTokenClassification"),
    ("masked", dict(BERT, embedding_width=8), "electra", "AutoModelForMaskedLM"),
    ("classify", dict(BERT, pool="first_gelu"), "electra", "AutoModelForSequenceClassification"),
    ("masked", dict(BERT, embedding_width=8, share_layers=True), "albert", "AutoModelForMaskedLM"),
    ("classify", dict(BERT, embedding_width=8, share_layers=True), "albert", "AutoModelForSequenceClassification"),
    ("answer", BERT, "bert", "AutoModelForQuestionAnswering"),
    ("masked", MODERNBERT, "modernbert", "AutoModelForMaskedLM"),
    ("tag", dict(MODERNBERT, head_transform=True), "modernbert", "AutoModelForTokenClassification"),
    ("answer", dict(BERT, segments=0), "distilbert", "AutoModelForQuestionAnswering"),
    ("regress", BERT, "bert", "AutoModelForSequenceClassification"),
    ("pairs", BERT, "bert", "AutoModelForSequenceClassification"),
]
NAMES = [f"{task}-{family}-{number}" for number, (task, _, family, _) in enumerate(SUPPORTED)]


@pytest.fixture(scope="module", params=SUPPORTED, ids=NAMES)
def converted(request, make_run, tmp_path_factory):
    torch.manual_seed(1)
    task, model, family, kind = request.param
    folder = tmp_path_factory.mktemp("own")
    run = make_run(folder / "run", task, model)
    return run, convert(run.folder, folder / "hf", verify=True, device="cpu"), folder / "hf", family, kind


def test_exported_run_passes_verification(converted):
    run, proof, folder, family, kind = converted
    assert proof.against == "transformers" and proof.passed, proof
    assert proof.texts == (4 if run.recipe.task in ("language", "translate", "span-corruption", "text-to-text") else 0)
    opened, info = getattr(transformers, kind).from_pretrained(folder, output_loading_info=True)
    assert opened.config.model_type == family == transformers.AutoModel.from_pretrained(folder).config.model_type
    assert not info["missing_keys"] and not info["mismatched_keys"]


def test_exported_tokenizer_equals_ours(converted):
    run, _, folder, _, _ = converted
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    marks = run._special_tokens
    around = ((marks.bos,), ()) if run.recipe.task == "language" else (marks.prefix, marks.suffix)
    for line, ids in zip(LINES, run.tokenizers[0].encode(LINES)):
        assert theirs(line)["input_ids"] == [*around[0], *ids, *around[1]]
    if run.recipe.task in ("answer", "classify", "masked"):
        first, second = run.tokenizers[0].encode(LINES[:2])
        both = theirs(*LINES[:2])
        assert both["input_ids"] == [*marks.prefix, *first, *marks.suffix, *second, *marks.suffix]
        if run.recipe.model.segments:
            assert both["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)
        else:
            assert "token_type_ids" not in both
    assert theirs.pad_token_id == 0 and theirs.decode(theirs(LINES[0])["input_ids"], skip_special_tokens=True).strip() == LINES[0]


def test_exported_folder_loads_with_the_same_results(converted):
    run, _, folder, _, _ = converted
    again = regard.load(folder, device="cpu")
    task = run.recipe.task
    if task in ("language", "translate", "text-to-text"):
        assert (again._special_tokens.bos, again._special_tokens.eos, again._special_tokens.suppressed) == (
            run._special_tokens.bos,
            run._special_tokens.eos,
            run._special_tokens.suppressed,
        )
    if task in ("translate", "text-to-text"):
        assert [found.text for found in again._best(LINES, length_penalty=0.0)] == [found.text for found in run._best(LINES)]
    elif task == "language":
        assert again.generate(LINES, max_tokens=12) == run.generate(LINES, max_tokens=12)
    elif task == "span-corruption":
        assert again.recipe.task == "translate" and again.tokenizers[0].to_json() != "" and again._best(LINES)
    elif task == "masked":
        assert again.fill(["the <mask> sleeps"])[0].text == run.fill(["the <mask> sleeps"])[0].text
    elif task == "answer":
        assert again.answer(LINES, LINES[::-1], number=3) == run.answer(LINES, LINES[::-1], number=3)
    elif task == "regress":
        assert again.recipe.task == "regress" and again.classify(LINES) == pytest.approx(run.classify(LINES), abs=1e-3)
        assert json.loads((folder / "config.json").read_text())["problem_type"] == "regression"
        number = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        ids = transformers.AutoTokenizer.from_pretrained(folder)(LINES[0], return_tensors="pt")
        with torch.no_grad():
            assert float(number(**ids).logits) == pytest.approx(run.classify(LINES[:1])[0], abs=1e-3)
    else:
        texts = ["\t".join(LINES[:2]), "\t".join(LINES[1:])] if getattr(run.recipe.data, "text_pair", None) else LINES
        assert getattr(again, task)(texts) == getattr(run, task)(texts)
        assert again.labels == ["good", "bad", "neither"]


def test_model_cards_report_the_conversion(converted):
    run, proof, folder, _, _ = converted
    for card in (folder / "README.md", run.folder / "README.md"):
        text = card.read_text(encoding="utf-8")
        assert "## Conversion" in text and f"| logits | {proof.logits:.1e} |" in text and "## Misuse" in text


UNSUPPORTED = [
    (
        "language",
        dict(SMALL, preset="gpt2", layers=2, width=24, window=8),
        "model.window = 8 has no counterpart in the closest, gpt2",
    ),
    ("language", dict(SMALL, preset="gpt2", layers=2, width=24, positions={"kind": "alibi"}), "model.positions.kind = 'alibi'"),
    ("language", dict(SMALL, layers=2, qkv_bias=True, **LLAMA), "start it from a qwen2 folder (train.init_from)"),
    (
        "translate",
        dict(SMALL, positions={"sines_first": True, "kind": "learned"}, output_bias=True),
        "model.positions.kind = 'learned'",
    ),
    ("classify", dict(BERT, norm_first=True), "model.norm_first = True"),
    ("classify", dict(BERT, pool="mean"), "model.pool = 'mean'"),
    ("classify", dict(BERT, pool="max"), "model.pool = 'max'"),
    ("classify", dict(BERT, convolution=3), "model.convolution = 3"),
    ("pairs", dict(BERT, pool="mean", pairs="cosine"), "model.pool = 'mean'"),
]


@pytest.mark.parametrize("task, model, message", UNSUPPORTED, ids=[message[:30] for *_, message in UNSUPPORTED])
def test_unsupported_model_is_reported_in_one_line(tmp_path, task, model, message, make_run):
    make_run(tmp_path / "run", task, model)
    with pytest.raises(regard.UserError) as error:
        convert(tmp_path / "run", tmp_path / "hf", device="cpu")
    assert message in str(error.value) and "\n" not in str(error.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


@pytest.mark.parametrize(
    "task, model", [("translate", {"attention": "additive"}), ("language", {}), ("tag", {"attention": "dot"})]
)
def test_recurrent_models_are_exported_with_our_code(tmp_path, task, model, make_run, capsys):
    run = make_run(tmp_path / "run", task, {"kind": "recurrent", "width": 24, **model})
    proof = convert(tmp_path / "run", tmp_path / "hf", verify=True, device="cpu")
    assert proof.passed and proof.logits < 1e-6 and "trust_remote_code=True" in capsys.readouterr().err
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "hf", trust_remote_code=True)
    with torch.no_grad():
        next(theirs.parameters()).add_(1.0)  # the proof can fail
    assert not torch.equal(next(theirs.parameters()), next(run.model.parameters()))
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "hf").get_vocab() == run.tokenizers[0].library.get_vocab()


def test_two_vocabularies_cannot_be_exported(tmp_path, make_run):
    run = make_run(tmp_path / "run", "translate", dict(SMALL, positions={"sines_first": True}, output_bias=True))
    text = (run.folder / "recipe.toml").read_text()
    text = text.replace("joint = true", "joint = false").replace('tie = "all"', 'tie = "target"')
    (run.folder / "recipe.toml").write_text(text)
    (run.folder / "tokenizer.json").rename(run.folder / "tokenizer.source.json")
    other = train_tokenizer(recipes.TokenSettings(size=60), TEXT)
    (run.folder / "tokenizer.target.json").write_text(other.to_json(), encoding="utf-8")
    recipe = read_recipe(run.folder / "recipe.toml")
    write_weights(
        run.folder / "model.safetensors",
        named_weights(recipe_task(recipe).run(recipe_task(recipe), run.folder, recipe, torch.device("cpu")).model),
    )
    with pytest.raises(regard.UserError, match="two vocabularies"):
        convert(run.folder, tmp_path / "hf", device="cpu")


def test_verification_without_transformers_loads_the_folder_again(tmp_path, monkeypatch, make_run):
    monkeypatch.setattr("regard.run.convert.is_transformers_installed", lambda: False)
    make_run(tmp_path / "run", *SUPPORTED[0][:2])
    proof = convert(tmp_path / "run", tmp_path / "hf", verify=True, device="cpu")
    assert proof.against == "the folder read again" and proof.passed and proof.logits == 0 and proof.texts == 4


def test_convert_command_verifies_or_fails(tmp_path, monkeypatch, make_run):
    make_run(tmp_path / "run", *SUPPORTED[0][:2])

    def run_command(name):
        return CliRunner().invoke(
            app, ["convert", str(tmp_path / "run"), str(tmp_path / name), "--to", "hf", "--verify", "--device", "cpu"]
        )

    done = run_command("hf")
    assert done.exit_code == 0 and "beam text, length penalty 0: the same in 4 of 4" in done.output, done.output
    monkeypatch.setattr(
        "regard.run.convert.verify_conversion", lambda run, folder: ConversionProof("transformers", 0.3, 0.0, 0.0)
    )
    done = run_command("other")
    assert done.exit_code == 1 and "the outputs of" in done.output and "logits: largest difference 3.0e-01" in done.output


def test_verification_of_a_bare_model_without_transformers(tmp_path, monkeypatch, write_huggingface_model, randomize_weights):
    monkeypatch.setattr("regard.run.convert.is_transformers_installed", lambda: False)
    model = randomize_weights(
        transformers.GPT2Model(transformers.GPT2Config(vocab_size=61, n_embd=24, n_layer=2, n_head=3, eos_token_id=0))
    )
    folder = write_huggingface_model(model, tmp_path / "theirs")
    (folder / "README.md").write_text("# Theirs\n\nlicence: mit\n")
    proof = convert(folder, tmp_path / "again", verify=True, device="cpu")
    assert proof.passed and proof.logits == 0 and proof.texts == 0
    card = (tmp_path / "again" / "README.md").read_text()
    assert card.startswith("# Theirs\n\nlicence: mit\n") and "## Conversion" in card
    assert (folder / "README.md").read_text() == "# Theirs\n\nlicence: mit\n"


def test_loading_a_folder_does_not_change_the_random_state(tmp_path, write_huggingface_model, randomize_weights):
    folder = write_huggingface_model(
        randomize_weights(
            transformers.BertForMaskedLM(
                transformers.BertConfig(
                    vocab_size=61, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=40
                )
            )
        ),
        tmp_path / "theirs",
    )
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = regard.load(folder, device="cpu")
    assert torch.equal(torch.rand(3), expected)
    again = regard.load(folder, device="cpu")  # the next-sentence head, which the folder lacks, is initialised from a fixed seed
    assert all(torch.equal(a, b) for a, b in zip(one.model.parameters(), again.model.parameters()))


def test_existing_folder_is_not_overwritten(tmp_path, make_run):
    make_run(tmp_path / "run", *SUPPORTED[0][:2])
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "mine.txt").write_text("mine")
    with pytest.raises(regard.UserError, match="already exists"):
        convert(tmp_path / "run", tmp_path / "hf", device="cpu")
    assert [path.name for path in (tmp_path / "hf").iterdir()] == ["mine.txt"]
