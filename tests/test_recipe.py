"""Recipes: validation, error messages, overrides, presets, and the shipped recipes."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import UserError
from regard.recipe import PRESETS, Recipe
from regard.tasks import build_recipe, parse_recipe, read_recipe

ROOT = Path(__file__).parent.parent
WORLD = "[data.world]\n"


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem)
def test_shipped_recipe_is_valid_and_starts_with_a_comment(path):
    recipe = read_recipe(path)
    assert parse_recipe(recipe.to_toml()) == recipe, "resolved settings are a recipe again"
    assert path.read_text().startswith("#")


@pytest.mark.parametrize(
    "text, overrides, message",
    [
        (WORLD + "[model]\nhead = 3", [], r"no setting 'head' in model; did you mean 'heads'\?"),
        (WORLD, ["train.optimizer.lr=1"], r"no setting 'lr' in train.optimizer; there are: kind, learning_rate"),
        (WORLD, ["modle.width=8"], r"no setting 'modle'; did you mean 'model'\?"),
        (
            WORLD + "[model]\nwidth = 100\nheads = 8",
            [],
            r"width 100 is not divisible by heads 8: use 10 heads, or set model.key_width",
        ),
        (
            WORLD + "[model]\npreset = 'smal'",
            [],
            r"model.preset = 'smal': input should be 'tiny', 'small', 'base', 'big', 't5-tiny'",
        ),
        (WORLD, ["model.kind=banana"], r"model.kind = 'banana': should be transformer, recurrent or universal"),
        (WORLD, ["model.kind=recurrent", "model.heads=2"], r"no setting 'heads' in model; there are: kind, cell"),
        (WORLD, ["train.steps=many"], r"train.steps = 'many': input should be a valid integer"),
        (WORLD, ["train.steps=0"], r"train.steps = 0: input should be greater than or equal to 1"),
        (WORLD, ["train.regularize.dropout=nan"], r"train.regularize.dropout = nan: input should be a finite number"),
        (WORLD, ["task=masked", "model.kind=transformer", "model.convolution=4"], r"model.convolution = 4: use an odd number"),
        (
            WORLD,
            ["task=masked", "model.kind=transformer", "model.convolution=3", "data.pack=true"],
            r"would see from one text into",
        ),
        (WORLD, ["train.steps"], r"is not of the form section.setting=value"),
        (WORLD, ["seed.x=1"], r"seed"),
        ("", [], r"setting data is missing"),
        ("[data]\ntrain = ['a', 'b']", [], r"no validation set"),
        ("[data]\ntrain = ['a', 'b']\nheld_out = 5\n[data.world]", [], r"either data.train \(files\) or data.world"),
        ("data = [", [], r"is not valid TOML"),
        ("data = 3", [], r"data = 3"),
        (WORLD + "[tokens]\njoint = false", [], r"model.tie = 'all' needs one vocabulary"),
        (
            WORLD + "[tokens]\nkind = 'unigram'\n[train.regularize]\nbpe_dropout = 0.1",
            [],
            r"needs tokens.kind = 'bpe', not 'unigram'",
        ),
        (
            WORLD,
            ["task=language", "model.kind=transformer", "train.regularize.weight_dropout=0.5"],
            r"train.regularize.weight_dropout: a model of kind 'transformer' does not have it; leave it out, or set model.kind",
        ),
        (WORLD, ["train.regularize.variational_dropout=true"], r"no setting 'variational_dropout' in train.regularize"),
    ],
)
def test_invalid_recipe_names_the_setting_value_and_cure(text, overrides, message):
    with pytest.raises(UserError, match=message) as caught:
        parse_recipe(text, overrides, name="r.toml")
    assert "\n" not in str(caught.value)


def test_preset_fields_can_be_overridden():
    recipe = parse_recipe(WORLD + "[model]\npreset = 'base'\nheads = 16")
    assert (recipe.model.width, recipe.model.heads) == (PRESETS["base"]["width"], 16)


def test_overrides_are_parsed_as_toml_or_plain_strings():
    recipe = parse_recipe(WORLD, ["train.steps=7", "data.origin=my own", "model.norm_first=true", "model.preset=tiny"])
    assert (recipe.train.steps, recipe.data.origin, recipe.model.norm_first, recipe.model.width) == (7, "my own", True, 128)


def test_recipe_digest_ignores_data_root():
    one = build_recipe({"data": {"root": "a", "train": ["x", "y"], "held_out": 3}})
    assert one.digest() == build_recipe({"data": {"root": "b", "train": ["x", "y"], "held_out": 3}}).digest()
    assert one.digest() != build_recipe({"data": {"root": "a", "train": ["x", "y"], "held_out": 4}}).digest()


def test_recipe_settings_are_frozen():
    with pytest.raises(ValueError):
        parse_recipe(WORLD).train.steps = 3


NAMES = st.sampled_from([*Recipe.model_fields, "kind", "x"])


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    )
)
def test_arbitrary_recipe_is_accepted_or_a_one_line_user_error(settings):
    try:
        build_recipe(settings if isinstance(settings, dict) else {"data": settings})
    except UserError as error:
        assert "\n" not in str(error)


def test_missing_recipe_and_folder_are_refused(tmp_path):
    for path, message in [(tmp_path / "no.toml", "no recipe at"), (tmp_path, "is a folder")]:
        with pytest.raises(UserError, match=message):
            read_recipe(path)


def test_recipe_to_toml_is_valid_toml():
    assert tomllib.loads(parse_recipe(WORLD).to_toml())["data"]["world"]["level"] == 1


def test_initial_weights_come_from_one_model_or_several_and_are_written_as_they_were_given():
    none, one = parse_recipe("[data.world]"), parse_recipe('[data.world]\n[train]\ninit_from = "a"')
    several = parse_recipe('[data.world]\n[[train.init_from]]\nrun = "a"\n[[train.init_from]]\nrun = "b"\ntokenizer = false')
    assert [[source.run for source in recipe.train.init_from] for recipe in (none, one, several)] == [[], ["a"], ["a", "b"]]
    assert "init_from" not in none.to_toml() and "[train.init_from]" in one.to_toml()
    for recipe in (none, one, several):
        again = parse_recipe(recipe.to_toml())
        assert again == recipe and again.digest() == recipe.digest()
    with pytest.raises(UserError, match=r"no setting 'intoo' in train.init_from; did you mean 'into'\?"):
        parse_recipe('[data.world]\n[[train.init_from]]\nrun = "a"\n[[train.init_from]]\nrun = "b"\nintoo = "c"')
    with pytest.raises(UserError, match=r"train.lora adapts the weights of another model"):
        parse_recipe(several.to_toml(), ["train.lora.rank=4"])
