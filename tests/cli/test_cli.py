"""The command line as scripts rely on it: exit statuses, one-line errors, JSON, stdin and stdout."""

import io
import json
import re
import signal
import subprocess
import sys
from select import select
from typing import get_origin

import pytest

from regard import cli
from regard.cli.options import read_batches
from regard.recipe.parse import FORMER_NAMES
from regard.recipe.settings import allowed_kinds, settings_in
from regard.tasks import all_tasks


@pytest.fixture
def regard(monkeypatch, capsys):
    """Run a command in this process; return its exit status, standard output and standard error."""

    def command(*arguments, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["regard", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        try:
            cli.main()
            status = 0
        except SystemExit as end:
            status = end.code or 0
        output = capsys.readouterr()
        return status, output.out, output.err

    return command


RECIPE = """
[data]
root = "{root}"
train = ["a.en", "a.de"]
valid = ["v.en", "v.de"]
[model]
preset = "tiny"
max_length = 32
[tokens]
size = 100
[train]
steps = 2
"""


@pytest.fixture
def recipe_folder(tmp_path):
    """A recipe with valid data files, which a test corrupts."""
    for name, text in {
        "a.en": "one two three\n" * 20,
        "a.de": "eins zwei drei\n" * 20,
        "v.en": "two\n",
        "v.de": "zwei\n",
    }.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "r.toml").write_text(RECIPE.format(root=tmp_path))
    return tmp_path


CORRUPTIONS = {
    "unequal": (lambda p: (p / "a.de").write_text("eins\n" * 7), r"a.en has 20 lines but"),
    "empty": (lambda p: (p / "a.en").write_text(""), "a.en is empty"),
    "not utf-8": (lambda p: (p / "a.en").write_bytes(b"one\n" * 10 + b"\xff\n" + b"one\n" * 9), r"a.en:11 is not UTF-8"),
    "missing": (lambda p: (p / "v.de").unlink(), "no file"),
    "folder": (lambda p: ((p / "v.de").unlink(), (p / "v.de").mkdir()), "is a folder"),
    "unknown setting": (
        lambda p: (p / "r.toml").write_text((p / "r.toml").read_text() + "step = 3\n"),
        r"no setting 'step' in train; did you mean 'steps'\?",
    ),
    "indivisible": (
        lambda p: (p / "r.toml").write_text((p / "r.toml").read_text().replace("max_length", "heads = 3\nmax_length")),
        "width 128 is not divisible by heads 3",
    ),
    "too long": (
        lambda p: (p / "a.en").write_text("one\n" * 4 + "one " * 60 + "\n" + "one\n" * 15),
        r"a.en:5 is \d+ tokens long",
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_invalid_input_prints_one_line_and_exits_2_before_training(regard, recipe_folder, name):
    corrupt, message = CORRUPTIONS[name]
    corrupt(recipe_folder)
    status, _, err = regard("train", recipe_folder / "r.toml", "--out", recipe_folder / "run", "--device", "cpu")
    lines = [line for line in err.splitlines() if line.startswith("regard: ")]
    assert status == 2 and len(lines) == 1 and re.search(message, lines[0]), err
    assert "Traceback" not in err and err.splitlines()[-1] == lines[0]
    assert not (recipe_folder / "run" / "checkpoints").exists()


def test_full_disk_prints_one_line_and_exits_2(regard, recipe_folder, monkeypatch):
    from regard.training import checkpoint

    def full(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "write_and_fsync", full)
    status, _, err = regard("train", recipe_folder / "r.toml", "--out", recipe_folder / "run", "--device", "cpu")
    assert status == 2 and "the disk is full" in err.splitlines()[-1] and "bytes needed" in err.splitlines()[-1]
    assert not list((recipe_folder / "run").rglob(".writing*"))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["translate", "nowhere", "x"], "nowhere does not exist"),
        (["translate", ".", "x"], "is not a run folder"),
        (["train", "nowhere.toml"], "no recipe at nowhere.toml"),
        (["world", "flat", "--out", "x"], "no world 'flat'"),
        (["new", "fly"], "the task 'fly'"),
        (["new", "translate"], "name your data"),
        (["compare", "one"], "at least two"),
        (["plan"], "nothing to plan"),
        (["plan", "nonsense"], "nonsense"),
    ],
)
def test_user_errors_print_one_line_and_exit_2(regard, arguments, message):
    status, out, err = regard(*arguments)
    assert status == 2 and not out and len(err.splitlines()) == 1 and message in err and err.startswith("regard: ")


def places_of(name, section, path=()):
    """Yield the path of every section with a setting of this name, and the `kind` settings that select it."""
    if name in section.model_fields:
        yield path, {}
    for field, info in section.model_fields.items():
        for option in settings_in(info.annotation) if get_origin(info.annotation) is not dict else ():
            inside = (*path, field)
            kind = {".".join((*inside, "kind")): allowed_kinds(option)[0]} if "kind" in option.model_fields else {}
            yield from ((place, kind | kinds) for place, kinds in places_of(name, option, inside))


