"""Export to CTranslate2 and ONNX: outputs equal the run's; unsupported settings are named."""

import json

import pytest
import torch
from typer.testing import CliRunner

from regard.cli import app
from regard.errors import UserError
from regard.interop import ctranslate2 as ct2
from regard.run.convert import convert

pytest.importorskip("ctranslate2")
SMALL = dict(width=24, heads=3, feed_forward=40, max_length=40)
LLAMA = dict(norm="rms", norm_first=True, activation="swiglu", bias=False, positions={"kind": "rotary", "base": 500.0}, tie=False)
FOR_CTRANSLATE2 = {
    "as published": ("translate", dict(SMALL, encoder_layers=2, decoder_layers=1)),
    "norm first, gated, not scaled": (
        "translate",
        dict(
            SMALL,
            encoder_layers=1,
            decoder_layers=2,
            norm_first=True,
            tie="none",
            activation="swiglu",
            scale_embedding=False,
            scale_output=True,
        ),
    ),
    "learned positions, rms": (
        "translate",
        dict(
            SMALL,
            encoder_layers=1,
            decoder_layers=1,
            norm="rms",
            activation="gelu",
            positions={"kind": "learned"},
            output_bias=True,
            scale_scores=False,
        ),
    ),
    "gpt2": ("language", dict(SMALL, preset="gpt2", layers=2, width=24)),
    "llama": ("language", dict(SMALL, layers=2, **LLAMA)),
    "some biases, scaled embeddings": ("language", dict(SMALL, layers=2, qkv_bias=True, scale_embedding=True, **LLAMA)),
}
BERT = {**SMALL, "preset": "bert-tiny", "width": 24}
GEMMA2 = LLAMA | dict(norm="zero_centered_rms", activation="geglu", sandwich_norm=True, score_cap=3.0, logit_cap=5.0, window=3)
FOR_ONNX = {
    "pairs": BERT,
    "translate": dict(SMALL, encoder_layers=1, decoder_layers=1),
    "language": dict(SMALL, layers=2, scale_embedding=True, **GEMMA2),
}


@pytest.mark.parametrize("name", FOR_CTRANSLATE2)
def test_ctranslate2_equals_the_run(name, make_run, tmp_path):
    torch.manual_seed(2)
    run = make_run(tmp_path / "run", *FOR_CTRANSLATE2[name])
    proof = convert(run.folder, tmp_path / "out", to="ctranslate2", verify=True, device="cpu")
    assert proof.against.startswith("CTranslate2") and proof.texts == 4 and proof.passed, proof
    assert {"model.bin", "config.json", "tokenizer.json", "README.md"} <= {path.name for path in (tmp_path / "out").iterdir()}
    card = (run.folder / "README.md").read_text()
    assert "for CTranslate2" in card and "log-probabilities" in card and "4 of 4" in card


def test_proof_fails_if_weights_differ(make_run, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", *FOR_CTRANSLATE2["as published"])
    monkeypatch.setattr(ct2, "to_numpy", lambda tensor, whole=ct2.to_numpy: whole(tensor * 1.01))
    proof = convert(run.folder, tmp_path / "out", to="ctranslate2", verify=True, device="cpu")
    assert proof.logits > 1e-3 and not proof.passed


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"positions": {"kind": "alibi"}}, "positions.kind = 'alibi'"),
        ({"key_width": 5}, "model.key_width"),
        ({"key_value_heads": 1}, "model.key_value_heads"),
        ({"residual": False}, "model.residual = false"),
        ({"qk_norm": True}, "model.qk_norm"),
        ({"score_cap": 20.0}, "model.score_cap"),
        ({"norm_first": True, "sandwich_norm": True}, "model.sandwich_norm"),
        ({"positions": {"kind": "rotary", "scaling": {"kind": "linear", "factor": 2.0}}}, "positions.scaling.kind = 'linear'"),
    ],
)
def test_settings_that_ctranslate2_does_not_support(changed, named, make_run, tmp_path):
    run = make_run(tmp_path / "run", "translate", dict(SMALL, encoder_layers=1, decoder_layers=1, **changed))
    with pytest.raises(UserError, match=f"CTranslate2 does not support {named}"):
        convert(run.folder, tmp_path / "out", to="ctranslate2", device="cpu")
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("task", ["translate", *(pytest.param(name, marks=pytest.mark.system) for name in ("pairs", "language"))])
def test_onnxruntime_equals_the_run(task, make_run, tmp_path):
    """Also for other batch sizes and lengths than those of the export."""
    pytest.importorskip("onnxscript")
    from regard.interop.onnx import run_onnx

    run = make_run(tmp_path / "run", task, FOR_ONNX[task])
    proof = convert(run.folder, tmp_path / "out", to="onnx", verify=True, device="cpu")
    assert proof.against.startswith("onnxruntime") and proof.passed and "as ONNX" in (run.folder / "README.md").read_text()
    inputs = {"source": torch.randint(5, 60, (5, 9)), "lengths": torch.tensor([9, 3, 1, 9, 5])}
    if task == "pairs":
        inputs["segments"] = torch.randint(0, 2, (5, 9))
    if task == "translate":
        inputs["target"] = torch.randint(5, 60, (5, 7))
    if task == "language":
        inputs = {"target": torch.randint(5, 60, (5, 9))}
    with torch.no_grad():
        ours, theirs = run.model(**inputs), run_onnx(tmp_path / "out", inputs)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


def test_missing_package_is_reported_with_the_install_command(make_run, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run", *FOR_CTRANSLATE2["as published"])
    monkeypatch.setattr(ct2, "is_ctranslate2_installed", lambda: False)
    with pytest.raises(UserError, match=r"not installed: pip install 'regard\[export\]'"):
        convert(run.folder, tmp_path / "out", to="ctranslate2", device="cpu")
    monkeypatch.setattr("regard.interop.onnx.REQUIRED_PACKAGES", ("onnx", "nothing_of_that_name"))
    with pytest.raises(UserError, match=r"needs nothing_of_that_name: pip install 'regard\[export\]'"):
        convert(run.folder, tmp_path / "out", to="onnx", device="cpu")


def test_convert_command(make_run, tmp_path):
    run = make_run(tmp_path / "run", *FOR_CTRANSLATE2["as published"])
    asked = ["convert", str(run.folder), str(tmp_path / "out"), "--to", "ctranslate2", "--verify", "--json"]
    found = CliRunner().invoke(app, asked)
    told = json.loads(found.stdout)
    assert found.exit_code == 0 and told["passed"] and told["states"] is None and told["measured"] == "log-probabilities"
    with pytest.raises(UserError, match="--to pickle: should be hf, ctranslate2, onnx"):
        convert(run.folder, tmp_path / "other", to="pickle")
    with pytest.raises(UserError, match="already exists"):
        convert(run.folder, tmp_path / "out", to="ctranslate2")
