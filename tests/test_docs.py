"""What is generated from the code is not stale; what the documents promise exists."""

import importlib.util
import re
from pathlib import Path

import regard

ROOT = Path(__file__).parent.parent


def test_the_settings_page_is_what_the_types_say():
    spec = importlib.util.spec_from_file_location("settings", ROOT / "docs" / "settings.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (ROOT / "docs" / "settings.md").read_text(encoding="utf-8") == module.settings_page(), "stale: run make docs"


def test_one_version_everywhere():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{regard.__version__}"' in text
    assert f"## {regard.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_every_dependency_is_pinned():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {re.split(r"[=<>]", line)[0].lower().replace("_", "-") for line in lines}
    block = re.search(r"dependencies = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), re.S).group(1)
    for name in re.findall(r'"([A-Za-z0-9_-]+)', block):
        assert name.lower().replace("_", "-") in pinned, name
    assert "torch==2.13.0" in (ROOT / "constraints.txt").read_text()


def test_everything_public_is_there():
    for name in regard.__all__:
        assert getattr(regard, name) is not None


def test_links_in_the_documents_lead_somewhere():
    for path in [ROOT / "README.md", ROOT / "RESULTS.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
