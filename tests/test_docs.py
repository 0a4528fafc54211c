"""Generated documents are up to date, and documents agree with the code."""

import ast
import importlib.util
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

import regard

ROOT = Path(__file__).parent.parent


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_settings_page_is_up_to_date():
    page = load(ROOT / "docs" / "settings.py").settings_page()
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == page, "stale: run make docs"


def test_page_of_the_recipes_is_up_to_date_and_lists_each_with_its_score():
    page = load(ROOT / "docs" / "recipes.py").recipes_page()
    assert (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8") == page, "stale: run make docs"
    rows = re.findall(r"^\| \[([\w-]+)\]\(.*?\) \| (.*?) \| (.*?) \| .*\|$", page, re.M)
    assert sorted(name for name, *_ in rows) == sorted(path.stem for path in (ROOT / "recipes").glob("*.toml"))
    assert all(about and re.search(r"\d", score) for _, about, score in rows)


def test_version_agrees_with_pyproject_citation_and_changelog():
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")  # read from regard.__version__
    assert f"version: {regard.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {re.split(r"[=<>]", line)[0].lower().replace("_", "-") for line in lines}
    block = re.search(r"dependencies = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.S).group(1)
    for name in re.findall(r'"([A-Za-z0-9_-]+)', block):
        assert name.lower().replace("_", "-") in pinned, name
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()


def test_lock_file_has_every_version_and_hashes_except_for_torch():
    text = (ROOT / "requirements.lock").read_text()
    locked = re.findall(r"^([A-Za-z0-9_.-]+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.M)
    pinned = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line and not line.startswith("#")]
    assert [line for line, _ in locked] == [line for line in pinned if not line.startswith("torch==")]
    assert "://" not in text and f"pip install {pinned[0]}\n" in text and pinned[0].startswith("torch==")


VULNERABLE = {"name": "a", "version": "1", "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
UNKNOWN = {"name": "b", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("tools", "status", "output", "said"),
    [
        ((), 0, "", "pip-audit is not installed (pip install pip-audit); nothing was checked"),
        (("pip_audit",), 1, "", "pip-audit reached no database (exit status 1); nothing was checked"),
        (("pip_audit",), 0, json.dumps({"dependencies": [UNKNOWN] * 3}), "looked up 0 of 3 packages of"),
        (
            ("pip_audit",),
            1,
            json.dumps({"dependencies": [VULNERABLE, UNKNOWN]}),
            "  a 1: CVE-1, fixed in 2\naudit: pip-audit looked up 1",
        ),
        (("bandit",), 1, ">> Issue: [B104] …\n", "bandit looked at src: 1 findings"),
    ],
)
def test_audit_never_fails_and_says_what_it_checked(tools, status, output, said, monkeypatch, capsys):
    audit = load(ROOT / ".ci" / "audit.py")
    monkeypatch.setattr(audit.importlib.util, "find_spec", lambda name: object() if name in tools else None)
    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], status, output, ""))
    audit.main()
    assert said in capsys.readouterr().out


def messages():
    """Yield every string of the source, with … for each formatted value."""
    for path in (ROOT / "src" / "regard").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_every_message_of_the_errors_page_is_in_the_source():
    known = set(messages())
    rows = re.findall(r"^\| [^|]+ \| `([^`]+)`", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.M)
    assert len(rows) > 50
    assert not [row for row in rows if row not in known]


def test_every_public_name_can_be_imported():
    for name in regard.__all__:
        assert getattr(regard, name) is not None


DOCUMENTS = [ROOT / "README.md", ROOT / "RESULTS.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")]


def test_links_in_documents_lead_to_files():
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def broken_tables(text):
    """Return the first line of every table without a header, or with rows of different lengths: it is shown as plain text."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    broken = []
    for table in re.findall(r"(?:^\|.*\n?)+", text, re.M):
        rows = table.splitlines()
        cells = {len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) for row in rows}
        if len(cells) > 1 or len(rows) < 2 or not re.fullmatch(r"[|:\- ]+", rows[1]):
            broken.append(rows[0])
    return broken


def test_tables_of_documents_are_whole():
    assert not [(path.name, line) for path in DOCUMENTS for line in broken_tables(path.read_text(encoding="utf-8"))]


@pytest.mark.parametrize("text", ["| a |\n| 1 |\n", "| a |\n|---|\n| 1 |\n\n| 2 |\n", "| a |\n|---|\n| 1 | 2 |\n"])
def test_a_broken_table_is_found(text):
    assert broken_tables(text)
    assert not broken_tables("| a | `x|y` |\n|---|---|\n| 1 | 2 |\n")


def scores_of_recipes():
    for path in sorted((ROOT / "recipes").glob("*.toml")):
        for test_set, metrics in tomllib.loads(path.read_text(encoding="utf-8")).get("score", {}).items():
            for metric, score in metrics.items():
                yield pytest.param(path.name, score, id=f"{path.stem}-{test_set}-{metric}")


@pytest.mark.parametrize("recipe, score", list(scores_of_recipes()))
def test_score_of_a_recipe_is_in_a_section_of_the_results_that_names_it(recipe, score):
    sections = re.split(r"^(?=##)", (ROOT / "RESULTS.md").read_text(encoding="utf-8"), flags=re.M)
    found = {pair for text in sections if recipe in text for pair in re.findall(r"(\d+\.\d+) ± (\d+\.\d+)", text)}
    expected = pytest.approx((score["mean"], score["spread"]), abs=0.051)  # the results are rounded to a tenth or finer
    assert any((float(mean), float(spread)) == expected for mean, spread in found)


def test_file_tree_of_the_architecture_page_is_up_to_date():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert page == load(ROOT / "docs" / "tree.py").architecture_page(), "stale: run make docs"
    listed = set(re.findall(r"^\| `([\w./]+\.py)` \|", page, re.M))
    source = ROOT / "src" / "regard"
    assert listed >= {path.relative_to(source).as_posix() for path in source.rglob("*.py") if path.name != "__init__.py"}


@pytest.mark.parametrize("command", ["train", "translate"])
def test_walk_through_the_code_names_real_functions_and_never_goes_back(command):
    """At most ten hops; a folder that was left is not entered again."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = re.search(rf"^## Walk: `regard {command} .*?(?=^## )", page, re.M | re.S)[0]
    hops = re.findall(r"^\| \d+ \| `([\w/]+\.py)` \| `(\w+)` \|", section, re.M)
    assert 5 <= len(hops) <= 10
    for file, name in hops:
        tree = ast.parse((ROOT / "src" / "regard" / file).read_text(encoding="utf-8"))
        assert name in {getattr(node, "name", None) for node in tree.body}, f"{file}: {name}"
    folders = [file.split("/")[0] for file, _ in hops]
    entered = [folder for at, folder in enumerate(folders) if at == 0 or folders[at - 1] != folder]
    assert len(entered) == len(set(entered))
