"""Length generalisation: the study and its report, exact matches, and the halting steps of a Universal Transformer."""

import json
import statistics
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import regard
from regard.errors import UserError
from regard.models.transformer import Transformer
from regard.models.universal import UniversalTransformer
from regard.recipe import TransformerModel, UniversalModel
from regard.run.card import card
from regard.run.evaluate import compare_runs, evaluate
from regard.run.train import train
from regard.show.figures.halting_steps import HaltingColumn, halting_figure, halting_matrix, halting_text
from regard.show.forward_pass.halting import count_halting_steps, halting_steps_of_examples, mean_at_positions, show_halting_steps
from regard.studies.ladder import run_ladder
from regard.studies.lengths import SIZE_TOLERANCE, match_parameters, run_length_study
from regard.studies.report import count_parameters
from regard.tasks.translate import TranslateRun, exact_match_scores
from regard.tokens.special_tokens import BOS, EOS

SETTINGS = {
    "data": {"world": {"kind": "addition", "number": 200, "held_out": 20, "longest": 3, "tests": [3, 5]}},
    "tokens": {"kind": "characters"},
    "model": {
        "encoder_layers": 3,
        "decoder_layers": 3,
        "width": 16,
        "heads": 2,
        "feed_forward": 32,
        "max_length": 24,
        "positions": {"random_offset": 9},
    },
    "train": {
        "steps": 4,
        "tokens_per_batch": 512,
        "evaluate_every": 2,
        "save_every": 4,
        "evaluate_sentences": 5,
        "regularize": {"dropout": 0.0},
    },
    "decode": {"beam": 1},
}


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    out = tmp_path_factory.mktemp("ladder")
    run_length_study(SETTINGS, out, device="cpu")
    return out


def test_report_has_both_models_on_every_length(ladder):
    rows = json.loads((ladder / "ladder.json").read_text())
    assert [row["name"] for row in rows] == ["Transformer", "Universal Transformer"]
    for row in rows:
        assert list(row["scores"]) == ["length 3", "length 5"]
        for scores in row["scores"].values():
            assert set(scores) == {"exact", "characters", "perplexity"}, "BLEU does not apply to digits"
            assert all(score["low"] <= score["score"] <= score["high"] for score in scores.values())
    assert set(rows[1]["p_values"]) == set(rows[1]["steps"]) == {"length 3", "length 5"} and not rows[0]["steps"]
    assert (
        abs(rows[0]["parameters"] / rows[1]["parameters"] - 1) <= SIZE_TOLERANCE
        and rows[0]["feed_forward"] < rows[1]["feed_forward"]
    )
    text = (ladder / "ladder.html").read_text()
    assert text.count("<svg") == 3 and all(f"{row['parameters']:,}" in text for row in rows)
    assert "5 (longer than trained)" in text and "3 (longer than trained)" not in text
    assert "longest trained" in (ladder / "figures" / "lengths.svg").read_text()


def test_models_differ_only_in_kind_and_feed_forward_width(ladder):
    plain, universal = (regard.load(ladder / name, device="cpu") for name in ("transformer", "universal-transformer"))
    mine, theirs = plain.recipe.model.model_dump(), universal.recipe.model.model_dump()
    assert {key for key in mine if mine[key] != theirs[key]} == {"kind", "feed_forward"}
    assert plain.recipe.train == universal.recipe.train and plain.recipe.data == universal.recipe.data
    assert plain.tokenizers[0].to_json() == universal.tokenizers[0].to_json()


@given(
    st.integers(1, 6),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 200),
    st.sampled_from(["relu", "swiglu"]),
    st.sampled_from(["all", "target", "none"]),
    st.sampled_from(["sinusoidal", "learned"]),
)
def test_match_parameters_gives_the_same_size(encoder, decoder, heads, inner, activation, tie, positions):
    plain = TransformerModel(
        encoder_layers=encoder,
        decoder_layers=decoder,
        width=8 * heads,
        heads=heads,
        feed_forward=inner,
        activation=activation,
        tie=tie,
        max_length=16,
        positions={"kind": positions, "random_offset": 3},
    )
    run = SimpleNamespace(
        recipe=SimpleNamespace(model=plain),
        model=Transformer(plain, 15, 17),
        tokenizers=[SimpleNamespace(size=15), SimpleNamespace(size=17)],
    )
    found = UniversalModel.model_validate(match_parameters(run))
    sizes = [count_parameters(run.model), count_parameters(UniversalTransformer(found, 15, 17))]
    assert abs(sizes[1] / sizes[0] - 1) <= SIZE_TOLERANCE
    assert (found.encoder_layers, found.decoder_layers, found.width, found.heads) == (encoder, decoder, 8 * heads, heads)


