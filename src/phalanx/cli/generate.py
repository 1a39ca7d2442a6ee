"""``phalanx generate`` and ``phalanx reproduce``: what a run's model writes, and why it halted."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.errors import ConfigError


def generate(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="A run that phalanx train has made.")],
    *,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "def ",
    length: Annotated[int, typer.Option(help="How many tokens to write.", min=1)] = 400,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest each time.", min=0.0)] = 0.8,
    seed: Annotated[int, typer.Option(help="Decides what is drawn.")] = 0,
) -> None:
    """Write text with the model of a run's last checkpoint."""
    import torch  # noqa: PLC0415 - takes seconds, which --help need not wait for

    from phalanx.train import checkpoint, model  # noqa: PLC0415
    from phalanx.train.config_text import parse_config  # noqa: PLC0415
    from phalanx.train.rundir import RunDir  # noqa: PLC0415

    run = RunDir.open(run_dir)
    config = parse_config(run.config.read_text(encoding="utf-8"))
    found = checkpoint.load_for_resume(run.checkpoints)
    if not found.facts["is_bytes"]:
        raise ConfigError(
            f"{run_dir} was trained on the tokens of {config.data.path}: how they are written as text is not known here"
        )
    weights = found.files["model"]
    transformer = model.Transformer(config.model, len(weights["embedding.weight"]))
    transformer.load_state_dict(weights)
    torch.set_num_threads(config.run.threads_per_worker)
    start = os.fsencode(prompt)  # as it was typed, even if that is no text
    tokens = model.generate(
        transformer,
        list(start),
        length,
        temperature=temperature,
        seed=seed,
        context=config.data.context,
    )
    sys.stdout.write((start + bytes(tokens)).decode(errors="replace") + "\n")


def reproduce(
    bundle: Annotated[Path, typer.Argument(help="A folder in the halts of a run.")],
) -> None:
    """Compute a lane again whose gradient was not finite, on one worker."""
    from phalanx.train import bundle as bundles  # noqa: PLC0415

    found = bundles.reproduce(bundle)
    print(f"step {found.step}, lane {found.lane}, samples {', '.join(map(str, found.samples))}")
    print(f"loss of each batch: {', '.join(f'{value:g}' for value in found.losses)}")
    if not found.parameters:
        print("all gradients are finite here: the machine, not the model, is to be suspected")
        raise typer.Exit(1)
    print("gradients with elements that are not finite:")
    for name, (bad, size) in found.parameters.items():
        print(f"  {name}: {bad:,} of {size:,}")
