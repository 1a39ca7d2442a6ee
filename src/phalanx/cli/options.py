"""Options of several commands."""

from pathlib import Path
from typing import Annotated

import typer

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="The file with the token. Default: the file in PHALANX_TOKEN_FILE, or the token in PHALANX_TOKEN.",
        show_default=False,
    ),
]
Patience = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How soon to notice that a machine or its network is gone. Default: PHALANX_PATIENCE, or 5.",
        show_default=False,
    ),
]
Stall = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="How long to wait for a worker that does nothing. Default: PHALANX_STALL, or 30.",
        show_default=False,
    ),
]
LogDir = Annotated[
    Path | None,
    typer.Option(
        "--log-dir",
        help="Also write the output of each rank to a file of its own here, such as rank-0.log.",
        show_default=False,
    ),
]
TlsCert = Annotated[Path | None, typer.Option(help="Use TLS: this side's certificate.", show_default=False)]
TlsKey = Annotated[Path | None, typer.Option(help="The key of that certificate.", show_default=False)]
TlsCa = Annotated[
    Path | None, typer.Option(help="The CA that must have signed the other side's certificate.", show_default=False)
]
