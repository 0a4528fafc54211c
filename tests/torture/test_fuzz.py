"""Random command lines, recipes and run folders: whatever is wrong is one line and exit status 2, never a traceback.

Every case is a process of its own, forked from this one, with bounded memory and time. A valid case that takes long (a large
model, many steps) is stopped. `REGARD_FUZZ=3000 pytest -m torture tests/torture/test_fuzz.py` runs more of them.
"""

import copy
import json
import math
import os
import resource
import shutil
import signal
import sys
import time
import tomllib
from pathlib import Path

import pytest
import tomli_w
import torch
import typer
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import regard.cli
import regard.run.evaluate
import regard.run.train
from regard import tasks
from regard.errors import UserError
from regard.recipe.settings import settings_in

MORE_MEMORY = 3 * 2**30
CPU_SECONDS, WALL_SECONDS = 10, 300
SIZES = [6, pytest.param(int(os.environ.get("REGARD_FUZZ", "300")), marks=pytest.mark.torture)]
NUMBERS = ["nan", "inf", "-inf", "1e308", "-1", "0", "1", "2", "3", "0.5", "2147483648", str(2**64), str(10**30), "9" * 5000]
TEXTS = ["", " ", "a dog sleeps .", "x" * 5000, "a,b", "\t", "a\tb", "ü\u2028\u202e", "{}", "[MASK]", "a [MASK] b", "\ud800", "-"]
PATHS = [
    "/dev/null",
    "/dev/full",
    "/dev/zero",
    "/proc/self/mem",
    "/nowhere/x",
    "missing",
    "file.txt",
    "file.png",
    "folder",
    ".",
    "..",
]
PATHS += [
    "y" * 300,
    "runs/typo",
    "recipe.toml",
    "out.svg",
    "out.html",
    "out.png",
    "folder/out.svg",
    "a.tsv",
    "a.attn",
    "a" + "/b" * 3000,
]
WORDS = [
    "auto",
    "cpu",
    "cuda",
    "cuda:99",
    "meta",
    "privateuseone",
    "mps",
    "fp32",
    "bf16",
    "int8",
    "regard",
    "ctranslate2",
    "hf",
    "onnx",
]
WORDS += [
    "translate",
    "language",
    "bilingual",
    "shapes",
    "attention",
    "tiny",
    "base",
    "gpt2",
    "test",
    "valid",
    "mean",
    "cls",
    "words",
]
VALUES = st.sampled_from([*NUMBERS, *TEXTS, *PATHS, *WORDS, "{run}"]) | st.text(max_size=20)
ENDLESS = ("serve", "demo", "ladder")
"""Verbs that serve for ever or train many models."""
TINY = {
    "data": {"world": {"number": 60, "held_out": 6}},
    "tokens": {"size": 120},
    "model": {"preset": "tiny", "width": 16, "heads": 2, "feed_forward": 32, "max_length": 64},
    "train": {"steps": 2, "evaluate_every": 2, "save_every": 1, "log_every": 1, "tokens_per_batch": 256},
    "decode": {"max_tokens": 4, "beam": 2},
}
BLOCK = {"layers": 1, "width": 16, "heads": 2, "feed_forward": 32}
LANGUAGE = {**TINY, "task": "language", "model": {**BLOCK, "kind": "transformer", "max_length": 64}}
SHAPES = {"world": {"kind": "shapes", "number": 24, "held_out": 4}, "size": 24}
VIT = {
    "task": "classify",
    "data": {**SHAPES, "label_attribute": "kind"},
    "model": {**BLOCK, "kind": "vit", "patch_size": 8},
    "train": {"steps": 2, "evaluate_every": 2, "save_every": 1, "images_per_batch": 8},
}
RECIPES = {"translate": {**TINY, "task": "translate"}, "language": LANGUAGE, "vit": VIT}
SETTING_NUMBERS = [-1, 0, 1, 2, 3, 7, -0.1, 0.5, 1e9, 1e18, 1e308, math.nan, math.inf, -math.inf, 2**31, 2**64, 10**30]
SETTING_TEXTS = ["", "x", "tiny", "../../x", "a" * 5000, True, False]
SETTING_VALUES = st.sampled_from(
    [*SETTING_NUMBERS, *SETTING_TEXTS, [], [1], ["tiny"], [[1]], {}, {"kind": "x"}, {"a": {"b": 1}}, [1, "a"]]
)


