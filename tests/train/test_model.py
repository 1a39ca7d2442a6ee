import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - as everybody writes it

from phalanx.errors import ConfigError
from phalanx.train.config import ModelConfig
from phalanx.train.model import Attention, Transformer, _angles, _rotate, generate, loss
from phalanx.train.shapes import count_parameters, list_shapes

SMALL = ModelConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=48)
NINE = [
    *("attention.query.weight", "attention.key.weight", "attention.value.weight", "attention.output.weight"),
    *("mlp.gate.weight", "mlp.up.weight", "mlp.down.weight", "input_norm.weight", "post_norm.weight"),
]


def build(config: ModelConfig = SMALL, vocabulary: int = 64) -> Transformer:
    torch.manual_seed(0)
    return Transformer(config, vocabulary)


def random_batch(sequences: int = 3, length: int = 17, vocabulary: int = 64) -> torch.Tensor:
    return torch.randint(vocabulary, (sequences, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [True, False])
def test_the_state_is_the_embedding_nine_weights_a_block_the_final_norm_and_an_untied_head(tied):
    model = build(ModelConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=48, tied=tied))

    blocks = [f"blocks.{layer}.{name}" for layer in range(2) for name in NINE]
    head = [] if tied else ["lm_head.weight"]
    assert list(model.state_dict()) == ["embedding.weight", *blocks, "final_norm.weight", *head]
    assert list(model.buffers()) == []


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        ModelConfig(layers=1, width=24, heads=6, kv_heads=1, hidden=10, tied=False),
        ModelConfig(layers=3, width=16, heads=2, kv_heads=2, hidden=5),
    ],
)
def test_parameters_are_counted_without_building_the_model(config):
    model = build(config, vocabulary=100)

    assert count_parameters(config, 100) == sum(parameter.numel() for parameter in model.parameters())
    assert list_shapes(config, 100) == {name: tuple(each.shape) for name, each in model.named_parameters()}


@pytest.mark.parametrize(
    ("config", "vocabulary", "millions"),
    [
        (ModelConfig(), 256, 1),
        (ModelConfig(layers=6, width=384, heads=6, kv_heads=6, hidden=1024), 256, 11),
        (ModelConfig(layers=12, width=768, heads=12, kv_heads=12, hidden=2048), 50304, 125),
        (ModelConfig(layers=24, width=1024, heads=16, kv_heads=16, hidden=2816), 50304, 350),
    ],
)
def test_configs_reach_from_one_to_350_million_parameters(config, vocabulary, millions):
    assert count_parameters(config, vocabulary) == pytest.approx(millions * 1e6, rel=0.2)


def test_no_token_sees_those_after_it():
    model = build()
    tokens = random_batch()
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 64

    before, after = model(tokens), model(changed)

    assert before.shape == (3, 17, 64)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert (before[:, 9:] - after[:, 9:]).abs().amax(dim=(0, 2)).min() > 0


def test_attention_equals_its_formula_and_so_do_its_gradients():
    torch.manual_seed(0)
    attention = Attention(SMALL).double()
    x = torch.randn(2, 7, 32, dtype=torch.float64)
    turn = _angles(7, SMALL, torch.device("cpu"))
    parameters = list(attention.parameters())

    got = attention(x, turn)
    expected = attend_by_formula(attention, x, turn)

    torch.testing.assert_close(got, expected)
    weights = torch.randn_like(got)
    torch.testing.assert_close(
        torch.autograd.grad(got, parameters, weights), torch.autograd.grad(expected, parameters, weights)
    )


