"""Programs on real workers, started in this process. Their grace is so long that a test fails if they need it."""

import os
import textwrap
import threading

import pytest

from phalanx.coordinator import Coordinator, Terms, look
from phalanx.group import Join, connect
from phalanx.launch import local
from phalanx.transport import Credentials, Deadline

GRACE_S = 100_000
IMPORTS = "import os, signal, sys\nrank = os.environ.get('PHALANX_RANK')\n"
IGNORE = "for number in (signal.SIGINT, signal.SIGTERM):\n    signal.signal(number, lambda *_: None)\n"


@pytest.fixture
def program(tmp_path):
    def make(text, **options):
        script = tmp_path / "script.py"
        script.write_text(IMPORTS + textwrap.dedent(text), encoding="utf-8")
        return local.Program(name=str(script), grace_s=GRACE_S, **options)

    return make


@pytest.mark.slow
def test_a_worker_that_dies_before_it_joins_ends_those_that_wait_for_it(program, capfd):
    text = IGNORE + "if rank == '1':\n    sys.exit('no disk')\nimport phalanx\nphalanx.connect()\n"

    status = local.run(program(text, workers=3))

    assert status == 1
    assert capfd.readouterr().err.endswith("phalanx: rank 1 failed first: it ended with exit code 1\n\nno disk\n")


@pytest.mark.slow
def test_a_signal_before_all_have_joined_ends_workers_that_do_not_heed_it(program, capfd):
    text = IGNORE + "if rank == '0':\n    os.kill(os.getppid(), signal.SIGTERM)\nwhile True:\n    signal.pause()\n"

    assert local.run(program(text)) == 128 + 15
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_rank_that_is_suspended_for_good_is_named_and_ended(program, capfd):
    text = """
        import phalanx
        signal.signal(signal.SIGTERM, lambda *_: None)
        with phalanx.connect() as group:
            group.barrier()
            if group.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            group.barrier()
    """

    status = local.run(program(text, stall_s=1.0))

    words = "phalanx: rank 1 failed first: rank 0 could not go on without it and ended with exit code 1"
    assert status == 1
    assert words in capfd.readouterr().err


def test_a_rank_that_is_suspended_before_it_joins_is_named_and_ended(program, capfd):
    text = "if rank == '1':\n    os.kill(os.getpid(), signal.SIGSTOP)\nimport phalanx\nphalanx.connect()\n"

    status = local.run(program(text, stall_s=0.5))

    words = "rank 1 failed first: it was killed by SIGKILL\n\nit was suspended for 0.5 s before it joined the group\n"
    assert status == 128 + 9
    assert words in capfd.readouterr().err


def test_lines_have_the_rank_of_the_worker_once_it_has_joined(program, capfd):
    text = """
        print("before", flush=True)
        import phalanx
        with phalanx.connect() as group:
            print("after")
            sys.exit(3)
    """
    with Coordinator(terms=Terms.exactly(2)) as coordinator:
        address, credentials = coordinator.address, Credentials()
        first = threading.Thread(target=lambda: connect(Join(coordinator=(address,), size=2)).close())
        first.start()
        while not look(address, Deadline.after(10), credentials).workers:
            pass  # so it is rank 0

        status = local.join(program(text, workers=1), address, credentials)
        first.join()

    out, err = capfd.readouterr()
    assert (status, out) == (3, "[worker 0] before\n[rank 1] after\n")
    assert err == "\nphalanx: rank 1 failed first: it ended with exit code 3 and wrote nothing to stderr\n"


def test_bytes_that_are_no_rank_do_not_end_the_launcher(program, capfd):
    text = """
        os.write(int(os.environ["PHALANX_CHANNEL"].split(":")[0]), b"hello\\n7\\n")
        import phalanx
        with phalanx.connect() as group:
            print(group.size)
    """

    assert local.run(program(text)) == 0
    assert sorted(capfd.readouterr().out.splitlines()) == ["[rank 0] 2", "[rank 1] 2"]


def test_a_program_that_inherits_the_environment_of_a_worker_writes_to_none_of_its_files(tmp_path):
    from phalanx.launch.rank_channel import RankChannel, tell_rank

    channel = RankChannel()
    name = channel.name_for(0)
    writer = channel.writer
    channel.close()
    with (tmp_path / "file").open("wb") as file:
        os.dup2(file.fileno(), writer)

        tell_rank(name, 3)

    assert (tmp_path / "file").read_bytes() == b""
    os.close(writer)