def test_invalid_recipes_raise_an_error(ladder, tiny_settings, tmp_path):
    with pytest.raises(UserError, match="--lengths needs an algorithm"):
        run_length_study(tiny_settings, tmp_path)
    with pytest.raises(UserError, match=r"model.kind = 'recurrent': a ladder starts from the recipe of a Transformer"):
        run_length_study({**SETTINGS, "model": {"kind": "recurrent"}}, tmp_path)
    for ablate in (False, True):
        with pytest.raises(UserError, match=r"data.world.kind = 'addition' has no sentences .* add --lengths"):
            run_ladder(SETTINGS, tmp_path, ablate=ablate)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "outputs, targets, exact, characters",
    [
        (["12", "345"], ["12", "345"], 100, 100),
        (["12", "345"], ["12", "346"], 50, 80),
        (["1", ""], ["12", "34"], 0, 25),
        (["123"], ["12"], 0, 200 / 3),
        (["21"], ["12"], 0, 0),
    ],
)
def test_exact_match_and_character_accuracy(outputs, targets, exact, characters):
    scores = exact_match_scores(outputs, targets)
    assert scores["exact"].score == pytest.approx(exact) and scores["characters"].score == pytest.approx(characters)


def test_algorithm_run_is_loaded_scored_and_compared(ladder):
    run = regard.load(ladder / "transformer", device="cpu")
    assert isinstance(run, TranslateRun) and "the embedded addition world, lengths 1 to 3, 200 examples" in card(run)
    log = [json.loads(line) for line in (run.folder / "log.jsonl").read_text().splitlines()]
    assert all(0 <= record["valid_accuracy"] <= 100 for record in log if "valid_loss" in record)
    assert [result.name for result in evaluate(run, save=False)] == ["length 3", "length 5"]
    for rows in compare_runs([run, run]).values():
        assert [row["p_value"] for row in rows] == [None, 1.0]


# --- halting steps of each token ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def universal_run(ladder):
    return regard.load(ladder / "universal-transformer", device="cpu")


def test_halting_steps_are_those_of_decoding(universal_run):
    """The answer is decoded again token by token, reading the steps each time."""
    text, model = "12+345", universal_run.model
    said, (read, spoken) = count_halting_steps(universal_run, text)
    assert said == universal_run._best([text])[0].text
    assert read.tokens == [*text, "</s>"] and spoken.tokens == [*said, "</s>"]
    assert read.most == spoken.most == 3 and {*read.steps, *spoken.steps} <= {1, 2, 3}
    source, answer = (torch.tensor(universal_run.tokenizers[0].encode([words])) for words in (text, said))
    state, taken = model.start((torch.cat([source, torch.tensor([[EOS]])], 1), torch.tensor([7]))), []
    assert model.encoder.steps[0].tolist() == read.steps
    for token in (BOS, *answer[0].tolist()):
        _, state = model.step(torch.tensor([[token]]), state)
        taken += model.decoder.steps[0].tolist()
    assert taken == spoken.steps


def test_halting_steps_of_examples_are_those_of_single_sentences(universal_run):
    """Computed one sentence at a time, without padding."""
    pairs = universal_run.data.valid
    steps = ([], [])
    for source, target in zip(*map(universal_run.tokenizers[0].encode, pairs.texts())):
        universal_run.model(torch.tensor([[*source, EOS]]), torch.tensor([len(source) + 1]), torch.tensor([[BOS, *target]]))
        steps[0].append(universal_run.model.encoder.steps[0].tolist())
        steps[1].append(universal_run.model.decoder.steps[0].tolist())
    assert len({len(target) for target in pairs.target}) > 1 and len({len(source) for source in pairs.source}) > 1
    assert halting_steps_of_examples(universal_run, pairs) == steps


def test_mean_at_positions_is_over_the_rows_that_are_long_enough():
    assert mean_at_positions([[1, 2, 3], [3], [2, 4]]) == [2, 3, 3]


