"""A record survives its file, is read without torch, and no broken file does more than say so in one line."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from torch import Tensor

from regard.attention.lazy_maps import REDUCTIONS
from regard.attention.record_file import Record
from regard.attention.watch import watch
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.recipe import TransformerModel

TOKENS = {"source": [["a", "dog", "sleeps", "</s>"], ["ein", "</s>"]], "target": [["<s>", "ein", "Hund"], ["<s>", "𝕙", ""]]}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Transformer(TransformerModel(preset="tiny", width=16, heads=2, feed_forward=16), 20, 20).eval()


def seen_by(model, **options):
    inputs = {
        "source": torch.tensor([[4, 5, 6, 3], [7, 3, 0, 0]]),
        "lengths": torch.tensor([4, 2]),
        "target": torch.tensor([[1, 8, 9], [1, 5, 6]]),
    }
    with torch.no_grad(), watch(model, **options) as seen:
        model(**inputs)
    return seen, inputs


@pytest.mark.parametrize(
    "options",
    [{}, {"heads": [1]}, {"rows": [0, -1]}, {"budget": 200}, *({"budget": 700, "keep": keep} for keep in REDUCTIONS)],
    ids=str,
)
def test_what_is_written_is_read(model, tmp_path, options):
    seen, inputs = seen_by(model, **options)
    made = seen.to_record(TOKENS, model=model, inputs=inputs)
    made.write(tmp_path / "a.attn")
    read = Record.read(tmp_path / "a.attn")
    assert (read.tokens, read.model, read.inputs) == (made.tokens, made.model, made.inputs) and list(read.modules) == seen.names()
    for name, place in read.modules.items():
        np.testing.assert_array_equal(place.weights(), made.modules[name].weights())
        assert place.dropped == seen.dropped.get(name, "") == made.modules[name].dropped
        assert place.heads == options.get("heads", [0, 1]) and place.layer == int(name.split(".")[2])
        if not place.dropped:
            np.testing.assert_array_equal(place.weights(), seen[name].numpy())
    cross = read.modules["decoder.blocks.1.cross_attention"]
    assert (cross.kind, cross.queries, cross.keys) == ("cross", "target", "source")
    assert [path.name for path in tmp_path.iterdir()] == ["a.attn"]


def test_a_bfloat16_record_is_written_exactly(model, tmp_path):
    seen, _ = seen_by(Transformer(model.settings, 20, 20).bfloat16())
    seen.to_record().write(tmp_path / "a.attn")
    read = Record.read(tmp_path / "a.attn").modules
    assert all(np.array_equal(read[name].weights(), seen[name].float().numpy()) for name in seen.names())


def test_hashes_tell_models_and_inputs_apart(model):
    seen, inputs = seen_by(model)
    torch.manual_seed(1)
    other = Transformer(model.settings, 20, 20)
    changed = inputs | {"source": inputs["source"] + 1}
    one, same = (seen.to_record(model=model, inputs=inputs) for _ in range(2))
    two = seen.to_record(model=other, inputs=changed)
    assert (one.model, one.inputs) == (same.model, same.inputs) and one.model != two.model and one.inputs != two.inputs


def test_it_is_read_without_torch(model, tmp_path):
    seen_by(model, budget=3000, keep="top")[0].to_record(TOKENS).write(tmp_path / "a.attn")
    code = (
        "import sys; sys.modules['torch'] = None; from regard.attention.record_file import Record; "
        "print(sum(place.weights().shape[0] for place in Record.read(sys.argv[1]).modules.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.attn"], capture_output=True, text=True, check=False)
    assert done.stdout == "12\n", done.stderr


@settings(max_examples=150)
@given(st.data())
def test_a_broken_file_is_said_in_one_line(broken, data):
    """Cut, changed in any byte, or with any value of its header exchanged: a record, or one line."""
    path, whole = broken
    if data.draw(st.booleans()):
        content = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(content[: data.draw(st.sampled_from([len(content), *range(0, len(content), 97)]))]))
    else:
        path.write_bytes(whole)
        arrays, about = load_file(path), Record.read(path)
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["attn"]
        said = json.loads(header)
        at = said
        while isinstance(at, (dict, list)) and at:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
            if not isinstance(at[key], (dict, list)) or not at[key] or data.draw(st.booleans()):
                at[key] = data.draw(st.sampled_from([None, -1, 0, 10**30, 1.5, "x", [], {}, [[]], True, [1, 2], {"patches": 3}]))
                break
            at = at[key]
        save_file(arrays, path, metadata={"attn": json.dumps(said)})
        assert about.modules
    try:
        for place in Record.read(path).modules.values():
            assert (type(place.layer or 0), type(place.name), type(place.keys), type(place.dropped)) == (int, str, str, str)
            assert all(type(head) is int for head in place.heads) and sum(place.calls[0].shape) < 100
    except UserError as mistake:
        assert str(mistake).startswith(str(path)) and "\n" not in str(mistake)


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.attn"
    seen_by(model, budget=900, keep="top")[0].to_record(TOKENS).write(path)
    return path, path.read_bytes()


def test_other_files_and_other_versions_are_refused(model, tmp_path):
    path = tmp_path / "a.attn"
    with pytest.raises(UserError, match="no such file"):
        Record.read(path)
    save_file({"a": np.zeros(3)}, path)
    with pytest.raises(UserError, match="no record of attention"):
        Record.read(path)
    save_file({}, path, metadata={"attn": json.dumps({"version": 2})})
    with pytest.raises(UserError, match="version 2; this regard reads version 1"):
        Record.read(path)
    with pytest.raises(UserError, match="cannot write"):
        seen_by(model)[0].to_record().write(tmp_path / "no" / "a.attn")


@pytest.mark.parametrize(
    "wrong, problem",
    [
        (lambda arrays, said: arrays.update({"more": np.zeros(2)}), "no place names"),
        (lambda arrays, said: arrays.popitem(), "is missing"),
        (lambda arrays, said: next(arrays[name] for name in arrays if name.endswith("keys")).fill(99), "no places"),
        (lambda arrays, said: said["places"][0].update(heads=["a", "b"]), "not described"),
        (lambda arrays, said: said["places"][0].update(heads=[0]), "1 heads are named"),
        (lambda arrays, said: said["places"][0].update(layer="first"), "not described"),
        (lambda arrays, said: said["places"][0]["calls"][0].update(shape=[2, 2, 5, 4]), "should be"),
        (lambda arrays, said: said["places"][0]["calls"][0].update(kind="most"), "does not know"),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(broken, wrong, problem):
    path, whole = broken
    path.write_bytes(whole)
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    said = json.loads(json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["attn"])
    wrong(arrays, said)
    save_file(arrays, path, metadata={"attn": json.dumps(said)})
    with pytest.raises(UserError, match=problem):
        Record.read(path)


@pytest.mark.parametrize(
    "tokens, problem",
    [
        (TOKENS | {"source": [["a"] * 5, ["b"]]}, "5 in a row, and 4"),
        (TOKENS | {"source": [["a"]]}, "1 rows, and a batch of 2"),
        (TOKENS | {"target": [[1], [2]]}, "list of strings"),
        (TOKENS | {"source": {"patches": [2]}}, "patches should be"),
    ],
)
def test_tokens_that_do_not_fit_are_refused(model, tokens, problem):
    with pytest.raises(UserError, match=problem):
        seen_by(model)[0].to_record(tokens)


def test_transformers_attentions_come_in_and_bertviz_tuples_go_out():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16
    )
    bert = transformers.BertModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = bert(torch.tensor([[4, 5, 6]]), output_attentions=True).attentions
    made = Record.from_transformers(attentions, ["a", "dog", "sleeps"])
    assert list(made.modules) == ["blocks.0.self_attention", "blocks.1.self_attention"]
    assert made.tokens == {"text": [["a", "dog", "sleeps"]]}
    back = made.to_bertviz()
    assert all(isinstance(ours, Tensor) and torch.equal(ours, theirs) for ours, theirs in zip(back, attentions, strict=True))
    both = Record.from_transformers({"encoder": attentions, "decoder": attentions, "cross": attentions})
    assert len(both.to_bertviz("cross")) == 2 and both.modules["decoder.blocks.0.cross_attention"].keys == "source"
    for wrong, problem in (
        (None, "eager"),
        ((None, None), "eager"),
        ((attentions, attentions), "one call"),
        ({"up": attentions}, "'up'"),
    ):
        with pytest.raises(UserError, match=problem):
            Record.from_transformers(wrong)
    reduced = made.modules["blocks.0.self_attention"]
    entropy = replace(reduced.calls[0], kind="entropy", parts={"entropy": np.zeros((1, 4, 3), np.float32)})
    with pytest.raises(UserError, match="BertViz draws whole maps"):
        replace(made, modules={reduced.name: replace(reduced, calls=[entropy])}).to_bertviz()
