"""What the environment says about a group of torch.distributed."""

import os

import pytest

from phalanx.errors import ConfigError
from phalanx.launch.env import read_outer_launch
from phalanx.launch.torch_env import has_torch_address, keep_gloo_local, read_local_rank

TORCHRUN = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
NAMES = (*TORCHRUN, "LOCAL_RANK", "PHALANX_RANK", "PHALANX_SIZE", "PHALANX_JOB", "PHALANX_COORDINATOR", "SLURM_LOCALID")


@pytest.fixture
def environ(monkeypatch):
    """An environment that no launcher has changed, and a way to change it."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return lambda **names: [monkeypatch.setenv(name, value) for name, value in names.items()]


@pytest.mark.parametrize("name", ["LOCAL_RANK", "SLURM_LOCALID", "PHALANX_RANK"])
def test_launchers_say_which_worker_of_the_machine_this_is(environ, name):
    assert read_local_rank() == 0

    environ(**{name: "3"})

    assert read_local_rank() == 3


def test_a_local_rank_that_is_no_number_is_refused(environ):
    environ(LOCAL_RANK="first")

    with pytest.raises(ConfigError, match="LOCAL_RANK must be a number of 0 or more, not 'first'"):
        read_local_rank()


def test_torch_needs_all_four_variables(environ):
    environ(RANK="0", WORLD_SIZE="2", MASTER_ADDR="node1")
    assert not has_torch_address()

    environ(MASTER_PORT="29500")

    assert has_torch_address()


def test_a_launcher_that_starts_one_worker_is_a_launcher_too(environ):
    assert read_outer_launch() is None

    environ(**TORCHRUN)

    launch = read_outer_launch()
    assert (launch.rank, launch.size) == (0, 1)


def test_a_worker_that_we_have_started_has_no_other_launcher(environ):
    environ(**TORCHRUN, PHALANX_RANK="0", PHALANX_SIZE="2", PHALANX_JOB="ours", PHALANX_COORDINATOR="127.0.0.1:7000")

    assert read_outer_launch() is None


def test_gloo_stays_on_this_machine_unless_the_user_says_otherwise(environ, monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth1")

    keep_gloo_local()

    assert os.environ["GLOO_SOCKET_IFNAME"] == "eth1"