class Outcome:
    """What a command in a child did: its exit status, minus the signal that stopped it, and what it printed to stderr."""

    def __init__(self, folder: Path, words: list[str], stdin: bytes = b"a dog sleeps .\n"):
        (folder / "stdin").write_bytes(stdin)
        self.words, self.pid, start = words, os.fork(), time.monotonic()
        if self.pid == 0:
            self.live(folder)
        while os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            time.sleep(0.01)
            if time.monotonic() - start > WALL_SECONDS:
                os.kill(self.pid, signal.SIGKILL)
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self.err = (folder / "stderr").read_text(errors="replace") if (folder / "stderr").exists() else ""

    def live(self, folder: Path) -> None:
        status = 99
        try:
            os.chdir(folder)
            for number, name, flags in ((0, "stdin", os.O_RDONLY), (1, "stdout", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)):
                os.dup2(os.open(name, flags), number)
            os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), 2)
            for name, number, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
                setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", errors="backslashreplace"))
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + MORE_MEMORY, used + MORE_MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            resource.setrlimit(resource.RLIMIT_FSIZE, (2**28, 2**28))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            os.environ |= {"TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
            sys.argv = ["regard", *self.words]
            regard.cli.main()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        except BaseException as error:
            print(f"Traceback: {error!r}", file=sys.stderr)
        finally:
            sys.stderr.flush()
            os._exit(status)

    def check(self) -> str:
        """Check the law; return what happened in a word."""
        ours = [line for line in self.err.splitlines() if line.startswith("regard: ")]
        shown = f"{self.words}\nstatus {self.status}\n{self.err[-3000:]}"
        assert "Traceback" not in self.err and "bug in regard" not in self.err, shown
        assert self.status in (0, 2, -signal.SIGXCPU), shown
        assert self.status != 2 or len(ours) == 1 or "Usage: " in self.err, shown
        assert not ours or len(ours[0]) < 6000, shown
        return {0: "worked", 2: "refused in one line", -signal.SIGXCPU: "stopped while it worked"}[self.status]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with runs and other files to try; the runs are trained in children, so that this process has no threads."""
    if torch.get_num_threads() > 1:
        pytest.skip("these fork: OMP_NUM_THREADS=1 pytest tests/torture, as make system and make torture do")
    folder = tmp_path_factory.mktemp("fuzz")
    for name, recipe in RECIPES.items():
        (folder / f"{name}.toml").write_text(tomli_w.dumps(recipe))
        done = Outcome(folder, ["train", f"{name}.toml", "--out", f"run-{name}", "--device", "cpu", "--no-evaluate"])
        assert done.status == 0, done.err
    (folder / "folder").mkdir()
    shutil.copyfile(folder / "translate.toml", folder / "recipe.toml")
    (folder / "file.txt").write_text("a dog sleeps .\nthe cat\n")
    (folder / "a.tsv").write_text("a dog\tein Hund\n")
    (folder / "file.png").write_bytes(b"\x89PNG\r\n\x1a\nnot really")
    (folder / "a.attn").write_bytes(b"not a record")
    return folder


def campaign(examples, strategy, check):
    """Check so many cases; the small number are the same every time."""
    fixed = examples in (SIZES[0], 200)
    phases = [Phase.explicit, Phase.generate, *([Phase.shrink] if fixed else [])]

    @settings(
        max_examples=examples,
        derandomize=fixed,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=phases,
        deadline=None,
    )
    @given(strategy)
    def run(case):
        check(case)

    run()


def command_lines():
    """Return a strategy of command lines: a verb, its arguments, and some of its options with any value."""
    commands = {name: command for name, command in typer.main.get_command(regard.cli.app).commands.items() if name not in ENDLESS}

    @st.composite
    def draw_line(draw):
        name = draw(st.sampled_from(sorted(commands)))
        words = [name]
        for parameter in commands[name].params:
            if parameter.param_type_name == "argument":
                number = draw(st.integers(1, 2)) if parameter.nargs == -1 else 1
                first = (
                    st.sampled_from(["{run}", "{run}", "{run}", "recipe.toml"])
                    if parameter.name in ("run", "runs", "recipe")
                    else VALUES
                )
                words += [draw(first) for _ in range(number)]
        options = [p for p in commands[name].params if p.param_type_name == "option" and p.name != "help"]
        for parameter in draw(st.lists(st.sampled_from(options), max_size=3)) if options else ():
            words.append(draw(st.sampled_from(parameter.opts)))
            words += [] if parameter.is_flag else [draw(VALUES)]
        return (
            words,
            draw(st.sampled_from(sorted(RECIPES))),
            draw(st.sampled_from([b"", b"a\n", b"\xff\n", b"\0\n", b"a\n" * 50])),
        )

    return draw_line()


@pytest.mark.parametrize("examples", SIZES)
def test_any_command_line_works_or_is_refused_in_one_line(made, count, examples):
    def check(case):
        words, run, stdin = case
        line = [word.replace("{run}", f"run-{run}") for word in words]
        if line[0] == "train":  # never many steps, and never in the runs of others
            line += ["--set", "train.steps=1", "--out", "trained"]
        if any("\0" in word for word in line):
            return
        count(f"command lines: {Outcome(made, line, stdin).check()}")
        shutil.rmtree(made / "trained", ignore_errors=True)

    campaign(examples, command_lines(), check)


def setting_names(recipe, prefix=""):
    """Yield the dotted names of all settings of a recipe type."""
    for name, field in recipe.model_fields.items():
        yield prefix + name
        for section in settings_in(field.annotation):
            yield from setting_names(section, f"{prefix}{name}.")


SHIPPED = sorted(Path(__file__).parents[2].glob("recipes/*.toml"))


@pytest.mark.parametrize("examples", [200, pytest.param(20_000, marks=pytest.mark.torture)])
def test_any_settings_of_any_task_are_a_recipe_or_refused_in_one_line(count, examples):
    """The shipped recipes, which are of every task, with some settings replaced; nothing is trained."""
    recipes = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in SHIPPED}
    names = {name: sorted(set(setting_names(type(tasks.build_recipe(recipe))))) for name, recipe in recipes.items()}
    changes = st.sampled_from(sorted(recipes)).flatmap(
        lambda name: st.tuples(
            st.just(name), st.lists(st.tuples(st.sampled_from(names[name]), SETTING_VALUES), min_size=1, max_size=3)
        )
    )

    def check(case):
        name, edits = case
        try:
            tasks.build_recipe(edited(recipes[name], edits)).to_toml()
            count("settings: a recipe")
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 8000, error
            count("settings: refused in one line")

    campaign(examples, changes, check)


def edited(recipe, edits):
    """Return a copy of a recipe with some settings replaced."""
    recipe = copy.deepcopy(recipe)
    for path, value in edits:
        section = recipe
        *sections, last = path.split(".")
        for key in sections:
            if not isinstance(section.get(key), dict):
                section[key] = {}
            section = section[key]
        section[last] = copy.deepcopy(value)  # a later edit may be inside it
    return recipe


@pytest.mark.parametrize("examples", SIZES)
def test_any_recipe_trains_or_is_refused_in_one_line(made, count, examples):
    names = {
        name: sorted(set(setting_names(type(tasks.build_recipe(recipe))))) for name, recipe in RECIPES.items()
    }  # settings of the task's type: data, model and train among them
    small = st.sampled_from([0, 1, 2, 3, 8, 0.5, True, False])  # often valid: such recipes are trained
    changes = st.sampled_from(sorted(RECIPES)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.lists(st.tuples(st.sampled_from(names[name]), SETTING_VALUES), min_size=1, max_size=3)
            | st.lists(st.tuples(st.sampled_from([one for one in names[name] if "." in one]), small), min_size=1, max_size=1),
        )
    )

    def check(case):
        name, edits = case
        (made / "fuzzed.toml").write_text(tomli_w.dumps(edited(RECIPES[name], edits)))
        line = ["train", "fuzzed.toml", "--out", "trained", "--device", "cpu", "--no-evaluate"]
        if not any(path == "train.steps" for path, _ in edits):
            line += ["--set", "train.steps=1"]
        count(f"recipes: {Outcome(made, line).check()}")
        shutil.rmtree(made / "trained", ignore_errors=True)

    campaign(examples, changes, check)


DAMAGE = st.sampled_from(["delete", "empty", "cut", "zero", "flip", "folder", "loop", "json", "text", "value", "fifo"])
JSON_VALUES = [None, -1, 0, 10**30, 1.5, "x", [], {}, [[]], True, [1, 2], {"a": 1}]


def damage(folder, place, kind, seed):
    """Damage one file of a run folder; checkpoints are among them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    path = files[int(place * len(files))]
    data = path.read_bytes()
    at = seed % max(1, len(data))
    if kind in ("delete", "folder", "loop", "fifo"):
        path.unlink()
        {"folder": path.mkdir, "loop": lambda: path.symlink_to(path.name), "fifo": lambda: os.mkfifo(path)}.get(kind, bool)()
    elif kind == "json":
        path.write_text(json.dumps(JSON_VALUES[seed % len(JSON_VALUES)]))
    elif kind == "value":
        replace_value(path, data, seed)
    else:
        path.write_bytes(
            {
                "empty": b"",
                "cut": data[:at],
                "zero": data[:at] + bytes(min(64, len(data) - at)) + data[at + 64 :],
                "flip": data[:at] + bytes([data[at] ^ (1 + seed % 255)]) + data[at + 1 :] if data else b"x",
                "text": b"not what it should be\n",
            }[kind]
        )


def replace_value(path, data, seed):
    """Replace one value of a JSON file by another of any type; other files are cut."""
    try:
        found = json.loads(data)
        section = found if isinstance(found, dict | list) else [found]
        keys = list(section) if isinstance(section, dict) else range(len(section))
        key = list(keys)[seed % len(keys)]
        if isinstance(section[key], dict) and section[key] and seed % 2:
            section, key = section[key], list(section[key])[seed % len(section[key])]
        section[key] = JSON_VALUES[seed % len(JSON_VALUES)]
        path.write_text(json.dumps(found))
    except (ValueError, ZeroDivisionError, UnicodeDecodeError):
        path.write_bytes(data[: seed % max(1, len(data))])


VERBS = {
    "translate": [["translate", "{run}", "a dog sleeps ."], ["show", "{run}", "a dog sleeps .", "--out", "out.svg"]],
    "language": [["generate", "{run}", "a dog", "--max-tokens", "3"], ["embed", "{run}", "a dog"]],
    "vit": [["classify", "{run}", "file.png"], ["plan", "{run}"]],
}
ANY_RUN = [
    ["evaluate", "{run}"],
    ["train", "{run}", "--resume"],
    ["train", "{run}", "--resume", "--verify", "1"],
    ["train", "{run}", "--resume", "--from", "1", "--accept-changes"],
    ["convert", "{run}", "converted"],
    ["compare", "{run}", "{run}"],
]


@pytest.mark.parametrize("examples", SIZES)
def test_any_damaged_run_folder_works_or_is_refused_in_one_line(made, count, examples):
    cases = st.tuples(
        st.sampled_from(sorted(RECIPES)),
        st.lists(st.tuples(st.floats(0, 0.999), DAMAGE, st.integers(0, 10**6)), min_size=1, max_size=2),
        st.integers(0, 100),
    )

    def check(case):
        name, damages, verb = case
        shutil.copytree(made / f"run-{name}", made / "damaged")
        for place, kind, seed in damages:
            damage(made / "damaged", place, kind, seed)
        verbs = VERBS[name] + ANY_RUN
        line = [word.replace("{run}", "damaged") for word in verbs[verb % len(verbs)]]
        try:
            count(f"damaged run folders: {Outcome(made, line).check()}")
        finally:
            for folder in ("damaged", "converted"):
                shutil.rmtree(made / folder, ignore_errors=True)

    campaign(examples, cases, check)
