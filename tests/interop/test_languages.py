"""Language codes of multilingual translators: around a text, first in an output, in training and on the command line."""

import json
from dataclasses import replace

import pytest
import torch
import transformers
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.interop.convert import write_huggingface_folder
from regard.run.convert import verify_conversion
from regard.tokens.languages import code_before_text, language_codes

SMALL = dict(
    vocab_size=61,
    d_model=24,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=3,
    decoder_attention_heads=3,
    encoder_ffn_dim=40,
    decoder_ffn_dim=40,
    max_position_embeddings=64,
    pad_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=2,
)
ENGLISH, OTHER = 4, 5
"""The language codes of the tokenizers in conftest.py."""


@pytest.fixture(scope="module", params=["MBart", "M2M100"])
def folder(request, tmp_path_factory, write_huggingface_model, randomize_weights):
    """Return a model without a target language of its own."""
    torch.manual_seed(3)
    kind = getattr(transformers, f"{request.param}ForConditionalGeneration")
    model = randomize_weights(kind(kind.config_class(**SMALL)))
    return write_huggingface_model(model, tmp_path_factory.mktemp("languages") / request.param)


def codes(run):
    return list(language_codes(run.tokenizers[0]))


def test_the_target_language_begins_every_output_and_the_source_language_the_text(folder):
    run = regard.load(folder, device="cpu")
    english, other = codes(run)
    run.use_languages(source=other, target=english)
    tokens = run._special_tokens
    assert (tokens.prefix, tokens.suffix, tokens.output_start) == ((OTHER,), (2,), (2, ENGLISH))


def test_translations_equal_transformers_with_a_forced_first_token(folder, lines):
    """The verification compares beam search too."""
    run = regard.load(folder, device="cpu")
    run.use_languages(target=codes(run)[1])
    assert verify_conversion(run, folder).passed
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    for line, found in zip(lines, run.translate(lines, beam=1, max_tokens=9)):
        (ids,) = run.tokenizers[0].encode([line])
        written = model.generate(
            torch.tensor([[ENGLISH, *ids, 2]]),
            forced_bos_token_id=OTHER,
            do_sample=False,
            num_beams=1,
            max_new_tokens=11,
            suppress_tokens=list(run._special_tokens.suppressed) or None,
        )[0].tolist()
        assert written[:2] == [2, OTHER]
        assert [token for token in written[2:] if token != 2][:9] == found.tokens


def test_translating_without_a_target_language_is_refused(folder):
    run = regard.load(folder, device="cpu")
    with pytest.raises(UserError, match="translates into 2 languages; name one with --target-language"):
        run.translate("a dog")
    run.embed(["a dog"])


def test_unknown_languages_name_the_nearest(folder):
    run = regard.load(folder, device="cpu")
    with pytest.raises(UserError, match=f"--target-language .*not one of the 2 languages; did you mean .*{codes(run)[1]}"):
        run.use_languages(target=codes(run)[1].lower())


def test_the_command_line_sets_languages(folder, lines):
    run = regard.load(folder, device="cpu")
    english, other = codes(run)
    command = ["translate", str(folder), lines[0], "--device", "cpu", "--greedy", "--max-tokens", "9"]
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, UserError) or refused.exit_code == 2
    found = CliRunner().invoke(app, [*command, "--source-language", english, "--target-language", other, "--json"])
    run.use_languages(target=other)
    assert json.loads(found.stdout)["text"] == run.translate(lines[0], beam=1, max_tokens=9).text


