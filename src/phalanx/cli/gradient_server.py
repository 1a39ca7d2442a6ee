"""``phalanx gradient-server``: average the gradients of workers in one process."""

import logging
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from phalanx.cli.options import TlsCa, TlsCert, TlsKey, TokenFile
from phalanx.cli.streams import go_on_without_output
from phalanx.errors import ConfigError, PhalanxError
from phalanx.gradient_server import Component, GradientServer, ModelBlock, Reduced, Whole
from phalanx.launch.env import read_credentials
from phalanx.transport import format_address, parse_address
from phalanx.wire import gradient


def gradient_server(
    *,
    bind: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes any free one.")],
    workers: Annotated[int, typer.Option(help="How many workers there are.")],
    steps: Annotated[int, typer.Option(help="How many steps to serve.")],
    samples: Annotated[
        int | None,
        typer.Option(help="Divide so many samples among the workers in each step, and average whole gradients."),
    ] = None,
    blocks: Annotated[
        int | None,
        typer.Option(help="Average so many blocks in each step, from the last to the first, then the other parts."),
    ] = None,
    weighting: Annotated[
        str, typer.Option(metavar="samples|equal", help="Weight gradients by their samples, or equally.")
    ] = "samples",
    dialect: Annotated[
        str | None, typer.Option(metavar="entrenar", help="Accept entrenar's own workers too.", show_default=False)
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Let that dialect, which has no token, listen beyond this machine.")
    ] = False,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long to wait for the workers, each time.")
    ] = 300.0,
) -> None:
    """Average the gradients of workers that can only open connections, not accept them.

    With --samples, in each step every worker gets its samples, sends a whole
    gradient, and gets the mean. With --blocks, a step is one exchange for each
    block, from the last to the first, then for the LM head, the final norm and the
    embedding.
    """
    if (samples is None) == (blocks is None):
        raise ConfigError(
            "a step needs one of --samples N, for whole gradients, and --blocks N, for one block at a time"
        )
    amount = samples if blocks is None else blocks
    if steps < 1 or amount is None or amount < 1:
        raise ConfigError(f"{steps} steps of {amount} are nothing to do: give 1 or more of each")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    go_on_without_output()
    credentials = read_credentials(token_file, tls_cert, tls_key, tls_ca)
    where = parse_address(bind)
    with GradientServer(
        where.host,
        where.port,
        workers=workers,
        weighting=weighting,
        credentials=credentials,
        dialect=dialect,
        is_insecure=insecure,
        timeout_s=timeout,
    ) as server:
        print(f"phalanx: listening on {format_address(server.address)} for {workers} workers", flush=True)
        try:
            server.wait_for_workers(timeout)
            for step in range(steps):
                _serve_step(server, step, samples, blocks)
            server.shutdown()
        except PhalanxError as error:
            print(f"phalanx gradient-server: {error}", file=sys.stderr)
            raise typer.Exit(1) from None


def _serve_step(server: GradientServer, step: int, samples: int | None, blocks: int | None) -> None:
    if samples is not None:
        server.total_samples = samples
        server.send_shards(step)
    seconds = 0.0
    for what in _parts(blocks):
        mean: Reduced = server.exchange(step, what)
        seconds += mean.seconds
    loss = f", loss {mean.loss:.6g}" if blocks is None else ""
    print(f"step {step}: {seconds * 1e3:.1f} ms{loss}", flush=True)


def _parts(blocks: int | None) -> Iterator[gradient.What]:
    """Yield what a step exchanges, in order."""
    if blocks is None:
        yield Whole()
        return
    for index in reversed(range(blocks)):
        yield ModelBlock(index, blocks)
    yield from Component
