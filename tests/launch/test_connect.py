import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from phalanx.coordinator import Coordinator, Terms
from phalanx.errors import ConfigError, ConnectError, JoinRefused, PeerLost, ProtocolError
from phalanx.launch import connect
from phalanx.launch.connect import is_elsewhere
from phalanx.transport import format_address


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (JoinRefused("refused: this is the coordinator of job 'a', not of 'b'"), True),
        (JoinRefused("refused: the group is complete: start again"), True),
        (JoinRefused("refused: rank 1 is taken"), False),
        (ConnectError("it hung up"), True),
        (ConnectError("no link to rank 2", peer=2), False),
        (ProtocolError("no frame"), True),
        (PeerLost("rank 2 went away", peer=2), False),
        (ConfigError("nonsense"), False),
    ],
)
def test_only_who_is_not_our_coordinator_is_passed_over(error, expected):
    assert is_elsewhere(error) is expected


def test_data_goes_over_what_there_is():
    with pytest.raises(ConfigError, match="over must be auto or tcp, not 'pigeon'"):
        connect(over="pigeon")


def free_address():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{holder.getsockname()[1]}"


def test_a_program_with_its_own_launcher_says_who_and_where():
    address = free_address()

    def work(rank):
        with connect(address, rank=rank, size=3, timeout_s=60) as group:
            return group.rank, group.all_gather(np.array([rank])).ravel().tolist()

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(work, range(3))) == [(rank, [0, 1, 2]) for rank in range(3)]


def test_an_address_alone_joins_the_coordinator_that_runs_there():
    with Coordinator(terms=Terms.exactly(2)) as coordinator, ThreadPoolExecutor(2) as pool:
        address = format_address(coordinator.address)

        def work(_):
            with connect(address, timeout_s=60) as group:
                return group.size

        assert list(pool.map(work, range(2))) == [2, 2]


def test_rank_0_of_1_needs_nobody():
    with connect("127.0.0.1:1", rank=0, size=1) as group:
        assert group.size == 1


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ([], {"rank": 0, "size": 2}, "pass the address of rank 0 too"),
        (["127.0.0.1:7000"], {"rank": 0}, "rank and size belong together"),
        (["127.0.0.1:7000"], {"size": 2}, "rank and size belong together"),
        (["127.0.0.1:7000"], {"rank": 2, "size": 2}, "there is no rank 2 in a group of 2"),
        (["127.0.0.1:0"], {"rank": 0, "size": 2}, "must have a port that all ranks know, not 0"),
        (["nowhere"], {}, "is no address"),
        (["192.0.2.1:7000"], {"rank": 0, "size": 2}, "ranks on several machines need a token"),
    ],
)
def test_half_an_answer_about_the_group_is_refused(arguments, options, words, monkeypatch):
    monkeypatch.delenv("PHALANX_TOKEN", raising=False)

    with pytest.raises(ConfigError, match=words):
        connect(*arguments, **options, timeout_s=5)


@pytest.mark.slow
def test_a_worker_imports_what_its_optimizer_needs_before_it_joins_a_run():
    script = (
        "import sys, torch, phalanx\n"
        "with phalanx.join_run(lanes=1):\n"
        "    before = set(sys.modules)\n"
        "    torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])\n"
        "    print(len(set(sys.modules) - before))\n"
    )

    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=240)

    assert int(done.stdout) < 10
