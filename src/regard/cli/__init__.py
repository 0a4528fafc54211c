"""The command line: one verb per function. Imports stand inside the verbs, so that --help is instant."""

import os
import sys
import warnings
from pathlib import Path

from regard import distributed
from regard.cli.options import app
from regard.errors import Interrupted, UserError

# isort: off
from regard.cli import training, text, vision, show, serve, plan  # the order of --help
# isort: on

__all__ = ["app", "main", "plan", "serve", "show", "text", "training", "vision"]


MULTI_PROCESS_VERBS = ("train", "evaluate", "translate")
"""Verbs that several processes do together."""


def main() -> None:
    """Run a verb; what the user got wrong is one line and status 2."""
    warnings.filterwarnings("ignore", "Image size", module=r"PIL\.")  # a decompression bomb, which is refused in our own words
    try:
        if distributed.world_size() > 1:
            configure_rank(sys.argv[1:])
        app()
    except UserError as mistake:
        told = " ".join(str(mistake).splitlines())
        if distributed.world_size() == 1:
            print(f"regard: {told}", file=sys.stderr)
        else:
            distributed.report_failure(told)
        distributed.exit_process(2)
    except Interrupted as interruption:
        told = f"interrupted; {interruption.cure}"
        if distributed.world_size() == 1:
            print(f"regard: {told}", file=sys.stderr)
        else:
            distributed.report_failure(told)
        distributed.exit_process(128 + interruption.number)
    except SystemExit as done:
        if not done.code:
            distributed.destroy_process_group()
        distributed.exit_process(done.code)


def configure_rank(words: list[str]) -> None:
    """Only the first process speaks; another one does where it is the cause of a failure."""
    sys.excepthook = distributed.report_exception
    if not distributed.is_main():
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if words and words[0] not in (*MULTI_PROCESS_VERBS, "-h", "--help"):
        raise UserError(
            f"regard {words[0]} is for one process; leave out torchrun, which is for: {', '.join(MULTI_PROCESS_VERBS)}"
        )
