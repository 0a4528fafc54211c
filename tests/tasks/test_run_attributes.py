"""The public attributes and methods of a run: its verbs and a few attributes, nothing else."""

import inspect
import json
import re

import pytest

import regard
from regard.errors import UserError
from regard.tasks import all_tasks, find_task, task_names
from regard.tasks.base import Run

ATTRIBUTES = {"data", "device", "folder", "model", "recipe", "task", "tokenizer", "tokenizers"}
"""Attributes that `Run.__init__` sets on every run."""
VERBS = {
    ("answer", "transformer"): {"answer", "embed"},
    ("caption", "lstm"): {"align", "caption", "embed"},
    ("classify", "transformer"): {"classify", "embed", "labels"},
    ("classify", "vit"): {"classify", "embed", "labels", "resize"},
    ("contrastive", "clip"): {"embed", "match", "resize", "similarity", "zero_shot"},
    ("encode", "transformer"): {"embed"},
    ("encode", "vit"): {"embed", "resize"},
    ("image-codes", "dvae"): {"decode", "encode"},
    ("language", "transformer"): {"embed", "generate", "stream"},
    ("language", "elmo"): {"embed", "generate", "stream"},
    ("masked", "transformer"): {"embed", "fill"},
    ("regress", "transformer"): {"classify", "embed"},
    ("span-corruption", "transformer"): {"embed", "fill"},
    ("tag", "transformer"): {"embed", "labels", "tag"},
    ("text-to-image", "dalle"): {"draw"},
    ("text-to-text", "transformer"): {"align", "classify", "embed", "translate", "use_engine", "use_languages"},
    ("translate", "transformer"): {"align", "embed", "translate", "use_engine", "use_languages"},
}


def public_names(run_class: type[Run]) -> set[str]:
    """Return the public names of a run of this class, set by methods, annotations or `Run.__init__`."""
    annotated = {name for base in run_class.__mro__ for name in getattr(base, "__annotations__", {})}
    return {name for name in {*dir(run_class), *annotated, *ATTRIBUTES} if not name.startswith("_")}


@pytest.mark.parametrize(("name", "kind"), VERBS)
def test_dir_of_a_run_shows_only_verbs_and_attributes(name, kind):
    assert public_names(find_task(name, kind).run) == {*VERBS[name, kind], *ATTRIBUTES, "evaluate", "explain", "show"}


def test_dir_of_a_loaded_run_shows_only_verbs_and_attributes(tiny_run):
    assert {name for name in dir(tiny_run) if not name.startswith("_")} == public_names(type(tiny_run))


def test_every_task_is_listed_and_its_verbs_are_methods():
    assert {name for name, _ in VERBS} == set(task_names(trainable=False))
    for task in all_tasks():
        assert set(task.verbs) <= public_names(task.run)
        assert all(callable(getattr(task.run, verb)) for verb in task.verbs)


def test_find_task_by_name_and_model_kind():
    for task in all_tasks():
        assert all(find_task(task.name, kind) is task for kind in task.models)


def test_repr_of_a_run_has_its_task_parameters_data_and_scores(tiny_run):
    number = sum(p.numel() for p in tiny_run.model.parameters())
    scores = json.loads((tiny_run.folder / "scores.json").read_text())["test"]
    for shown in (repr(tiny_run), tiny_run._repr_html_()):
        for part in ("translate", f"{number:,} parameters", "training 800 examples", f"chrf {scores['chrf']['score']:.4g}"):
            assert part in shown
    assert tiny_run._repr_html_().startswith("<table>") and "tensor(" not in repr(tiny_run)


def test_tokenizer_of_a_run_returns_the_ids_that_the_model_reads(tiny_run):
    text = tiny_run.data.valid.source[0]
    assert tiny_run.tokenizer(text) == tiny_run._inputs(text)["source"][0].tolist()
    assert tiny_run.tokenizer([text, ""]) == [tiny_run.tokenizer(text), tiny_run.tokenizer("")]


def test_evaluate_of_a_run_equals_its_saved_scores_and_prints_as_a_line(tiny_run):
    (result,) = tiny_run.evaluate()
    saved = json.loads((tiny_run.folder / "scores.json").read_text())["test"]
    assert {name: score.to_json()["score"] for name, score in result.scores.items()} == pytest.approx(
        {name: saved[name]["score"] for name in result.scores}, rel=1e-3
    )
    assert repr(result).startswith("test, 40 examples: bleu ") and "\n" not in repr(result)


def test_compare_takes_runs_and_folders(tiny_run):
    rows = regard.compare(tiny_run, str(tiny_run.folder))["test"]
    assert [row["p_value"] is None for row in rows if row["metric"] == rows[0]["metric"]] == [True, False]
    assert rows[0]["score"] == pytest.approx(next(r for r in rows[1:] if r["metric"] == rows[0]["metric"])["score"])
    with pytest.raises(UserError, match="at least two"):
        regard.compare(tiny_run)


def public_functions():
    """Yield the name and the function of everything public: in `regard`, and the verbs of every run."""
    for name in regard.__all__:
        value = getattr(regard, name)
        classes = [value] if inspect.isclass(value) else []
        if callable(value) and not classes:
            yield name, value
        for owner in classes:
            yield from ((f"{owner.__name__}.{key}", member) for key, member in vars(owner).items() if callable(member))
    for task in all_tasks():
        for owner in task.run.__mro__[:-1]:
            yield from ((f"{owner.__name__}.{key}", member) for key, member in vars(owner).items() if callable(member))


def test_no_public_signature_has_any():
    checked = 0
    for name, function in public_functions():
        if name.rpartition(".")[2].startswith("_") or inspect.isclass(function):
            continue
        signature = inspect.signature(function)
        types = [*(parameter.annotation for parameter in signature.parameters.values()), signature.return_annotation]
        assert not [one for one in types if re.search(r"\bAny\b", str(one))], f"{name}{signature}"
        checked += 1
    assert checked > 40
