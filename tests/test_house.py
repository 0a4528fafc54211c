"""Who may import whom (DESIGN: "The way of the data is the folder list"), and other laws of the house."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"
GROUND = {"errors", "rng", "distributed", "files"}  # imported by anybody
DATA = ["corpus", "tokens", "batches"]
MODEL = ["attention", "layers", "models"]
CORE = {"recipe", "worlds", *DATA, *MODEL, "training", "decoding", "scoring", "interop"}
MAY = {
    "errors": set(),
    "rng": set(),
    "files": set(),
    "distributed": {"training"},
    "recipe": set(),
    "worlds": set(),
    "corpus": {"worlds", "recipe"},
    "tokens": {"corpus", "worlds", "recipe"},
    "batches": {"corpus", "tokens", "worlds", "recipe"},
    "attention": set(),
    "layers": {"attention"},
    "models": {"attention", "layers"},
    "training": {"batches", "tokens", "models", "recipe"},
    "decoding": {"models", "tokens"},
    "interop": {"models", "tokens"},
    "scoring": {"models", "tokens", "decoding"},
    "tasks": {*CORE, "run", "show", "explain"},
    "run": {*CORE, "tasks", "show", "explain", "plan"},
    "explain": {*CORE, "tasks", "run", "show"},
    "show": {*CORE, "tasks", "run", "explain"},
    "studies": {*CORE, "tasks", "run", "explain", "show", "plan"},
    "plan": {*CORE, "tasks", "run"},
    "server": {"run", "tasks", "explain", "show", "plan", "recipe", "worlds"},
    "cli": {"run", "tasks", "decoding", "explain", "show", "studies", "plan", "recipe", "worlds", "server"},
    "__main__": {"cli"},
    "__init__": {"errors"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The parts of regard that a file imports when it runs; what only a type checker sees does not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[1] for name in node.names if name.name.startswith("regard.")}
        elif isinstance(node, ast.ImportFrom) and node.module == "regard":
            found |= {name.name for name in node.names} - {"__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("regard."):
            found.add(str(node.module).split(".")[1])
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_follow_the_way_of_the_data(path):
    part = part_of(path)
    assert part in MAY, f"{part} has no place in the folder list"
    strangers = imports(path) - MAY[part] - GROUND - {part}
    assert not strangers, f"{path.relative_to(PACKAGE)} may not import {sorted(strangers)}"


def test_the_law_can_be_broken(tmp_path):
    """A model that reads the corpus would be caught."""
    (tmp_path / "bad.py").write_text("from regard.corpus.lines import read_lines\nimport regard.batches.ragged\n")
    assert imports(tmp_path / "bad.py") == {"corpus", "batches"}


PICKLES = {"pickle", "cPickle", "_pickle", "shelve", "dill", "joblib", "marshal", "cloudpickle", "copyreg"}
LOADS = {"exec", "eval", "torch.load", "torch.save", "torch.jit.load", "np.load", "numpy.load", "pd.read_pickle"}
PROGRAM = [*FILES, *(ROOT / "docs").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py"), *(ROOT / ".ci").rglob("*.py")]


def pickles(tree, path=None):
    """Every place of a syntax tree that may read or write a pickle, run code from strings, or swallow any error. Arrays are read
    memory-mapped, which refuses pickles; one place may take the tensors out of somebody else's pickle, and nothing but tensors:
    where a user asked for it with --allow-pickle."""
    for node in ast.walk(tree):
        written = ast.unparse(node) if isinstance(node, ast.expr | ast.ExceptHandler) else ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            if PICKLES & {name.split(".")[0] for name in names}:
                yield ast.unparse(node)
            if (
                isinstance(node, ast.ImportFrom)
                and node.module in ("torch", "numpy")
                and {"load", "save"} & {name.name for name in node.names}
            ):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            asked_for = (
                path == PACKAGE / "interop" / "weight_files.py" and called == "torch.load" and "weights_only=True" in written
            )
            mapped = called == "np.load" and "mmap_mode=" in written
            if called in LOADS and not (asked_for or mapped):
                yield written
            if any(keyword.arg == "allow_pickle" and called.split(".")[0] in ("np", "numpy") for keyword in node.keywords):
                yield written
        elif isinstance(node, ast.ExceptHandler) and (node.type is None or ast.unparse(node.type) == "Exception"):
            yield "except Exception"


@pytest.mark.parametrize("path", PROGRAM, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_pickle_no_exec_no_bare_excuses(path):
    found = [
        one
        for one in pickles(ast.parse(path.read_text(encoding="utf-8")), path)
        if path.name != "percent.py" or not one.startswith(("exec(", "eval("))
    ]  # which runs the pages of the tour
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import dump",
        "torch.load(path, weights_only=True)",
        "torch.save(x, path)",
        "np.load(path, allow_pickle=True, mmap_mode='r')",
        "from torch import load",
        "np.load(path)",
        "eval(text)",
        "try: x()\nexcept Exception: pass",
        "try: x()\nexcept: pass",
    ],
)
def test_a_pickle_would_be_caught(line):
    assert list(pickles(ast.parse(line)))


def test_softmax_over_keys_is_written_once():
    """Outside the decoders' and objectives' softmax over words, only the core has one."""
    for folder in MODEL:
        for path in (PACKAGE / folder).rglob("*.py"):
            if path.name != "core.py":
                assert "softmax(" not in path.read_text(encoding="utf-8"), path


def test_nothing_of_a_workplace_is_in_the_tree():
    for path in [*FILES, *(ROOT / "recipes").glob("*.toml"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]:
        text = path.read_text(encoding="utf-8")
        assert str(ROOT.parent) + "/" not in text and str(Path.home()) + "/" not in text, path
