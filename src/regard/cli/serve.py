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
            help="Run folders, Hugging Face folders or names on the hub; NAME=RUN calls a model otherwise than its folder.",
        ),
    ],
    port: Annotated[int, typer.Option(help="0 is any that is free.")] = 8000,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen at; one that others can reach needs a token, in the environment variable REGARD_TOKEN."
        ),
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A name it is called by besides its address; may be repeated.")
    ] = None,
    max_batch_size: Annotated[int, typer.Option(help="Texts that a model writes at the same time.")] = 64,
    queue: Annotated[int, typer.Option(help="Texts that may wait; more are refused at once.")] = 256,
    deadline: Annotated[float, typer.Option(help="Seconds for a request.")] = 60.0,
    device: Device = "auto",
) -> None:
    """Serve runs over HTTP: an API that other tools speak, and a page to see through them."""
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
        queue=queue,
        deadline=deadline,
    )
    taken = bind_socket(settings)
    opened = load_runs(runs, device)
    print(f"{', '.join(opened)} at {socket_url(taken)}", file=sys.stderr, flush=True)
    listen_and_serve(opened, settings, taken)
