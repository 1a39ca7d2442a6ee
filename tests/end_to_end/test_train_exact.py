"""One digest, whoever computes it and whatever it travels through."""

import pytest
from training import LIMIT_S, bits_of, call, train, write_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(LIMIT_S)]  # real processes, all of them


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return write_config(tmp_path_factory.mktemp("exact"))


@pytest.fixture(scope="module")
def alone(config):
    """What a run of one worker says of itself, and where it is kept."""
    run = config.parent / "alone"
    return train(config, "--run-dir", run), run


@pytest.mark.parametrize(("workers", "transport"), [(2, "tcp"), (3, "star"), (8, "auto")])
def test_any_number_of_workers_over_any_transport_gives_the_bits_of_one(config, alone, tmp_path, workers, transport):
    expected, reference = alone
    run = tmp_path / "run"

    result = train(config, "--workers", workers, "--transport", transport, "--run-dir", run)

    verdict = call("verify", reference, run)
    assert {name: result[name] for name in ("steps", "loss", "eval_loss", "digest")} == {
        name: expected[name] for name in ("steps", "loss", "eval_loss", "digest")
    }
    assert (result["steps"], result["workers"]) == (30, workers)
    assert (verdict.returncode, verdict.stdout) == (0, "the same for all 30 steps, bit for bit\n")
    assert bits_of(run) == bits_of(reference)


def test_json_is_one_line_with_what_came_of_the_run(alone):
    result, run = alone

    assert list(result) == ["steps", "loss", "eval_loss", "digest", "tokens_per_s", "workers", "run_dir"]
    assert result["run_dir"] == str(run)
    assert result["tokens_per_s"] > 0
    assert len(result["digest"]) == 64


def test_another_seed_is_another_run(config, alone, tmp_path):
    _, reference = alone

    train(config, "--seed", 1, "--steps", 5, "--run-dir", tmp_path / "run")

    verdict = call("verify", reference, tmp_path / "run")
    assert verdict.returncode == 1
    assert verdict.stdout.startswith("step 0 differs: loss ")
