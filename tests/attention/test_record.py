"""Records: a file round trip is exact, reading needs no torch, and a broken file gives a one-line error."""

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
from regard.attention.record import Record, RecordedMap
from regard.attention.watch import watch
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.recipe import TransformerModel

TOKENS = {"source": [["a", "dog", "sleeps", "</s>"], ["ein", "</s>"]], "target": [["<s>", "ein", "Hund"], ["<s>", "𝕙", ""]]}


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return Transformer(TransformerModel(preset="tiny", width=16, heads=2, feed_forward=16), 20, 20).eval()


def record_tiny(model, **options):
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
def test_record_file_round_trip(model, tmp_path, options):
    seen, inputs = record_tiny(model, **options)
    record = seen.to_record(TOKENS, model=model, inputs=inputs)
    record.write(tmp_path / "a.attn")
    read = Record.read(tmp_path / "a.attn")
    assert (read.tokens, read.model, read.inputs) == (record.tokens, record.model, record.inputs) and list(
        read.modules
    ) == seen.names()
    for name, module in read.modules.items():
        np.testing.assert_array_equal(module.weights(), record.modules[name].weights())
        assert module.dropped == seen.dropped.get(name, "") == record.modules[name].dropped
        assert module.heads == options.get("heads", [0, 1]) and module.layer == int(name.split(".")[2])
        if not module.dropped:
            np.testing.assert_array_equal(module.weights(), seen[name].numpy())
    cross = read.modules["decoder.blocks.1.cross_attention"]
    assert (cross.kind, cross.queries, cross.keys) == ("cross", "target", "source")
    assert [path.name for path in tmp_path.iterdir()] == ["a.attn"]


def test_bfloat16_record_file_is_exact(model, tmp_path):
    seen, _ = record_tiny(Transformer(model.settings, 20, 20).bfloat16())
    seen.to_record().write(tmp_path / "a.attn")
    read = Record.read(tmp_path / "a.attn").modules
    assert all(np.array_equal(read[name].weights(), seen[name].float().numpy()) for name in seen.names())


def test_hashes_differ_between_models_and_inputs(model):
    seen, inputs = record_tiny(model)
    torch.manual_seed(1)
    other = Transformer(model.settings, 20, 20)
    changed = inputs | {"source": inputs["source"] + 1}
    one, same = (seen.to_record(model=model, inputs=inputs) for _ in range(2))
    two = seen.to_record(model=other, inputs=changed)
    assert (one.model, one.inputs) == (same.model, same.inputs) and one.model != two.model and one.inputs != two.inputs


def test_record_is_read_without_torch(model, tmp_path):
    record_tiny(model, budget=3000, keep="top")[0].to_record(TOKENS).write(tmp_path / "a.attn")
    code = (
        "import sys; sys.modules['torch'] = None; from regard.attention.record import Record; "
        "print(sum(module.weights().shape[0] for module in Record.read(sys.argv[1]).modules.values()))"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "a.attn"], capture_output=True, text=True, check=False)
    assert done.stdout == "12\n", done.stderr


@settings(max_examples=150)
@given(st.data())
def test_broken_file_gives_a_one_line_error(broken, data):
    """Truncated, changed in any byte, or with any value of its header replaced: a record, or a one-line error."""
    path, whole = broken
    if data.draw(st.booleans()):
        content = bytearray(whole)
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        path.write_bytes(bytes(content[: data.draw(st.sampled_from([len(content), *range(0, len(content), 97)]))]))
    else:
        path.write_bytes(whole)
        arrays, record = load_file(path), Record.read(path)
        header = json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["attn"]
        entries = node = json.loads(header)
        while isinstance(node, (dict, list)) and node:
            key = data.draw(st.sampled_from(sorted(node) if isinstance(node, dict) else range(len(node))))
            if not isinstance(node[key], (dict, list)) or not node[key] or data.draw(st.booleans()):
                node[key] = data.draw(
                    st.sampled_from([None, -1, 0, 10**30, 1.5, "x", [], {}, [[]], True, [1, 2], {"patches": 3}])
                )
                break
            node = node[key]
        save_file(arrays, path, metadata={"attn": json.dumps(entries)})
        assert record.modules
    try:
        for module in Record.read(path).modules.values():
            assert (type(module.layer or 0), type(module.name), type(module.keys), type(module.dropped)) == (int, str, str, str)
            assert all(type(head) is int for head in module.heads) and sum(module.calls[0].shape) < 100
    except UserError as error:
        assert str(error).startswith(str(path)) and "\n" not in str(error)


