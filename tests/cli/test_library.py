"""The recipes and reference pages that come with the package."""

from typer.testing import CliRunner

from regard import tasks
from regard.cli import app


def invoke(*words: str):
    result = CliRunner().invoke(app, list(words))
    return result.output if result.exception is None else result.exception


def test_every_recipe_is_listed_with_its_summary_and_printed_as_it_is():
    listing = invoke("recipes")
    assert "multi30k-en-de" in listing and "shakespeare-gpt" in listing
    text = invoke("recipes", "multi30k-en-de")
    assert tasks.parse_recipe(text).task == "translate"
    assert "did you mean 'multi30k-en-de'" in str(invoke("recipes", "multi30k-ende"))
    assert "train.optimizer" in invoke("docs", "settings")
    assert "there are" in str(invoke("docs", "nothing"))
