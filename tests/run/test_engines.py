"""Engines (regard, CTranslate2) and precisions (fp32, bf16, int8): choice, measurement, cache and messages."""

import json
import shutil

import pytest
import torch
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.errors import UserError
from regard.interop import ctranslate2 as ct2
from regard.run import engines
from regard.run.engines import FILE, FOLDER, use_engine
from regard.run.evaluate import evaluate


@pytest.fixture
def run(tiny_run, tmp_path):
    shutil.copytree(tiny_run.folder, tmp_path / "run")
    return regard.load(tmp_path / "run", device="cpu")


@pytest.fixture
def installed():
    pytest.importorskip("ctranslate2")


SOURCES = ["the dog sees the cat .", "", "the old man gives the woman a book ."]


def test_ctranslate2_in_fp32_equals_regard(run, installed, capsys):
    """The model is converted once, and every result names its engine."""
    regard_outputs = run.translate(SOURCES, beam=1, length_penalty=0.0)
    use_engine(run, "ctranslate2", "fp32")
    ctranslate2_outputs = run.translate(SOURCES, beam=1, length_penalty=0.0)
    assert [best.text for best in ctranslate2_outputs] == [best.text for best in regard_outputs]
    assert ctranslate2_outputs[1].text == ""
    for one, other in zip(regard_outputs, ctranslate2_outputs):
        assert one.score == pytest.approx(other.score, rel=0.01)  # at max_tokens, regard also counts the end token
        assert one.engine.startswith("regard-") and other.engine.startswith("ctranslate2-")
    (converted,) = (run.folder / FOLDER).glob("*/model.bin")
    written = converted.stat().st_mtime_ns
    again = regard.load(run.folder, device="cpu")
    use_engine(again, "ctranslate2", "fp32")
    assert converted.stat().st_mtime_ns == written
    stderr = capsys.readouterr().err
    assert "engine: ctranslate2-" in stderr and "BLEU" in stderr and stderr.count("measuring") == 1


def test_ctranslate2_hypotheses_use_our_length_penalty_and_sampling_uses_regard(run, installed):
    use_engine(run, "ctranslate2", "fp32")
    for best in run.translate(SOURCES[:1], beam=3, length_penalty=0.6, number=3):
        assert [found.score for found in best] == sorted((found.score for found in best), reverse=True)
        for found in best:
            assert found.score == pytest.approx(found.log_probability / ((5 + len(found.tokens) + 1) / 6) ** 0.6)
    drawn = run.translate(SOURCES[:1], temperature=1.0, seed=3)
    assert drawn[0].engine.startswith("regard-")
    run._engine = None
    assert run.translate(SOURCES[:1], temperature=1.0, seed=3) == drawn


def test_engine_auto_uses_ctranslate2_only_if_faster_and_equally_good(run, installed, capsys, monkeypatch):
    found = {"bleu": 20.0, "exact": 20.2, "sentences": 9, "times": 2.0}
    monkeypatch.setattr(engines, "measure_cost", lambda run, name, baseline: found)
    use_engine(run, "auto")
    assert run._engine is not None and "2.0 times as fast" in capsys.readouterr().err
    found["exact"] = 20.4
    use_engine(run, "auto")
    assert run._engine is None and "engine: regard, because CTranslate2 costs 0.4 BLEU" in " ".join(
        capsys.readouterr().err.split()
    )
    found |= {"exact": 20.0, "times": 0.9}
    use_engine(run, "auto")
    assert run._engine is None and "is slower here" in " ".join(capsys.readouterr().err.split())


def test_engine_auto_falls_back_to_regard_if_ctranslate2_is_not_installed(run, capsys, monkeypatch):
    monkeypatch.setattr(ct2, "is_ctranslate2_installed", lambda: False)
    use_engine(run, "auto")
    assert (
        run._engine is None
        and "engine: regard, because CTranslate2 is not installed: pip install 'regard[export]'"
        in " ".join(capsys.readouterr().err.split())
    )
    with pytest.raises(UserError, match=r"--engine ctranslate2: CTranslate2 is not installed: pip install"):
        use_engine(run, "ctranslate2")
    with pytest.raises(UserError, match="--engine fast: should be auto, regard, ctranslate2"):
        use_engine(run, "fast")
    with pytest.raises(UserError, match="--precision int4: should be fp32, bf16, int8"):
        use_engine(run, precision="int4")


