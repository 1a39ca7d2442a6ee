"""``phalanx generate`` and ``phalanx reproduce``: write text with a run's model, and repeat a lane that halted it."""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from phalanx.errors import ConfigError


def generate(
    run_dir: Annotated[Path, typer.Argument(metavar="RUN_DIR", help="The directory of a run.")],
    *,
    prompt: Annotated[str, typer.Option(help="How the text begins.")] = "def ",
    length: Annotated[int, typer.Option(help="How many tokens to write.", min=1)] = 400,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.", min=0.0)] = 0.8,
    seed: Annotated[int, typer.Option(help="Seed of the random choices.")] = 0,
) -> None:
    """Write text with the model of a run's last checkpoint."""
    import torch  # noqa: PLC0415 - it takes seconds, which --help should not

    from phalanx.train import checkpoint, model  # noqa: PLC0415
    from phalanx.train.rundir import RunDir, read_config  # noqa: PLC0415

    run = RunDir.open(run_dir)
    config = read_config(run.config)
    found = checkpoint.load_latest(run.path, config.model)
    if not found.facts["is_bytes"]:
        raise ConfigError(
            f"{run_dir} was trained on the tokens of {config.data.path}, which Phalanx cannot turn into text"
        )
    weights = found.files["model"]
    transformer = model.Transformer(config.model, len(weights["embedding.weight"]))
    transformer.load_state_dict(weights)
    torch.set_num_threads(config.run.threads_per_worker)
    start = os.fsencode(prompt)  # the bytes as typed, even if they are not valid text
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
    """Compute again, on one worker, a lane whose gradient was not finite."""
    from phalanx.train import bundle as bundles  # noqa: PLC0415

    found = bundles.reproduce(bundle)
    print(f"step {found.step}, lane {found.lane}, samples {', '.join(map(str, found.samples))}")
    print(f"loss of each batch: {', '.join(f'{value:g}' for value in found.losses)}")
    if not found.parameters:
        print("all gradients are finite here: suspect the machine, not the model")
        raise typer.Exit(1)
    print("gradients with elements that are not finite:")
    for name, (bad, size) in found.parameters.items():
        print(f"  {name}: {bad:,} of {size:,}")
