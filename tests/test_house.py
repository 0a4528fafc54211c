"""Who may import whom (DESIGN: "The way of the data is the folder list"), and other laws of the house."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "regard"
GROUND = {"errors", "chance"}                                                     # imported by anybody; import nothing of ours
DATA = ["corpus", "tokens", "batches"]
MODEL = ["attention", "layers", "models"]
MAY = {
    "errors": set(), "chance": set(), "recipe": set(), "worlds": set(),
    "corpus": {"worlds", "recipe"}, "tokens": {"corpus", "worlds", "recipe"}, "batches": {"corpus", "tokens", "worlds", "recipe"},
    "attention": set(), "layers": {"attention"}, "models": {"attention", "layers"},
    "training": {"batches", "tokens", "models", "recipe"},
    "decoding": {"models", "tokens"},
    "plan": {"recipe", *MODEL},
    "interop": {"models", "tokens"},
    "scoring": {"models", "tokens", "decoding"},
    "pictures": {"models", "tokens", "scoring"},
    "explain": {"models", "tokens", "attention", "scoring"},
    "run": {"recipe", "worlds", *DATA, *MODEL, "training", "decoding", "scoring", "pictures", "explain", "interop", "plan"},
    "server": {"run", "plan", "recipe", "worlds"},
    "cli": {"run", "plan", "recipe", "worlds", "server"},
    "__main__": {"cli"}, "__init__": {"errors"},
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
    (tmp_path / "bad.py").write_text("from regard.corpus.text import read_lines\nimport regard.batches.store\n")
    assert imports(tmp_path / "bad.py") == {"corpus", "batches"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_pickle_no_exec_no_bare_excuses(path):
    """No pickle anywhere, no code from strings, no `except Exception`. One place may take the tensors out of somebody else's
    pickle, and nothing but tensors: where a user asked for it with --allow-pickle."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            assert not {"pickle", "shelve", "dill", "joblib", "marshal"} & {name.split(".")[0] for name in names}
        if isinstance(node, ast.Call):
            forbidden = {"exec", "eval", "torch.load", "torch.save", "np.load"}
            asked_for = path == PACKAGE / "interop" / "folder.py" and ast.unparse(node).startswith("torch.load(") \
                and "weights_only=True" in ast.unparse(node)
            assert ast.unparse(node.func) not in forbidden or "mmap_mode" in ast.unparse(node) or asked_for
        if isinstance(node, ast.ExceptHandler):
            assert node.type is not None and ast.unparse(node.type) != "Exception"


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


def test_the_readme_names_every_file():
    """The tree in the README has one line per file."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [str(path.relative_to(PACKAGE)) for path in FILES if path.name != "__init__.py" and path.name not in readme]
    assert not missing