def test_int8_precision_reports_its_small_bleu_cost(run, capsys):
    exact = run._perplexity(run.data.valid).score
    use_engine(run, precision="int8")
    stderr = " ".join(capsys.readouterr().err.split())
    assert "precision: int8" in stderr and "validation sentences" in stderr
    measured = next(iter(json.loads((run.folder / FILE).read_text()).values()))
    assert (
        abs(measured["bleu"] - measured["exact"]) < 3 and measured["sentences"] > 0
    )  # loose bound: the model has 60 steps of training
    assert run._perplexity(run.data.valid).score == pytest.approx(exact, rel=0.02)
    assert "|precision:int8|" in evaluate(run, save=False)[0].scores["bleu"].signature
    assert run._trained_model is not run.model and run._precision == "int8"


def test_engine_measurement_is_cached_until_the_weights_change(run, capsys):
    use_engine(run, precision="bf16")
    use_engine(regard.load(run.folder, device="cpu"), precision="bf16")
    assert capsys.readouterr().err.count("measuring") == 1
    (run.folder / "model.safetensors").touch()
    use_engine(regard.load(run.folder, device="cpu"), precision="bf16")
    assert capsys.readouterr().err.count("measuring") == 1


def test_engine_and_precision_options_of_translate_and_evaluate(run, installed, capsys):
    def run_cli(*words):
        return CliRunner().invoke(app, [str(word) for word in words])

    found = run_cli("translate", run.folder, "the dog sleeps .", "--engine", "ctranslate2", "--json")
    assert found.exit_code == 0 and json.loads(found.stdout.splitlines()[-1])["engine"].startswith("ctranslate2-")
    assert run_cli("translate", run.folder, "the dog sleeps .", "--precision", "int8").exit_code == 0
    found = run_cli("evaluate", run.folder, "--engine", "ctranslate2", "--json")
    assert isinstance(found.exception, UserError) and "our own engine only" in str(found.exception)
    assert run_cli("evaluate", run.folder, "--engine", "auto", "--precision", "fp32").exit_code == 0
    scores = json.loads((run.folder / "scores.json").read_text())
    assert any("engine:" in metric["signature"] for metric in scores["test"].values())
    assert torch.get_num_threads() == 1


def test_int8_says_that_outputs_may_depend_on_the_texts_beside(tiny_run, capsys, monkeypatch):
    monkeypatch.setattr("regard.run.engines.measure_cost", lambda run, name, baseline: None)
    run = regard.load(tiny_run.folder, device="cpu")
    use_engine(run, precision="int8")
    assert "may change the outputs of others beside it" in capsys.readouterr().err


def known_choice(run, *, times=2.0, lost=0.0):
    """Write a measurement of CTranslate2 in int8 into the run folder, as if it had been made."""
    name = f"ctranslate2-{ct2.ctranslate2_version()} int8"
    cost = {"bleu": 20.0 - lost, "exact": 20.0, "sentences": 9, "times": times, "weights": engines.weights_identity(run)}
    (run.folder / FILE).write_text(json.dumps({engines.cost_key(name, run, run.model): cost}))


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("beam", [1, 3])
def test_ctranslate2_batched_equals_one_by_one(run, installed, precision, beam):
    """Of sources with very different lengths, and of a model whose outputs end at their limit."""
    torch.manual_seed(0)
    for weight in run.model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    use_engine(run, "ctranslate2", precision)
    sources = [*SOURCES, "the cat", " ".join(["the old man gives the woman a book ."] * 2), *run.data.valid.source[:20]]
    together = run.translate(sources, beam=beam)
    assert len({len(best.tokens) for best in together}) > 3
    for source, best in zip(sources, together, strict=True):
        alone = run.translate(source, beam=beam)
        assert (best.text, pytest.approx(best.score, rel=1e-4)) == (alone.text, alone.score)