def test_alignments_skip_the_language_codes(folder, lines):
    run = regard.load(folder, device="cpu")
    run.use_languages(target=codes(run)[1])
    (ids,), (target,) = run.tokenizers[0].encode([lines[1]]), run.tokenizers[1].encode([lines[0]])
    aligned = run.align(lines[1], lines[0])
    source = torch.tensor([[ENGLISH, *ids, 2]])
    with torch.no_grad(), regard.watch(run.model, kinds="cross") as seen:
        run.model(source, torch.tensor([source.size(1)]), torch.tensor([[2, OTHER, *target]]))
    weights = seen.stack()[:, 0]  # (layers, heads, T, S)
    first_word = run.tokenizers[1].encode_words([lines[0]])[0][1].count(0)
    words = run.tokenizers[0].encode_words([lines[1]])[0][1]
    rows = weights[:, :, 1 : 1 + first_word, 1 : 1 + len(words)].mean(2)  # (layers, heads, S)
    expected = rows[..., : words.count(0)].sum(-1) / rows.sum(-1)
    torch.testing.assert_close(torch.from_numpy(aligned.weights[:, :, 0, 0]).float(), expected, atol=1e-5, rtol=0)


def test_rows_of_training_contain_the_language_codes(folder):
    from regard.batches.ragged import Ragged
    from regard.batches.rows import TranslationRows
    from regard.batches.token_store import TokenStore

    run = regard.load(folder, device="cpu")
    run.use_languages(target=codes(run)[1])
    side = TokenStore(Ragged.from_rows([[9, 8], [7]]))
    batch = TranslationRows(side, side, run._special_tokens).batch(torch.arange(2).numpy(), 0, 0)
    assert batch.inputs["source"][0].tolist() == [ENGLISH, 9, 8, 2]
    assert batch.inputs["target"][0].tolist() == [2, OTHER, 9, 8] and batch.labels[0].tolist() == [OTHER, 9, 8, 2]


def test_the_code_of_an_early_nllb_tokenizer_moves_before_the_text(folder):
    tokenizer = regard.load(folder, device="cpu").tokenizers[0]
    tokenizer.special_tokens = replace(tokenizer.special_tokens, prefix=(), suffix=(2, ENGLISH))
    moved = code_before_text(tokenizer)
    assert (moved.prefix, moved.suffix) == ((ENGLISH,), (2,))


def test_the_first_mbart_starts_outputs_with_their_language(folder, tmp_path):
    run = regard.load(folder, device="cpu")
    run.tokenizers[0].special_tokens = replace(run._special_tokens, prefix=(), suffix=(2, ENGLISH))
    run.use_languages(target=codes(run)[1])
    assert run._special_tokens.output_start == (OTHER,)


def test_a_chosen_language_is_not_written_back(folder, tmp_path):
    run = regard.load(folder, device="cpu")
    run.use_languages(target=codes(run)[1])
    back = write_huggingface_folder(run, tmp_path / "back")
    for name in ("generation_config.json", "tokenizer.json"):
        assert (back / name).read_bytes() == (folder / name).read_bytes()


def test_training_takes_the_languages_from_the_recipe(folder, tmp_path, lines):
    from regard.run.train import train

    before = regard.load(folder, device="cpu")
    english, other = codes(before)
    for name in ("train", "valid"):
        for side in ("a", "b"):
            (tmp_path / f"{name}.{side}").write_text("\n".join(lines * 5) + "\n")
    recipe = {
        "task": "translate",
        "data": {
            "root": str(tmp_path),
            "train": ["train.a", "train.b"],
            "valid": ["valid.a", "valid.b"],
        },
        "tokens": {"source_language": other, "target_language": english},
        "model": before.recipe.model.model_dump(mode="json"),
        "train": {"steps": 2, "evaluate_every": 2, "tokens_per_batch": 256, "init_from": {"run": str(folder)}},
    }
    run = train(recipe, tmp_path / "run", device="cpu")
    tokens = regard.load(run.folder, device="cpu")._special_tokens
    assert (tokens.prefix, tokens.suffix, tokens.output_start) == ((OTHER,), (2,), (2, ENGLISH))
    back = write_huggingface_folder(run, tmp_path / "hf")
    assert regard.load(back, device="cpu")._special_tokens.output_start == (2, ENGLISH)
    assert verify_conversion(run, back).passed


def test_ctranslate2_is_refused_with_a_target_language(folder, tmp_path):
    from regard.run.engines import why_unsupported

    run = regard.load(folder, device="cpu")
    run.use_languages(target=codes(run)[1])
    assert "outputs that begin with the code of a language" in why_unsupported(run)
