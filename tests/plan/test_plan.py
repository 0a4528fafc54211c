"""Plans: counts on the modules equal closed formulas, torch's FLOP counter, and published figures."""

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.plan import (
    PUBLISHED_COSTS,
    CostTable,
    DeviceSpeed,
    Plan,
    RunCost,
    flops_from_time,
    measure_device,
    plan,
    plan_block,
    render_text,
    run_costs,
)
from regard.plan.memory import activation_bytes
from regard.plan.planner import build_on_meta
from regard.plan.training_costs import NOTES
from regard.recipe import TransformerModel
from regard.tasks import build_recipe

RECIPES = sorted(Path(__file__).parents[2].joinpath("recipes").glob("wmt14-*.toml"))
WORLD = {"data": {"world": {}}}


def planned(what, overrides=(), **arguments) -> Plan:
    found = plan(what, overrides, **arguments)
    assert isinstance(found, Plan)
    return found


# one block


def test_lecture_block_has_10656_parameters():
    assert plan_block(width=32, heads=2, key_width=32, feed_forward=32).parameters == 10_656


def test_lecture_count_is_printed_beside_the_exact_one():
    block = plan("block")
    assert (block.lecture_macs_per_position, block.lecture_macs) == (614_400, 368_640_000)
    pairs, projections, feed_forward = 2 * (2 * 32) * 600, 4 * 32 * 64, 2 * 32 * 32
    assert block.total.macs == 600 * (pairs + projections + feed_forward)
    page = render_text(block)
    for figure in ("10,656", "614,400", "368,640,000", "87,040", "52,224,000"):
        assert figure in page
    for omitted in ("heads", "mixing", "projections", "feed-forward", "exponentials", "norms", "backward"):
        assert omitted in page.split("leaves out")[1]


# parameters

shapes = st.fixed_dictionaries(
    {
        "encoder_layers": st.integers(1, 3),
        "decoder_layers": st.integers(1, 3),
        "width": st.integers(1, 6).map(lambda n: 4 * n),
        "heads": st.sampled_from([2, 4]),
        "key_width": st.sampled_from([None, 2, 6]),
        "value_width": st.sampled_from([None, 3]),
        "key_value_heads": st.sampled_from([None, 1, 2]),
        "feed_forward": st.integers(1, 40),
        "activation": st.sampled_from(["relu", "gelu", "swiglu"]),
        "norm": st.sampled_from(["layer", "rms"]),
        "norm_first": st.booleans(),
        "tie": st.sampled_from(["all", "target", "none"]),
        "positions": st.sampled_from([{"kind": "sinusoidal"}, {"kind": "learned"}]),
    }
)


def formula(m: TransformerModel, source: int, target: int) -> int:
    """Return the number of parameters by formula."""
    K = m.key_width or m.width // m.heads
    J, G, D, F = m.value_width or K, m.key_value_heads or m.heads, m.width, m.feed_forward
    attention = (D + 1) * (m.heads * K + G * K + G * J) + (m.heads * J + 1) * D
    feed_forward = (D + 1) * F * (2 if m.activation == "swiglu" else 1) + (F + 1) * D
    norm = D if m.norm == "rms" else 2 * D
    encoder = m.encoder_layers * (attention + feed_forward + 2 * norm)
    decoder = m.decoder_layers * (2 * attention + feed_forward + 3 * norm)
    last = 2 * norm if m.norm_first else 0
    tables = {"all": source, "target": source + target, "none": source + 2 * target}[m.tie] * D
    places = 2 * (m.max_length + 1) * D if m.positions.kind == "learned" else 0
    return encoder + decoder + last + tables + places


@settings(deadline=None, max_examples=30)
@given(shape=shapes, source=st.integers(5, 50), target=st.integers(5, 50))
def test_counted_parameters_equal_the_closed_formula(shape, source, target):
    target = source if shape["tie"] == "all" else target
    recipe = build_recipe({**WORLD, "model": shape})
    assert planned(recipe, vocabulary=(source, target)).parameters == formula(recipe.model, source, target)


@pytest.mark.parametrize("preset, millions", [("base", 65), ("big", 213)])
def test_presets_have_the_published_size(preset, millions):
    assert planned(preset, vocabulary=37_000).parameters == pytest.approx(millions * 1e6, rel=0.04)


def test_every_parameter_is_in_one_component():
    found = planned("tiny", ["model.encoder_widths=[96, 64]", "model.norm_first=true", "model.positions.kind=relative"])
    model = Transformer(found.recipe.model, *found.vocabulary)
    assert sum(part.parameters for part in found.components) == sum(p.numel() for p in model.parameters())
    assert {part.location.kind for part in found.components if part.location.stack == "encoder"} == {
        "self-attention",
        "feed-forward",
        "norms",
        "residual projection",
        "positions",
    }


# FLOPs