def test_engine_auto_measures_nothing_for_little_text_and_uses_what_is_known(run, installed, capsys, monkeypatch):
    little, much = engines.MIN_CHARACTERS - 1, engines.MIN_CHARACTERS
    use_engine(run, "auto", characters=little)
    assert run._engine is None and not (run.folder / FOLDER).exists() and not (run.folder / FILE).exists()
    assert not capsys.readouterr().err
    known_choice(run)
    use_engine(run, "auto", characters=little)
    assert run._engine is not None and "measuring" not in capsys.readouterr().err
    known_choice(run, lost=1.0)
    use_engine(run, "auto", characters=much)
    assert run._engine is None
    (run.folder / FILE).write_text("[]")
    use_engine(run, "auto", characters=much)
    assert "measuring" in capsys.readouterr().err


def test_engine_auto_stays_with_regard_without_a_validation_set(run, installed, capsys, monkeypatch):
    monkeypatch.setattr(engines, "validation_pairs", lambda run: None)
    use_engine(run, "auto")
    assert run._engine is None and "without a validation set" in " ".join(capsys.readouterr().err.split())
    assert not (run.folder / FOLDER).exists()
    use_engine(run, "ctranslate2")
    assert run._engine is not None


def test_a_measurement_of_a_read_only_run_is_kept_in_the_cache(run, installed, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(engines, "is_writable", lambda folder: False)
    before = sorted(run.folder.rglob("*"))
    for _ in range(2):
        use_engine(regard.load(run.folder, device="cpu"), "auto")
    assert sorted(run.folder.rglob("*")) == before and capsys.readouterr().err.count("measuring") == 1
    assert len(list((tmp_path / "cache").rglob("model.bin"))) == 1


def test_the_measurement_ends_when_its_time_is_over(run, installed, monkeypatch):
    monkeypatch.setattr(engines, "MEASURE_SECONDS", 0.0)
    monkeypatch.setattr(engines, "CHUNK", 8)
    use_engine(run, "auto")
    (measured,) = json.loads((run.folder / FILE).read_text()).values()
    assert measured["sentences"] == 8 < len(run.data.valid)


def test_ctranslate2_leaves_the_number_of_threads_to_torch(run, installed, monkeypatch):
    """It uses one thread per worker, and OpenMP's setting is shared: our engine, measured beside it, would have one thread."""
    before = torch.get_num_threads()
    monkeypatch.setattr(engines, "measure_cost", lambda run, name, baseline: None)
    try:
        torch.set_num_threads(2)
        use_engine(run, "ctranslate2")
        run.translate(SOURCES)
        assert torch.get_num_threads() == run._engine.workers == 2
    finally:
        torch.set_num_threads(before)


def test_new_weights_replace_the_converted_model(run, installed):
    use_engine(run, "ctranslate2")
    (run.folder / "model.safetensors").touch()
    use_engine(regard.load(run.folder, device="cpu"), "ctranslate2")
    assert len(list((run.folder / FOLDER).iterdir())) == 1


def test_a_watched_model_decodes_with_regard(run, installed):
    """Attention can be seen only in our model."""
    run.use_engine("ctranslate2", "fp32")
    with regard.watch(run.model) as seen:
        watched = run.translate(SOURCES[0])
    assert watched.engine.startswith("regard-") and seen.of(watched).numel()
    assert run.translate(SOURCES[0]).engine.startswith("ctranslate2-")


def test_translate_uses_ctranslate2_by_default_for_much_text(run, installed, monkeypatch):
    """One line out per line in, and --engine regard is always ours."""
    known_choice(run)
    lines = [*SOURCES, "", "the cat ."]

    def translate(*options):
        found = CliRunner().invoke(app, ["translate", str(run.folder), "--json", *options], input="\n".join(lines) + "\n")
        assert found.exit_code == 0
        return [json.loads(line) for line in found.stdout.splitlines()]

    default, own = translate(), translate("--engine", "regard")
    assert len(default) == len(own) == len(lines)
    assert all(line["engine"].startswith("ctranslate2-") for line in default) and not any("engine" in line for line in own)
    sampled = translate("--temperature", "1.0", "--seed", "3")
    assert sampled == translate("--temperature", "1.0", "--seed", "3", "--engine", "regard")
    known_choice(run, times=0.5)
    assert translate() == own
