"""What no verb foresaw: closed streams, full disks, too little memory, and bugs, of which a report is written."""

import os
import platform
import sys
import tempfile
import traceback
from pathlib import Path

OUT_OF_MEMORY = ("not enough memory", "out of memory", "allocate memory", "Cannot allocate")


def open_closed_streams() -> None:
    """Open the null device in place of closed standard streams: otherwise the next file that is opened would take their place."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(handle)
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def take_debug_flag(arguments: list[str]) -> bool:
    """Remove --debug from the options of a command line, wherever it is; return whether it was there."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--debug" not in options:
        return False
    arguments.remove("--debug")
    return True


def describe_failure(error: Exception) -> tuple[int, str]:
    """Return the exit status and the one line for an exception that no verb foresaw."""
    reason = " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.filename is None and error.strerror is not None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115  the rest of the output has nowhere to go
        return 2, f"cannot write standard output: {error.strerror}; the output is not complete"
    if isinstance(error, OSError) and error.strerror is not None:
        return 2, f"{str(error.filename)[:200]}: {error.strerror}"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(sign in reason for sign in OUT_OF_MEMORY)):
        return 2, f"there is not enough memory ({reason or 'MemoryError'}); make the model, the batch or the input smaller"
    what = f"{type(error).__name__}: {reason}" if reason else type(error).__name__
    return 1, f"this is a bug in regard, not your mistake ({what}); {write_report(error)}"


def write_report(error: Exception) -> str:
    """Write the traceback and the versions to a file; return where it is, and what to do with it."""
    from regard import __version__

    trace = "".join(traceback.format_exception(error))
    text = f"regard {__version__}, Python {platform.python_version()}, {platform.platform()}\n{sys.argv}\n\n{trace}"
    try:
        handle, path = tempfile.mkstemp(prefix="regard-report-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as problem:
        return f"no report could be written ({problem.strerror}): run it again with --debug and report the traceback"
    return f"please report it with {path}; --debug shows the traceback"
