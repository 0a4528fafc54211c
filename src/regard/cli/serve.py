"""Runs over HTTP."""

import os
import sys
from typing import Annotated

import typer

from regard.cli.options import Device, app
from regard.errors import UserError


@app.command()
def serve(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Run folders, Hugging Face folders or names on the hub; NAME=RUN sets the model's name.",
        ),
    ],
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 8000,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; one that other machines can reach needs a token in the environment variable REGARD_TOKEN."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A host name that clients use besides the address; may be repeated.")
    ] = None,
    max_batch_size: Annotated[int, typer.Option(help="Texts that a model decodes together.")] = 64,
    max_queue: Annotated[int, typer.Option(help="Texts that may wait; further ones are rejected at once.")] = 256,
    timeout: Annotated[float, typer.Option(help="Time limit per request in seconds.")] = 60.0,
    device: Device = "auto",
) -> None:
    """Serve runs over HTTP.

    The server has a JSON API, OpenAI-compatible endpoints, and a web page that shows attention.
    """
    try:
        from regard.server.connections import bind_socket, socket_url
        from regard.server.connections import serve as listen_and_serve
        from regard.server.models import load_runs
        from regard.server.settings import ServerSettings
    except ModuleNotFoundError as missing:
        raise UserError(f"serving needs {missing.name}; install it with: pip install 'regard[serve]'") from None

    settings = ServerSettings(
        host=host,
        port=port,
        token=os.environ.get("REGARD_TOKEN") or None,
        allowed_hosts=tuple(allow_host or ()),
        max_batch_size=max_batch_size,
        max_queue=max_queue,
        timeout=timeout,
    )
    bound = bind_socket(settings)
    loaded = load_runs(runs, device)
    print(f"{', '.join(loaded)} at {socket_url(bound)}", file=sys.stderr, flush=True)
    listen_and_serve(loaded, settings, bound)