@settings(deadline=None, max_examples=10)
@given(shape=shapes, source=st.integers(1, 9), target=st.integers(1, 9))
def test_forward_flops_equal_torch_flop_counter(shape, source, target):
    """Exactly: with the math kernel, torch counts the same matrix products; grouped keys are repeated before them."""
    found = planned(build_recipe({**WORLD, "model": shape}), vocabulary=20, source_length=source, target_length=target)
    model = Transformer(found.recipe.model, 20, 20).eval()
    ids = torch.ones(1, source, dtype=torch.long), torch.tensor([source]), torch.ones(1, target, dtype=torch.long)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(*ids)
    assert 2 * found.total.macs == counter.get_total_flops()


@pytest.mark.parametrize("preset", ["base", "gpt2", "vit-base"])
def test_forward_flops_of_presets_equal_torch_flop_counter_on_meta_tensors(preset):
    found = planned(preset)
    model = build_on_meta(found.recipe, found.vocabulary).eval()
    source, target = found.lengths
    with torch.device("meta"), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        tokens = torch.zeros(1, target, dtype=torch.long)
        if preset == "base":
            model(torch.zeros(1, source, dtype=torch.long), torch.tensor([source]), tokens)
        else:
            model(tokens if preset == "gpt2" else torch.zeros(1, 3, *found.recipe.data.height_width))
    assert 2 * found.total.macs == counter.get_total_flops()


def test_training_costs_three_forward_passes_per_position():
    found = planned("tiny", ["train.steps=10", "train.tokens_per_batch=300", "train.gradient_accumulation_steps=2"])
    assert found.flops == pytest.approx(10 * 600 * 3 * found.flops_per_token)
    assert planned("tiny", ["train.regularize.r_drop=1.0"]).flops == pytest.approx(2 * planned("tiny").flops)


def test_only_attention_grows_with_the_length():
    short, long = (planned("tiny", source_length=n, target_length=n) for n in (10, 20))
    layers, width = 2, 128
    more = (
        2 * 2 * width * 10 * (layers + 2 * layers)
    )  # scores and mixing, once in the encoder and twice in the decoder, ten more keys per query
    assert long.flops_per_token - short.flops_per_token == pytest.approx(more)


def test_rule_of_thumb_is_close_for_short_sentences():
    found = planned("base")
    assert found.flops == pytest.approx(found.rule_of_thumb, rel=0.02)


def test_published_costs():
    assert f"{flops_from_time(devices=8, sustained=9.5e12, hours=12):.1e}" == "3.3e+18"
    assert f"{flops_from_time(devices=8, sustained=9.5e12, hours=3.5 * 24):.1e}" == "2.3e+19"
    assert "3.3·10¹⁸" in render_text(planned("base")) and "2.3·10¹⁹" in render_text(planned("big"))
    assert planned("base", ["train.steps=7"]).published_flops is None


def test_fractions_of_the_published_cost_match_the_note():
    for preset, fraction in (("base", "29%"), ("big", "42%")):
        found = planned(preset)
        assert found.published_flops is not None
        assert f"{found.flops / found.published_flops:.0%}" == fraction and fraction in NOTES[1]


# memory and time


def test_memory_of_model_states_is_exact():
    found = planned("tiny", ["train.precision=fp32", "train.ema_decay=0.99"])
    memory = found.memory["fp32"]
    names = ("parameters", "gradients", "optimiser", "moving average")
    assert [memory[name] / found.parameters for name in names] == [4, 4, 8, 4]


def test_muon_has_one_moment_for_hidden_matrices():
    adam, muon = (planned("tiny", [f"train.optimizer.kind={kind}"]) for kind in ("adamw", "muon"))
    model = Transformer(adam.recipe.model, *adam.vocabulary)
    blocks = [*model.encoder.blocks, *model.decoder.blocks]
    hidden = sum(p.numel() for block in blocks for p in block.parameters() if p.dim() == 2)
    assert adam.memory["fp32"]["optimiser"] - muon.memory["fp32"]["optimiser"] == 4 * hidden


def bytes_saved_by_autograd(model: Transformer, source: int, target: int, bf16: bool) -> float:
    """Return the bytes per sentence pair that the forward pass saves, without weights and their copies."""
    sentences, vocabulary = 8, model.output.out_features
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    ids = (torch.randint(vocabulary, (sentences, length)) for length in (source, target))
    precision = torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), precision:
        model(next(ids), torch.full((sentences,), source), next(ids))
    copies = 2 * sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear)) if bf16 else 0
    return (sum(size for size, _ in kept.values()) - copies) / sentences


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"activation": "gelu", "norm_first": True},
        {"activation": "swiglu", "key_value_heads": 2},
        {"positions": {"kind": "alibi"}},
        {"encoder_layers": 1, "decoder_layers": 4},
    ],
)
def test_activation_bytes_are_within_4_percent_of_autograd(shape, bf16):
    model = Transformer(TransformerModel(preset="tiny", **shape), 50, 50)
    assert activation_bytes(model, 40, 30, bf16) == pytest.approx(bytes_saved_by_autograd(model, 40, 30, bf16), rel=0.04)


