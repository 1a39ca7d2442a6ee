import pytest
import torch_checks
from torch_ranks import run


def assert_alike(check, *arguments, size=2, tolerance=1e-5):
    """Both backends give the same, within the rounding of sums, and both ranks do."""
    found, expected = (run(check, *arguments, size=size, backend=backend) for backend in ("phalanx", "gloo"))

    for ours, theirs in zip(found, expected, strict=True):
        assert _flat(ours) == pytest.approx(_flat(theirs), rel=tolerance, abs=tolerance)


def _flat(value):
    if isinstance(value, list | tuple):
        return [number for each in value for number in _flat(each)]
    return [] if value is None else [value]


@pytest.mark.parametrize("how", ["plain", "powersgd"])
def test_ddp_trains_as_over_gloo(how):
    assert_alike(torch_checks.ddp, how)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "size"), [("plain", 3), ("view", 2), ("static", 2), ("unused", 3), ("fp16", 2), ("powersgd", 2)]
)
def test_ddp_trains_as_over_gloo_with_every_option(how, size):
    assert_alike(torch_checks.ddp, how, size=size, tolerance=1e-2 if how == "fp16" else 1e-4)


@pytest.mark.slow
def test_fsdp2_trains_as_over_gloo():
    assert_alike(torch_checks.fsdp)


@pytest.mark.slow
def test_fsdp2_divides_gradients_by_the_factor_it_was_given():
    by_size, by_factor = run(torch_checks.fsdp), run(torch_checks.fsdp, 2.0)

    assert _flat(by_factor) == pytest.approx(_flat(by_size), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("check", [torch_checks.zero, torch_checks.joined], ids=lambda check: check.__name__)
def test_zero_and_join_train_as_over_gloo(check):
    assert_alike(check)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_dtensors_and_functional_collectives_give_what_gloo_gives(size):
    assert_alike(torch_checks.tensors_in_parallel, size=size)


@pytest.mark.slow
def test_a_sharded_checkpoint_is_loaded_as_it_was_saved(tmp_path):
    assert run(torch_checks.checkpoint, str(tmp_path)) == [True, True]
