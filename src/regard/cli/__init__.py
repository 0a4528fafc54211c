"""The command line: one function per verb. Modules are imported inside the verbs, so `--help` is instant."""

import os
import sys
import warnings
from pathlib import Path

from regard import distributed
from regard.cli.failure import describe_failure, open_closed_streams, take_debug_flag
from regard.cli.options import app
from regard.errors import Interrupted, UserError

# isort: off
from regard.cli import training, tuning, text, vision, show, explain, serve, plan, library  # the order of --help
# isort: on

__all__ = ["app", "explain", "library", "main", "plan", "serve", "show", "text", "training", "tuning", "vision"]


MULTI_PROCESS_VERBS = ("train", "evaluate", "translate")
"""Verbs that run in several processes under torchrun."""


MAX_MESSAGE = 2000
"""Characters of a message; a value of any length may be in it."""


def main() -> None:
    """Run a verb; a user's mistake prints one line and exits with status 2, a bug of ours one line and exits with status 1."""
    warnings.filterwarnings("ignore", "Image size", module=r"PIL\.")  # decompression bombs raise our own error
    open_closed_streams()
    debug = take_debug_flag(sys.argv)
    try:
        try:
            if distributed.world_size() > 1:
                configure_rank(sys.argv[1:])
            app()
        finally:
            sys.stdout.flush()  # a full disk is found here, not at the end of the process
    except UserError as error:
        _report(" ".join(str(error).splitlines())[:MAX_MESSAGE])
        distributed.exit_process(2)
    except Interrupted as interruption:
        _report(f"interrupted; {interruption.cure}")
        distributed.exit_process(128 + interruption.number)
    except SystemExit as done:
        if not done.code:
            distributed.destroy_process_group()
        distributed.exit_process(done.code)
    except Exception as error:
        if debug or distributed.world_size() > 1:
            raise
        status, message = describe_failure(error)
        _report(message)
        distributed.exit_process(status)


def _report(message: str) -> None:
    if distributed.world_size() == 1:
        print(f"regard: {message}", file=sys.stderr)
    else:
        distributed.report_failure(message)


def configure_rank(arguments: list[str]) -> None:
    """Silence all ranks but the main one; another rank reports only if it causes a failure."""
    sys.excepthook = distributed.report_exception
    if not distributed.is_main():
        sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if arguments and arguments[0] not in (*MULTI_PROCESS_VERBS, "-h", "--help", "--version"):
        raise UserError(
            f"regard {arguments[0]} runs in one process; start it without torchrun, "
            f"which is for: {', '.join(MULTI_PROCESS_VERBS)}"
        )
