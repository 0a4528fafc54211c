"""The command line: one verb per function. Imports stand inside the verbs, so that --help is instant."""

import sys

from regard.cli.options import app
from regard.errors import Interrupted, Mistake

# isort: off
from regard.cli import learning, texts, pictures, seeing, serving, planning       # the order of --help
# isort: on

__all__ = ["app", "learning", "main", "pictures", "planning", "seeing", "serving", "texts"]


def main() -> None:
    """Run a verb; what the user got wrong is one line and status 2."""
    try:
        app()
    except Mistake as mistake:
        print(f"regard: {mistake}", file=sys.stderr)
        sys.exit(2)
    except Interrupted as interruption:
        print("regard: interrupted; everything is saved, go on with: regard train RUN --resume", file=sys.stderr)
        sys.exit(128 + interruption.number)