@pytest.mark.parametrize("old, new", FORMER_NAMES.items())
def test_former_name_of_a_setting_names_the_present_one(regard, tmp_path, old, new):
    """An old key, in a recipe or with --set, wherever its present name is a setting."""
    trained = [task for task in all_tasks() if task.recipe is not None]
    found = [(task, place) for task in trained for place in places_of(new, task.recipe)]
    assert found, f"no recipe has a setting {new!r}"
    for task, (path, kinds) in found:
        models = settings_in(task.recipe.model_fields["model"].annotation)
        kind = {"model.kind": next(iter(task.models))} if "kind" in models[0].model_fields else {}  # tells images from texts
        settings = {"task": task.name, **kind, **kinds, ".".join((*path, old)): 1}
        recipe = tmp_path / "recipe.toml"
        for written, given in ((settings, {}), ({}, settings)):
            recipe.write_text("".join(f"{name} = {value!r}\n" for name, value in written.items()))
            status, out, err = regard("train", recipe, *(f"--set={name}={value}" for name, value in given.items()))
            assert status == 2 and not out and len(err.splitlines()) == 1, err
            assert f"no setting {old!r}" in err and f"did you mean {new!r}?" in err, err


def test_unknown_command_or_bad_option_exits_2(regard):
    assert regard("fly")[0] == 2
    assert regard("translate", "--beam", "0", "x")[0] == 2
    assert regard("generate", "x", "--greedy", "--temperature", "1.0")[0] == 2


def test_version_is_the_packages(regard):
    import regard as package

    assert regard("--version")[:2] == (0, f"regard {package.__version__}\n")


def test_bom_crlf_and_missing_last_newline_are_accepted(regard, recipe_folder):
    (recipe_folder / "a.en").write_bytes(b"\xef\xbb\xbf" + b"\r\n".join([b"one two three"] * 20))
    status, _, err = regard("train", recipe_folder / "r.toml", "--out", recipe_folder / "run", "--device", "cpu")
    assert status == 0, err


def test_translate_reads_and_writes_lines(regard, tiny_run):
    texts = tiny_run.data.valid.source[:4]
    data = ("\ufeff" + "\r\n".join([*texts, "", texts[0]])).encode()  # a BOM is dropped
    status, out, _ = regard("translate", tiny_run.folder, "--device", "cpu", stdin=data)
    assert status == 0 and out.splitlines() == [*(t.text for t in tiny_run._best(texts)), "", tiny_run._best(texts[:1])[0].text]
    status, out, _ = regard("translate", tiny_run.folder, texts[0], "--json", "--device", "cpu")
    best = tiny_run._best(texts)[0]
    assert json.loads(out) == {"text": best.text, "score": pytest.approx(best.score, abs=1e-5)}
    status, out, _ = regard("translate", tiny_run.folder, texts[0], "-n", "2", "--beam", "3")
    assert len(out.splitlines()) == 2
    assert regard("translate", tiny_run.folder, stdin=b"fine\n\xff\n")[0] == 2
    status, _, err = regard("translate", tiny_run.folder, "fine", "\udcff")  # how Python decodes the byte 0xff of an argument
    assert status == 2 and err == "regard: text 2 of the command line is not UTF-8; convert it first\n"