def attend_by_formula(attention: Attention, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    queries, keys, values = (
        project(x).split(8, dim=-1) for project in (attention.query, attention.key, attention.value)
    )
    later = torch.ones(7, 7, dtype=torch.bool).triu(1)
    seen = []
    for head, query in enumerate(queries):
        scores = _rotate(query, turn) @ _rotate(keys[head // 2], turn).transpose(1, 2) / math.sqrt(8)
        seen.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ values[head // 2])
    return attention.output(torch.cat(seen, dim=-1))


def test_what_one_token_asks_of_another_depends_on_their_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(2, 1, SMALL.head_width).expand(2, 12, -1)
    turn = _angles(12, SMALL, torch.device("cpu"))

    scores = _rotate(query, turn) @ _rotate(key, turn).T

    torch.testing.assert_close(scores[1:, 1:], scores[:-1, :-1])
    torch.testing.assert_close(scores[0, 0], query[0] @ key[0])
    assert len(scores[0].unique()) == 12


def test_first_weights_are_small_and_what_blocks_add_is_smaller_with_more_layers():
    model = build(ModelConfig(layers=8, width=128, hidden=256), vocabulary=256)

    deviations = {name: float(parameter.detach().std()) for name, parameter in model.named_parameters()}
    assert deviations["embedding.weight"] == pytest.approx(0.02, rel=0.05)
    assert deviations["blocks.3.attention.query.weight"] == pytest.approx(0.02, rel=0.05)
    assert deviations["blocks.3.attention.output.weight"] == pytest.approx(0.02 / 4, rel=0.05)
    assert deviations["blocks.3.mlp.down.weight"] == pytest.approx(0.02 / 4, rel=0.05)
    assert bool((model.final_norm.weight == 1).all())


def test_the_loss_is_the_mean_cross_entropy_of_each_next_token():
    model = build()
    batch = random_batch()

    got = loss(model, batch)

    chances = F.log_softmax(model(batch[:, :-1]), dim=-1)
    expected = -chances.gather(2, batch[:, 1:, None]).mean()
    torch.testing.assert_close(got, expected)
    assert float(got.detach()) == pytest.approx(math.log(64), rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_every_parameter_gets_a_gradient_and_learning_lowers_the_loss(tied):
    model = build(ModelConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=48, tied=tied))
    batch = random_batch()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        losses.append(float(value.detach()))

    assert all(bool(parameter.grad.any()) for parameter in model.parameters())
    assert losses[-1] < losses[0] / 2


def test_dropout_drops_only_while_training():
    model = build(ModelConfig(layers=2, width=32, heads=4, kv_heads=2, hidden=48, dropout=0.5))
    tokens = random_batch()

    training = [model(tokens) for _ in range(2)]
    model.eval()
    evaluating = [model(tokens) for _ in range(2)]

    assert not torch.equal(*training)
    assert torch.equal(*evaluating)


def test_in_bf16_autocast_loss_and_gradients_stay_f32_and_close():
    model = build()
    batch = random_batch()
    exact = loss(model, batch)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = loss(model, batch)
    rounded.backward()

    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=1e-2, atol=0)
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_a_model_in_bf16_has_its_loss_in_f32():
    model = build().bfloat16()

    assert loss(model, random_batch()).dtype == torch.float32


@pytest.mark.slow
def test_the_whole_model_is_one_graph_to_the_compiler():
    model = build()
    batch = random_batch()

    compiled = torch.compile(model, backend="eager", fullgraph=True)

    torch.testing.assert_close(loss(compiled, batch), loss(model, batch))


def test_generated_tokens_are_a_function_of_the_seed_and_leave_everything_as_it_was():
    model = build()
    state = torch.get_rng_state()

    texts = [generate(model, [1, 2], 12, temperature=1.0, seed=seed, context=8) for seed in (0, 0, 1)]

    assert texts[0] == texts[1] != texts[2]
    assert [len(text) for text in texts] == [12, 12, 12]
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_at_temperature_zero_each_token_is_the_likeliest_after_the_context():
    model = build()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10)  # so that every token seen has a say

    text = generate(model, [1, 2, 3], 20, temperature=0, seed=0, context=4)

    tokens = [1, 2, 3, *text]
    for end in range(3, 23):
        assert tokens[end] == int(model(torch.tensor([tokens[max(end - 4, 0) : end]]))[0, -1].argmax())


@pytest.mark.parametrize(
    ("prompt", "temperature", "words"),
    [([], 1.0, "the prompt is empty"), ([1], -1.0, "cannot be -1.0"), ([1], math.nan, "cannot be nan")],
)
def test_what_cannot_be_generated_is_refused(prompt, temperature, words):
    with pytest.raises(ConfigError, match=words):
        generate(build(), prompt, 1, temperature=temperature, seed=0, context=8)
