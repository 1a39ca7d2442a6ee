"""Options that several commands have."""

from pathlib import Path
from typing import Annotated

import typer

TokenFile = Annotated[
    Path | None,
    typer.Option(
        help="The file with the token. Else PHALANX_TOKEN_FILE names it, or PHALANX_TOKEN holds the token.",
        show_default=False,
    ),
]
TlsCert = Annotated[Path | None, typer.Option(help="Use TLS: this side's certificate.", show_default=False)]
TlsKey = Annotated[Path | None, typer.Option(help="The key of that certificate.", show_default=False)]
TlsCa = Annotated[Path | None, typer.Option(help="Who must have signed the other sides'.", show_default=False)]
