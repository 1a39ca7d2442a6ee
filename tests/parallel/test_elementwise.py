"""Which optimizers can update a parameter in pieces is found out by trying."""

from functools import partial

import pytest
import torch
from zero_play import Lion, Scaled

from phalanx.parallel.reduction import Unit
from phalanx.parallel.zero.elementwise import choose_unit

CPU = torch.device("cpu")


class Centered(torch.optim.SGD):
    """Takes the mean off gradients that are large enough, or of groups that are told to."""

    def __init__(self, params, *, lr=0.1, least=0):
        super().__init__(params, lr=lr)
        for group in self.param_groups:
            group.setdefault("least", least)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.ndim > 1 and min(parameter.shape) > group["least"]:
                    parameter.grad.sub_(parameter.grad.mean())
        super().step()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.NAdam, Lion])
def test_what_does_the_same_to_pieces_gets_blocks(kind):
    assert choose_unit(None, partial(kind, lr=0.1), [{}], CPU) is Unit.BLOCK


@pytest.mark.parametrize("kind", [torch.optim.Adafactor, torch.optim.Muon, Scaled])
def test_what_does_not_gets_whole_parameters(kind):
    assert choose_unit(None, partial(kind, lr=0.1), [{}], CPU) is Unit.PARAMETER


def test_an_optimizer_that_spares_small_matrices_is_found_out():
    assert choose_unit(None, Centered, [{"least": 128}], CPU) is Unit.PARAMETER


def test_the_settings_of_every_group_are_tried():
    assert choose_unit(None, Centered, [{"least": 10_000}, {"least": 0}], CPU) is Unit.PARAMETER
    assert choose_unit(None, Centered, [{"least": 10_000}], CPU) is Unit.BLOCK


def test_a_group_may_have_more_than_the_optimizer_knows():
    assert choose_unit(None, torch.optim.AdamW, [{"name": "matrices", "weight_decay": 0.1}], CPU) is Unit.BLOCK


def test_trying_does_not_disturb_random_numbers():
    torch.manual_seed(0)
    expected = torch.rand(3)

    torch.manual_seed(0)
    choose_unit(None, torch.optim.AdamW, [{}], CPU)

    assert torch.equal(torch.rand(3), expected)
