"""Fixtures of the tests of tasks."""

import pytest
from typer.testing import CliRunner

from regard.cli import app


@pytest.fixture(scope="session")
def run_cli():
    """Return a function that runs a command and returns the lines of its output."""

    def run(*words, stdin=None):
        return CliRunner().invoke(app, [*map(str, words)], input=stdin, catch_exceptions=False).stdout.splitlines()

    return run