def test_time_is_flops_over_speed_and_utilisation():
    assert DeviceSpeed("a", 1e12, 0.5, "", count=4).seconds(1e13) == 5
    mine = measure_device(torch.device("cpu"), "fp32", seconds=0.05, size=128)
    assert 1e8 < mine.speed < 1e16 and "assumed" in mine.basis


# published table, recipes, runs


def test_published_table():
    rows = {row.name: row[1:] for row in PUBLISHED_COSTS}
    assert len(PUBLISHED_COSTS) == len(rows) == 10
    assert rows["ByteNet"] == ("23.75", None, None, None)
    assert rows["GNMT + RL ensemble"] == ("26.30", "41.16", 1.8e20, 1.1e21)
    assert rows["Deep-Att + PosUnk"] == (None, "39.2", None, 1.0e20)
    assert rows["Transformer big"] == ("28.4", "41.8", 2.3e19, 2.3e19)
    page = render_text(CostTable())
    assert "26.30" in page and "8.0·10²⁰" in page and "not comparable" in page
    assert json.loads(json.dumps(CostTable().to_json()))["published"][8]["bleu_de"] == 27.3


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_wmt14_recipes_match_the_paper(path):
    found = planned(path)
    recipe, big = found.recipe, "big" in path.stem
    assert recipe.tokens.size == (37_000 if "de" in path.stem.split("-") else 32_000)
    assert recipe.train.optimizer.learning_rate == pytest.approx((recipe.model.width * 4000) ** -0.5, rel=1e-6)
    assert recipe.train.regularize.dropout == (0.3 if path.stem == "wmt14-en-de-big" else 0.1)
    assert found.published_flops == flops_from_time(hours=84 if big else 12)
    assert "Not run here" in path.read_text(encoding="utf-8")


def test_all_four_wmt14_recipes_exist():
    expected = [f"wmt14-en-{language}-{size}" for language in ("de", "fr") for size in ("base", "big")]
    assert [path.stem for path in RECIPES] == expected


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "recipe.toml").write_text(build_recipe({**WORLD, "model": {"preset": "tiny"}, "train": {"steps": 500}}).to_toml())
    (folder / "config.json").write_text(json.dumps({"vocabularies": [600, 600]}))
    records = [
        {"event": "begin"},
        {"step": 20, "loss": 3.0, "tokens_per_second": 9},
        {"step": 40, "loss": 2.0},
        {"step": 60, "valid_loss": 2.0},
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 80, "lo')
    bleu = {"score": 31.25, "low": 30.0, "high": 32.5, "signature": "nrefs:1"}
    (folder / "scores.json").write_text(json.dumps({"test": {"bleu": bleu, "chrf": bleu}, "other": {"chrf": bleu}}))
    return folder


def test_run_costs_count_the_completed_steps(run):
    [row] = run_costs([run])
    assert row == RunCost("toy", "test", 31.25, 30.0, 32.5, "nrefs:1", 40, pytest.approx(40 * planned(run).flops_per_step))
    assert planned(run).vocabulary == (600, 600)
    page = render_text(CostTable([row]))
    assert "31.25" in page and "toy" in page and "27.3" in page


def test_unevaluated_run_has_a_row_without_bleu(run):
    (run / "scores.json").unlink()
    (run / "log.jsonl").unlink()
    [row] = run_costs([run])
    assert (row.bleu, row.steps, row.flops) == (None, 0, 0) and "not evaluated" in render_text(CostTable([row]))


@pytest.mark.parametrize(
    "file, content",
    [
        ("scores.json", "[1]"),
        ("scores.json", '{"test": {"bleu": {}}}'),
        ("config.json", "{}"),
        ("log.jsonl", "nonsense\n"),
        ("log.jsonl", '{"loss": 1}\n'),
        ("recipe.toml", "steps = "),
    ],
)
def test_damaged_run_files_are_named_in_the_error(run, file, content):
    (run / file).write_text(content)
    with pytest.raises(UserError, match=file.replace(".", r"\.")):
        run_costs([run])


def test_invalid_arguments_raise_an_error(tmp_path):
    with pytest.raises(UserError, match=r"not a run folder"):
        run_costs([tmp_path])
    with pytest.raises(UserError, match=r"presets: tiny, small, base, big"):
        plan("huge")
    with pytest.raises(UserError, match=r"no recipe at"):
        plan(tmp_path / "none.toml")
    with pytest.raises(UserError, match=r"did you mean 'heads'"):
        plan("base", ["model.head=3"])
    with pytest.raises(UserError, match=r"at least 1 token"):
        plan("tiny", source_length=0)
    with pytest.raises(UserError, match=r"model\.tie"):
        plan("tiny", vocabulary=(10, 20))
    with pytest.raises(UserError, match=r"heads = 0"):
        plan_block(heads=0)


@pytest.mark.parametrize("what", ["tiny", "block"])
def test_plans_render_as_json_and_text(what):
    found = plan(what)
    assert json.loads(json.dumps(found.to_json()))["parameters"] == found.parameters
    page = render_text(found, by_layer=True)
    assert f"{found.parameters:,}" in page and max(map(len, page.splitlines())) <= 100
