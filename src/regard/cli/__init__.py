"""The command line: one verb per function. Imports stand inside the verbs, so that --help is instant."""

import os
import sys
import warnings
from pathlib import Path

from regard import distributed
from regard.cli.options import app
from regard.errors import Interrupted, Mistake

# isort: off
from regard.cli import training, text, vision, show, serve, plan  # the order of --help
# isort: on

__all__ = ["app", "main", "plan", "serve", "show", "text", "training", "vision"]


SHARED = ("train", "evaluate", "translate")
"""Verbs that several processes do together."""


def main() -> None:
    """Run a verb; what the user got wrong is one line and status 2."""
    warnings.filterwarnings("ignore", "Image size", module=r"PIL\.")  # a decompression bomb, which is refused in our own words
    try:
        if distributed.count() > 1:
            be_one_of_many(sys.argv[1:])
        app()
    except Mistake as mistake:
        told = " ".join(str(mistake).splitlines())
        if distributed.count() == 1:
            print(f"regard: {told}", file=sys.stderr)
        else:
            distributed.say(told)
        distributed.end(2)
    except Interrupted as interruption:
        told = f"interrupted; {interruption.cure}"
        if distributed.count() == 1:
            print(f"regard: {told}", file=sys.stderr)
        else:
            distributed.say(told)
        distributed.end(128 + interruption.number)
    except SystemExit as done:
        if not done.code:
            distributed.leave()
        distributed.end(done.code)


def be_one_of_many(words: list[str]) -> None:
    """Only the first process speaks; another one does where it is the cause of a failure."""
    sys.excepthook = distributed.tell_cause
    if not distributed.first():
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if words and words[0] not in (*SHARED, "-h", "--help"):
        raise Mistake(f"regard {words[0]} is for one process; leave out torchrun, which is for: {', '.join(SHARED)}")
