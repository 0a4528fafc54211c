"""A run resumes with the data and settings of its checkpoint, or says what differs."""

import json
import shutil
import tomllib

import pytest
import tomli_w

from regard.corpus.examples import LabelledTexts, SentencePairs, TextLines
from regard.corpus.fingerprint import fingerprint
from regard.errors import UserError
from regard.run.card import card, escape
from regard.run.train import train

SETTINGS = {
    "task": "translate",
    "data": {
        "train": ["a.en", "a.de"],
        "valid": ["v.en", "v.de"],
    },
    "tokens": {"size": 100},
    "model": {"kind": "transformer", "encoder_layers": 1, "decoder_layers": 1, "width": 16, "heads": 4, "feed_forward": 32},
    "train": {"steps": 4, "tokens_per_batch": 64, "evaluate_every": 4, "save_every": 2, "log_every": 2},
}
WORDS = ["one two", "three four five", "six", "seven eight", "nine ten one"]


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory):
    """A run of four steps, of which the last two are taken away, with its data beside it."""
    folder = tmp_path_factory.mktemp("half")
    for name in ("a.en", "a.de", "v.en", "v.de"):
        (folder / name).write_text("\n".join(f"{line} {name[-1]}" for line in WORDS * (4 if name[0] == "a" else 1)) + "\n")
    train({**SETTINGS, "data": {**SETTINGS["data"], "root": str(folder)}}, folder / "run", device="cpu")
    shutil.rmtree(folder / "run" / "checkpoints" / "step-00000004")
    (folder / "run" / "model.safetensors").unlink()
    return folder


@pytest.fixture
def folder(half_trained, tmp_path):
    """A copy of the half-trained run: data elsewhere is no change."""
    shutil.copytree(half_trained, tmp_path / "half")
    edit(tmp_path / "half", "data", "root", str(tmp_path / "half"))
    return tmp_path / "half"


def edit(folder, *path_and_value):
    """Edit a setting in the recipe of the run."""
    *sections, name, value = path_and_value
    path = folder / "run" / "recipe.toml"
    recipe = tomllib.loads(path.read_text())
    section = recipe
    for key in sections:
        section = section.setdefault(key, {})
    section[name] = value
    path.write_text(tomli_w.dumps(recipe))


def resume(folder, **options):
    return train(folder / "run", resume=True, device="cpu", **options)


def reverse(path):
    path.write_text("\n".join(reversed(path.read_text().splitlines())) + "\n")


DATA_CHANGES = {
    "reversed": lambda folder: [reverse(folder / name) for name in ("a.en", "a.de")],
    "misaligned": lambda folder: reverse(folder / "a.de"),
    "truncated": lambda folder: [
        (folder / name).write_text("\n".join((folder / name).read_text().splitlines()[:-3])) for name in ("a.en", "a.de")
    ],
    "one character": lambda folder: (folder / "a.en").write_text((folder / "a.en").read_text().replace("six", "sax", 1)),
    "validation replaced": lambda folder: [
        shutil.copyfile(folder / "a.en", folder / "v.en"),
        shutil.copyfile(folder / "a.de", folder / "v.de"),
    ],
}


@pytest.mark.parametrize("change", DATA_CHANGES)
def test_resume_refuses_changed_data_and_names_the_set(folder, change):
    DATA_CHANGES[change](folder)
    with pytest.raises(
        UserError, match=r"changed since it was written: the (training|validation) data .*--accept-changes"
    ) as error:
        resume(folder)
    assert ("validation" in str(error.value)) == (change == "validation replaced")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "heads"), 2),
        (("model", "activation"), "gelu"),
        (("model", "positions"), {"kind": "rotary"}),
        (("train", "optimizer", "kind"), "adam"),
        (("train", "regularize", "dropout"), 0.5),
        (("seed",), 2),
        (("data", "reverse"), True),
        (("train", "steps"), 6),
        (("decode", "beam"), 2),
    ],
)
def test_resume_refuses_an_edited_setting_by_name(folder, path, value):
    edit(folder, *path, value)
    before = (folder / "run" / "recipe.toml").read_bytes()
    with pytest.raises(UserError, match=rf"changed since it was written: {'.'.join(path)}.* was .* and is .*--accept-changes"):
        resume(folder)
    assert (folder / "run" / "recipe.toml").read_bytes() == before


def test_resume_refuses_another_tokenizer(folder):
    path = folder / "run" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UserError, match=r"changed since it was written: tokenizer\.json"):
        resume(folder)


def test_an_unchanged_run_resumes_without_a_word_about_changes(folder):
    run = resume(folder)
    assert "accepted_change" not in (folder / "run" / "log.jsonl").read_text() and "changed while training" not in card(run)


def test_accepted_changes_are_in_the_log_and_the_card_and_the_next_checkpoint(folder):
    DATA_CHANGES["reversed"](folder)
    edit(folder, "model", "heads", 2)
    run = resume(folder, accept_changes=True)
    records = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    changes = [record["change"] for record in records if record.get("event") == "accepted_change"]
    assert any("model.heads was 4 and is 2" in change for change in changes) and any("training data" in c for c in changes)
    assert "changed while training" in card(run) and "model.heads was 4 and is 2" in card(run)
    (folder / "run" / "model.safetensors").unlink()
    resume(folder)  # the last checkpoint was written with the new data and settings


def test_set_accepts_its_own_change_of_training_but_not_of_the_model(folder):
    with pytest.raises(UserError, match=r"model\.heads was 4 and is 2"):
        resume(folder, overrides=["model.heads=2"])
    assert "heads = 4" in (folder / "run" / "recipe.toml").read_text(), "a refused override must not stay in the recipe"
    run = resume(folder, overrides=["train.steps=6"])
    assert "train.steps was 4 and is 6" in card(run)


def test_accept_changes_is_about_resuming(tmp_path):
    with pytest.raises(UserError, match="--accept-changes is about a run's checkpoints"):
        train({"task": "translate", "data": {"world": {"kind": "bilingual"}}}, tmp_path / "run", accept_changes=True)


def test_fingerprint_depends_on_content_and_order_but_not_on_names():
    one = fingerprint(SentencePairs(["a", "b"], ["c", "d"], name="x", lines=[1, 2]))
    assert one == fingerprint(SentencePairs(["a", "b"], ["c", "d"], name="y", lines=[3, 4]))
    others = [
        SentencePairs(["b", "a"], ["d", "c"]),
        SentencePairs(["a", "b"], ["d", "c"]),
        SentencePairs(["a", "bc"], ["", "d"]),
        SentencePairs(["c", "d"], ["a", "b"]),
        LabelledTexts(["a", "b"], ["c", "d"]),
        TextLines(["a", "b"]),
        TextLines(["a", "b"], lines=[1, 2]),
        TextLines(["a", "b"], lines=[1, 3]),
    ]
    found = [fingerprint(other) for other in others]
    assert one not in found
    assert found[-2] != found[-1], "an empty line between two lines ends a document"
    assert len(set(found[:6])) == 6


def test_names_of_unknown_origin_are_escaped_in_the_card():
    assert escape("a|b\n# c `d` <img src=x>") == r"a\|b \# c \`d\` &lt;img src=x>"
