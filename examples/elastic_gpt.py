"""A small GPT on any number of workers that may die, come back and be added while it trains: the same bits anyway.

python examples/elastic_gpt.py checkpoints

This is a run of one worker. For more, see docs/elastic.md. Given a folder, it saves checkpoints there. Started again,
it continues from the latest one.
"""

import math
import sys
from pathlib import Path

import torch
from torch import nn

import phalanx
from phalanx.checkpoint import latest_step
from phalanx.parallel import Engine, digest_weights

LANES, PER_LANE, CONTEXT, WIDTH, VOCABULARY = 8, 2, 48, 64, 128
FOLDER = sys.argv[1] if len(sys.argv) > 1 else None
STEPS = int(sys.argv[2]) if len(sys.argv) > 2 else 30
TEXT = torch.tensor([ord(letter) % VOCABULARY for letter in Path(__file__).read_text()])


class GPT(nn.Module):
    """Predicts the next letter of a text."""

    def __init__(self, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, heads, 4 * WIDTH, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for each letter that may come next."""
        hidden = self.tokens(tokens) + self.places.weight
        return self.out(self.blocks(hidden, self.mask, is_causal=True))


def batches(step: int, lane: int) -> list[torch.Tensor]:
    """Return the samples of a lane, which depend on the step and the lane alone."""
    generator = torch.Generator().manual_seed(step * LANES + lane)
    starts = torch.randint(len(TEXT) - CONTEXT, (PER_LANE,), generator=generator).tolist()
    return [torch.stack([TEXT[start : start + CONTEXT + 1] for start in starts])]


def loss(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of some samples."""
    return nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


torch.set_num_threads(1)  # more would share the cores with the other workers
torch.manual_seed(0)
model = GPT()
with phalanx.join_run(lanes=LANES, step=latest_step(FOLDER) if FOLDER else 0) as run:
    engine = Engine(
        model,
        loss,
        torch.optim.AdamW,
        run,
        lr=3e-3,
        weight_decay=0.1,
        groups=lambda _, parameter: {"weight_decay": 0.0} if parameter.ndim < 2 else {},
        schedule=lambda step: min(1.0, (step + 1) / 10) * 0.5 * (1 + math.cos(math.pi * step / 1000)),
        clip=1.0,
    )
    if FOLDER and engine.load(FOLDER):
        print(f"continuing at step {engine.step_number}, best loss {engine.extra['best']:.3f}")
    for report in engine.train(batches, STEPS):
        engine.extra["best"] = min(report.loss, engine.extra.get("best", math.inf))
        if report.step % 10 == 9:
            print(f"step {report.step + 1}: loss {report.loss:.3f}, worker {run.group.rank + 1} of {run.group.size}")
            if FOLDER:
                engine.save(FOLDER)  # all workers call it, and one of them writes
print(f"{engine.step_number} steps, weights {digest_weights(list(model.named_parameters()))[:12]}")