@pytest.fixture(scope="module")
def broken(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.attn"
    record_tiny(model, budget=900, keep="top")[0].to_record(TOKENS).write(path)
    return path, path.read_bytes()


def test_other_files_and_other_versions_are_rejected(model, tmp_path):
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
        record_tiny(model)[0].to_record().write(tmp_path / "no" / "a.attn")


@pytest.mark.parametrize(
    "wrong, problem",
    [
        (lambda arrays, header: arrays.update({"more": np.zeros(2)}), "tensors of no module"),
        (lambda arrays, header: arrays.popitem(), "is missing"),
        (lambda arrays, header: next(arrays[name] for name in arrays if name.endswith("keys")).fill(99), "no positions"),
        (lambda arrays, header: header["modules"][0].update(heads=["a", "b"]), "invalid module entry"),
        (lambda arrays, header: header["modules"][0].update(heads=[0]), "1 heads are named"),
        (lambda arrays, header: header["modules"][0].update(layer="first"), "invalid module entry"),
        (lambda arrays, header: header["modules"][0]["calls"][0].update(shape=[2, 2, 5, 4]), "should be"),
        (lambda arrays, header: header["modules"][0]["calls"][0].update(kind="most"), "unknown reduction"),
    ],
)
def test_inconsistent_record_is_rejected(broken, wrong, problem):
    path, whole = broken
    path.write_bytes(whole)
    arrays = {name: array.copy() for name, array in load_file(path).items()}
    header = json.loads(json.loads(whole[8 : 8 + int.from_bytes(whole[:8], "little")])["__metadata__"]["attn"])
    wrong(arrays, header)
    save_file(arrays, path, metadata={"attn": json.dumps(header)})
    with pytest.raises(UserError, match=problem):
        Record.read(path)


@pytest.mark.parametrize(
    "tokens, problem",
    [
        (TOKENS | {"source": [["a"] * 5, ["b"]]}, "5 in a row, and 4"),
        (TOKENS | {"source": [["a"]]}, "1 rows, and a batch of 2"),
        (TOKENS | {"target": [[1], [2]]}, "list of strings"),
        (TOKENS | {"source": {"patches": [2]}}, "patches should be"),
        (TOKENS | {"source": {"patches": [10**9, 10**9]}}, "patches .* positions at"),
    ],
)
def test_tokens_that_do_not_match_the_maps_are_rejected(model, tokens, problem):
    with pytest.raises(UserError, match=problem):
        record_tiny(model)[0].to_record(tokens)


def test_from_transformers_and_to_bertviz():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16
    )
    bert = transformers.BertModel._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        attentions = bert(torch.tensor([[4, 5, 6]]), output_attentions=True).attentions
    record = Record.from_transformers(attentions, ["a", "dog", "sleeps"])
    assert list(record.modules) == ["blocks.0.self_attention", "blocks.1.self_attention"]
    assert record.tokens == {"text": [["a", "dog", "sleeps"]]}
    back = record.to_bertviz()
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
    reduced = record.modules["blocks.0.self_attention"]
    entropy = replace(reduced.calls[0], kind="entropy", parts={"entropy": np.zeros((1, 4, 3), np.float32)})
    with pytest.raises(UserError, match="BertViz draws whole maps"):
        replace(record, modules={reduced.name: replace(reduced, calls=[entropy])}).to_bertviz()


def test_a_record_that_names_more_keys_than_memory_holds_is_not_seen_whole():
    parts = {"keys": np.zeros((1, 1, 1, 1), np.int32), "values": np.ones((1, 1, 1, 1), np.float32)}
    with pytest.raises(UserError, match="too large to be seen whole"):
        RecordedMap("top", (1, 1, 1, 10**12), parts, 1).dense()
