"""Options of the benchmarks that train."""

from typing import Annotated

import typer

Ranks = Annotated[str, typer.Option(help="How many workers, each of one thread, as in 2,4.")]
Systems = Annotated[str, typer.Option(help="What to measure.")]
Rounds = Annotated[int, typer.Option(help="How many steps each system takes.", min=1)]
Tokens = Annotated[int, typer.Option(help="Tokens of a sequence.", min=1)]
Batch = Annotated[int, typer.Option(help="Sequences of each worker and step.", min=1)]
Width = Annotated[int, typer.Option(help="Of the model; 384 gives about 11 M parameters.")]
Fused = Annotated[bool, typer.Option("--fused", help="Use AdamW(fused=True), not torch's default.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
