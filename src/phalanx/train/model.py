"""A decoder-only transformer, written plainly.

Letters in comments: B sequences, T tokens of each, W width, H heads, K kv_heads, D width of a head, V vocabulary.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import Tensor, nn

from phalanx.errors import ConfigError
from phalanx.train.config import ModelConfig

_DEVIATION = 0.02
_EPSILON = 1e-6


class Transformer(nn.Module):  # type: ignore[misc]  # torch is untyped to mypy
    """A decoder-only transformer. Initial weights come from torch's random state: seed it first.

    It has no buffers, so its parameters are its whole state.
    """

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(vocabulary, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.layers))
        self.final_norm = nn.RMSNorm(config.width, eps=_EPSILON)
        if not config.tied:
            self.lm_head = nn.Linear(config.width, vocabulary, bias=False)
        self._initialise()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, T, V) for tokens (B, T)."""
        rotation = _angles(tokens.shape[1], self.config, tokens.device)
        x = self.dropout(self.embedding(tokens))  # B T W
        for block in self.blocks:
            x = block(x, rotation)
        head = self.embedding if self.config.tied else self.lm_head
        return F.linear(self.final_norm(x), head.weight)

    def _initialise(self) -> None:
        # Scale what each block adds to the residual, so that its variance does not grow with the number of layers.
        residual = _DEVIATION / math.sqrt(2 * self.config.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:
                is_residual = name.endswith(("output.weight", "down.weight"))
                nn.init.normal_(parameter, std=residual if is_residual else _DEVIATION)


class TransformerBlock(nn.Module):  # type: ignore[misc]
    """Attention, then an MLP, each with a norm before it and a residual connection around it.

    Its nine parameters are in this order: query, key, value, output, gate, up, down, input_norm, post_norm.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.mlp = MLP(config)
        self.input_norm = nn.RMSNorm(config.width, eps=_EPSILON)
        self.post_norm = nn.RMSNorm(config.width, eps=_EPSILON)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return x (B, T, W) after this block; ``rotation`` holds the cosines and sines of the positions."""
        x = x + self.dropout(self.attention(self.input_norm(x), rotation))
        return x + self.dropout(self.mlp(self.post_norm(x)))


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention. Each key and value head serves heads / kv_heads query heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        kv_width = config.kv_heads * config.head_width
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, kv_width, bias=False)
        self.value = nn.Linear(config.width, kv_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """Return the attention output (B, T, W) for x (B, T, W)."""
        query = _rotate(self._heads(self.query(x)), rotation)  # B H T D
        key = _rotate(self._heads(self.key(x)), rotation)  # B K T D
        value = self._heads(self.value(x))
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(seen.transpose(1, 2).flatten(2))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_width)).transpose(1, 2)


class MLP(nn.Module):  # type: ignore[misc]
    """A SwiGLU layer."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output (B, T, W) for x (B, T, W)."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


def loss(model: nn.Module, batch: Tensor) -> Tensor:
    """Return the mean cross entropy of the next tokens of a batch (B, T + 1), in nats and f32."""
    logits = model(batch[:, :-1])
    return F.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())


def generate(
    model: nn.Module, prompt_tokens: Sequence[int], length: int, *, temperature: float, seed: int, context: int
) -> list[int]:
    """Return ``length`` tokens that follow the prompt, drawn one by one; temperature 0 always takes the likeliest.

    The model sees ``context`` tokens at most. A seed gives the same draws on every device.
    """
    if not prompt_tokens:
        raise ConfigError("the prompt is empty: give at least one token to continue")
    if not 0 <= temperature < math.inf:
        raise ConfigError(f"a temperature cannot be {temperature}: use 0 for the likeliest text, or about 1")
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt_tokens)
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        for _ in range(length):
            logits = model(torch.tensor([tokens[-context:]], device=device))[0, -1].float().cpu()
            tokens.append(_draw(logits, temperature, generator))
    model.train(was_training)
    return tokens[len(prompt_tokens) :]


def _angles(length: int, config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    # Computed each time, which costs little: a buffer would be state, to be averaged and saved.
    exponents = torch.arange(0, config.head_width, 2, device=device, dtype=torch.float32) / config.head_width
    positions = torch.arange(length, device=device, dtype=torch.float32)
    angles = torch.outer(positions, config.rope_base**-exponents)  # T D/2
    return angles.cos(), angles.sin()


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = rotation
    left, right = x.chunk(2, dim=-1)  # multiplied in f32, because bf16 rounds too coarsely
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(x.dtype)


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> int:
    if temperature == 0:
        return int(logits.argmax())
    return int(torch.multinomial(torch.softmax(logits / temperature, dim=-1), 1, generator=generator))