def test_steps_by_carry_are_means_over_the_digits_of_the_sums(ladder, universal_run):
    """A digit as the sum of the digits below it would have it, without the rule of carries."""
    found = json.loads((ladder / "ladder.json").read_text())[1]["steps"]["length 5"]["carries"]
    pairs, taken = universal_run.data.tests["length 5"], {}
    for source, target, steps in zip(pairs.source, pairs.target, halting_steps_of_examples(universal_run, pairs).target):
        a, b = map(int, source.split("+"))
        for place in range(5):
            below, here = 10**place, (a // 10**place % 10) + (b // 10**place % 10)
            carry = a % below + b % below >= below
            kind = "carry through 9" if carry and here == 9 else "carry" if carry else "no carry"
            taken.setdefault(kind, []).append(steps[len(target) - 1 - place])
    assert found == pytest.approx({kind: statistics.mean(some) for kind, some in taken.items()}) and len(found) > 1
    assert "Steps of the digits of a sum" in (ladder / "ladder.html").read_text()


def test_halting_matrix_shows_the_mean_at_each_position_of_each_length(ladder):
    figure = halting_matrix({"length 1": [1.04, 2.5], "length 2": [3.0]}, 3, title="steps")
    assert [text.get_text() for text in figure.axes[0].texts] == ["1.0", "2.5", "3.0"]
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == ["length 1", "length 2"]
    steps = json.loads((ladder / "ladder.json").read_text())[1]["steps"]
    for side in ("input", "output"):
        assert f">steps at each position of the {side}<" in (ladder / "figures" / f"steps-{side}.svg").read_text()
    assert len(steps["length 5"]["source_positions"]) == 5 + 1 + 5 + 1, "two operands, a sign, the end token"


@pytest.mark.parametrize("bias, steps", [(30.0, 1), (-30.0, 3)])
def test_immediate_halting_takes_one_step_and_no_halting_takes_all(universal_run, bias, steps):
    saved = {name: tensor.clone() for name, tensor in universal_run.model.state_dict().items()}
    for stack in (universal_run.model.encoder, universal_run.model.decoder):
        stack.halt.weight.data.zero_()
        stack.halt.bias.data.fill_(bias)
    _, sides = count_halting_steps(universal_run, "1+2")
    universal_run.model.load_state_dict(saved)
    assert all(set(side.steps) == {steps} for side in sides)


def test_halting_steps_are_shown_in_terminal_and_figure(universal_run, tmp_path):
    figure = show_halting_steps(universal_run, "12+345")
    text = figure.text()
    figure.save(tmp_path / "a.svg")
    _, sides = count_halting_steps(universal_run, "12+345")
    rows = [line.split() for line in text.splitlines() if "●" in line]
    assert [(row[0], int(row[-1]), row[1].count("●")) for row in rows] == [
        (token, steps, steps) for side in sides for token, steps in zip(side.tokens, side.steps)
    ]
    svg = (tmp_path / "a.svg").read_text()
    assert all(f">{token}<" in svg for token in ("1", "+", "5", "&lt;/s&gt;", "source", "output"))


@settings(max_examples=10)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.text(max_size=12))
def test_halting_figure_accepts_any_tokens(steps, word):
    side = HaltingColumn("read", [word] * len(steps), steps, 9)
    figure = halting_figure([side, side._replace(name="output")], title="steps of each token")
    taken, left = figure.axes[0].collections
    assert len(taken.get_offsets()) == sum(steps) and len(left.get_offsets()) == 9 * len(steps) - sum(steps)
    assert len(halting_text([side]).split("\n")) == 1 + len(steps)


def test_model_without_halting_raises_an_error(ladder, tmp_path):
    with pytest.raises(
        UserError, match=r"model.kind = 'transformer' has no halting steps.* --halting is for model.kind = 'universal'"
    ):
        show_halting_steps(regard.load(ladder / "transformer", device="cpu"), "1+2")
    never = {**SETTINGS, "model": {**SETTINGS["model"], "kind": "universal", "halting": "none"}}
    with pytest.raises(UserError, match=r"every token takes all 3 steps \(model.halting = 'none'\)"):
        show_halting_steps(train(never, tmp_path / "run", device="cpu"), "1+2")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["show", "RUN", "1+2", "--halting", "--terminal", "--heads"], "not of heads: leave out --view"),
        (["show", "RUN", "1+2", "--halting"], "no output: add --out"),
        (["show", "RUN", "", "--halting", "--terminal"], "nothing to show in an empty sentence"),
        (["ladder", "RUN/recipe.toml", "--lengths", "--ablate"], "two different studies"),
    ],
)
def test_invalid_options_print_one_line(ladder, monkeypatch, capsys, arguments, message):
    from regard import cli

    folder = str(ladder / "universal-transformer")
    monkeypatch.setattr("sys.argv", ["regard", *(argument.replace("RUN", folder) for argument in arguments)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    err = capsys.readouterr().err
    assert end.value.code == 2 and message in err and len(err.splitlines()) == 1
