"""The public attributes and methods of a run: its verbs and a few attributes, nothing else."""

import pytest

from regard.tasks import all_tasks, find_task, task_names
from regard.tasks.base import Run

ATTRIBUTES = {"data", "device", "folder", "model", "recipe", "task", "tokenizers"}
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
    ("text-to-text", "transformer"): {"align", "classify", "embed", "translate", "use_languages"},
    ("translate", "transformer"): {"align", "embed", "translate", "use_languages"},
}


def public_names(run_class: type[Run]) -> set[str]:
    """Return the public names of a run of this class, set by methods, annotations or `Run.__init__`."""
    annotated = {name for base in run_class.__mro__ for name in getattr(base, "__annotations__", {})}
    return {name for name in {*dir(run_class), *annotated, *ATTRIBUTES} if not name.startswith("_")}


@pytest.mark.parametrize(("name", "kind"), VERBS)
def test_dir_of_a_run_shows_only_verbs_and_attributes(name, kind):
    assert public_names(find_task(name, kind).run) == {*VERBS[name, kind], *ATTRIBUTES, "explain", "show"}


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
