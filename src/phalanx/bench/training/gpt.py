"""The model of ``phalanx bench gpu``: a GPT-2 of any size."""

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor, nn

_HEAD_WIDTH = 64


class Gpt(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """Learned positions, LayerNorm, GELU, and an LM head that shares the embedding's weights."""

    def __init__(self, layers: int, width: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GptBlock(width) for _ in range(layers))
        self.final_norm = nn.LayerNorm(width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, T, V) for tokens (B, T)."""
        x = self.embedding(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.linear(self.final_norm(x), self.embedding.weight)


class GptBlock(nn.Module):  # type: ignore[misc]
    """Causal attention and an MLP, each with a norm before it and a residual connection around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return x (B, T, W) after this block."""
        heads = self.attention(self.attention_norm(x)).unflatten(-1, (3, -1, _HEAD_WIDTH))  # B T 3 H D
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean cross entropy of the next tokens of a batch (B, T + 1), with matrix products in bf16."""
    with torch.autocast(batch.device.type, torch.bfloat16):
        logits = model(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
