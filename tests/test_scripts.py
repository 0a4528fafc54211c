"""Benchmarks and scripts of the documentation: every name that they import exists, they start, and say how they are used."""

import ast
import importlib.util
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SCRIPTS = [
    *sorted((ROOT / "benchmarks").glob("*.py")),
    *sorted((ROOT / "docs").glob("*.py")),
    *sorted((ROOT / ".ci").glob("*.py")),
]
HELP = """
import runpy, sys, traceback
for path in sys.argv[1:]:
    sys.argv = [path, "--help"]
    sys.path.insert(0, path.rpartition("/")[0])
    text = open(path, encoding="utf-8").read()
    is_command = "parse_args(" in text and "__main__" in text  # others are imported only
    try:
        runpy.run_path(path, run_name="__main__" if is_command else "imported")
        assert not is_command, "--help did not end it"
    except SystemExit as end:
        if end.code:
            print(f"FAILED {path}: exit status {end.code}")
    except BaseException:
        print(f"FAILED {path}: {traceback.format_exc()}")
    del sys.path[0]
"""


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_name_of_the_package_that_a_script_imports_exists(path):
    """Also in functions, which importing the script does not run."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "regard":
            module = import_module(node.module)
            for name in node.names:
                is_module = hasattr(module, "__path__") and importlib.util.find_spec(f"{node.module}.{name.name}")
                assert is_module or hasattr(module, name.name), f"{path.name}:{node.lineno}: no {name.name} in {node.module}"


def test_every_script_starts_and_prints_its_help():
    """All of them in one process, since most of the time is spent on importing torch and transformers."""
    needs_browser = [] if importlib.util.find_spec("playwright") else [ROOT / "docs" / "screenshots.py"]
    paths = [str(path) for path in SCRIPTS if path not in needs_browser]
    done = subprocess.run([sys.executable, "-c", HELP, *paths], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "FAILED" not in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("usage: ") >= 15