def test_translate_answers_each_line_of_a_coprocess_before_the_next_is_written(tiny_run):
    texts = tiny_run.data.valid.source[:3]
    with subprocess.Popen(
        [sys.executable, "-m", "regard", "translate", str(tiny_run.folder), "--device", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as coprocess:
        for text, expected in zip(texts, tiny_run._best(texts)):
            coprocess.stdin.write(f"{text}\n")
            assert select([coprocess.stdout], [], [], 60)[0], "no answer while standard input stays open"
            assert coprocess.stdout.readline() == f"{expected.text}\n"
        coprocess.stdin.close()
        assert coprocess.stdout.read() == "" and coprocess.wait(60) == 0


@pytest.mark.parametrize("pipe", [True, False])
def test_lines_are_read_in_batches_from_a_file_and_as_they_arrive_from_a_pipe(pipe, tmp_path, monkeypatch):
    lines = [f"line {number} ö" for number in range(20000)]
    (tmp_path / "lines.txt").write_text("\n".join(lines))
    with (tmp_path / "lines.txt").open("rb") as file, subprocess.Popen(["cat"], stdin=file, stdout=subprocess.PIPE) as cat:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(cat.stdout if pipe else (tmp_path / "lines.txt").open("rb")))
        batches = list(read_batches(None, size=500))
    assert [line for batch in batches for line in batch] == lines
    assert all(len(batch) == 500 for batch in batches) if not pipe else max(map(len, batches)) <= 500


def test_translate_with_long_lines_file_names_and_samples(regard, tiny_run, tmp_path):
    data = ("The dog sleeps.\n" + "The dog sleeps. " * 40 + "\nThe dog sleeps.\n").encode()
    for treatment in ("truncate", "split"):
        status, out, _ = regard("translate", tiny_run.folder, "--too-long", treatment, stdin=data)
        assert status == 0 and len(out.splitlines()) == 3
    status, _, err = regard("translate", tiny_run.folder, stdin=data)
    assert status == 2 and "line 2 has" in err and "--too-long truncate or split" in err and err.count("\n") == 1
    status, _, err = regard("translate", tiny_run.folder, "--too-long", "cut", "a")
    assert status == 2 and "choose from error, truncate, split" in err
    (tmp_path / "my news.en").write_text("The dog sleeps.\n")
    status, out, err = regard("translate", tiny_run.folder, tmp_path / "my news.en")
    assert status == 2 and not out and "is a file, not a text" in err and f"< '{tmp_path}/my news.en'" in err
    status, out, _ = regard("translate", tiny_run.folder, "The dog sleeps.", "--temperature", "1", "-n", "3")
    assert status == 0 and len(out.splitlines()) == 3


def test_greedy_equals_beam_one(regard, tiny_run):
    text = tiny_run.data.valid.source[0]
    _, greedy, _ = regard("translate", tiny_run.folder, text, "--greedy")
    _, beam_one, _ = regard("translate", tiny_run.folder, text, "--beam", "1")
    assert greedy == beam_one


def test_evaluate_prints_scores_and_json(regard, tiny_run):
    status, out, _ = regard("evaluate", tiny_run.folder, "--json", "--device", "cpu")
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and {row["metric"] for row in rows} >= {"bleu", "chrf", "ter", "perplexity"}
    assert all({"set", "metric", "score", "low", "high", "signature"} == set(row) for row in rows)
    assert "95% interval" in regard("evaluate", tiny_run.folder)[1]


def test_show_writes_figures_and_prints(regard, tiny_run, tmp_path):
    text = tiny_run.data.valid.source[0]
    for name in ("a.svg", "a.png", "a.pdf"):
        assert regard("show", tiny_run.folder, text, "--out", tmp_path / name)[0] == 0
        assert (tmp_path / name).stat().st_size > 500
    status, out, _ = regard("show", tiny_run.folder, text, "--terminal", "--layer", "1", "--head", "2")
    assert status == 0 and "layer 1, head 2" in out
    for arguments, message in [
        (["--out", tmp_path / "a.gif"], ".gif is not a supported format"),
        ([], "no output: add --out"),
        (["--terminal", "--layer", "9"], "has layers 1, 2"),
        (["--terminal", "--head", "1"], "of which layer"),
    ]:
        status, _, err = regard("show", tiny_run.folder, text, *arguments)
        assert status == 2 and message in err


def test_compare_plan_doctor_and_world(regard, tiny_run, tmp_path):
    assert "baseline" in regard("compare", tiny_run.folder, tiny_run.folder)[1]
    status, out, _ = regard("plan", "block")
    assert status == 0 and "10,656" in out and "614,400" in out and "368,640,000" in out
    assert "3.3·10¹⁸" in regard("plan", "--costs", "--run", tiny_run.folder)[1]
    assert json.loads(regard("plan", "base", "--json")[1])
    assert json.loads(regard("doctor", "--json")[1])["packages"]["regard"]
    assert regard("world", "bilingual", "--number", "50", "--level", "1", "--out", tmp_path / "w")[0] == 0
    assert len((tmp_path / "w" / "train.de").read_text().splitlines()) == 50


def test_world_writes_images_and_does_not_overwrite(regard, tmp_path):
    status, _, err = regard("world", "shapes", "--number", "20", "--size", "24", "--out", tmp_path / "s")
    assert status == 0 and "README.md, composition, test, train, valid" in err
    assert len([*(tmp_path / "s" / "train").glob("*.png")]) == 20
    for arguments, message in [
        (["shapes"], "already exists"),
        (["shapes", "--level", "2"], "--level 2: the world of shapes has no"),
        (["shapes", "--size", "30"], "size = 30: use a multiple of 8"),
        (["bilingual", "--size", "8"], "no images"),
        (["shape"], "no world 'shape'; choose from: bilingual, shapes"),
    ]:
        status, _, err = regard("world", *arguments, "--out", tmp_path / ("s" if arguments == ["shapes"] else "t"))
        assert status == 2 and message in err and err.count("\n") == 1
    assert not (tmp_path / "t").exists()


def test_real_command_exits_2_and_cli_imports_no_heavy_modules(tmp_path):
    run = subprocess.run([sys.executable, "-m", "regard", "translate", str(tmp_path), "x"], capture_output=True, text=True)
    assert run.returncode == 2 and run.stderr.count("\n") == 1
    code = "import sys, regard.cli; assert not {'torch', 'matplotlib', 'numpy', 'sacrebleu'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_closed_pipe_is_not_an_error(tiny_run):
    """`regard translate … | head -1` ends quietly."""
    texts = "\n".join(["The dog sleeps."] * 50).encode()
    run = subprocess.Popen(
        [sys.executable, "-m", "regard", "translate", str(tiny_run.folder), "--greedy"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    run.stdout.close()
    run.stdin.write(texts)
    run.stdin.close()
    assert run.wait(60) == -signal.SIGPIPE and run.stderr.read() == b""
