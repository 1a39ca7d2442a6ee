import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import PHALANX, Watched, finish, started, write_script
from training import wait_until, workers_of

from phalanx.coordinator import Coordinator, Terms
from phalanx.launch.env import find_launch

pytestmark = pytest.mark.slow  # real processes, all of them

ADD_UP = """
    with phalanx.connect(timeout_s=30) as group:
        array = np.array([group.rank + 1.0])
        group.all_reduce(array)
        sys.stdout.write(f"rank {group.rank} of {group.size}: {array[0]:g}\\n")
"""
WAIT_FOREVER = """
    with phalanx.connect() as group:
        child = subprocess.Popen(["sleep", "1000"])
        sys.stdout.write(f"pids {os.getpid()} {child.pid}\\n")
        group.barrier()
        if group.rank == 0:
            signal.pause()
        group.barrier()
"""


def lines_of(text, rank):
    mark = f"[rank {rank}] "
    return [line.removeprefix(mark) for line in text.splitlines() if line.startswith(mark)]


def pids_of(launcher, size):
    """The process of each rank and its child, as they write them."""
    found = [launcher.stdout.readline().split()[-2:] for _ in range(size)]
    return [int(pid) for pair in found for pid in pair]


def shared_memory_of(pids):
    """The files of shared memory that processes have mapped, by name."""
    maps = "".join(Path(f"/proc/{pid}/maps").read_text(encoding="utf-8") for pid in pids)
    return {Path(line.split(maxsplit=5)[5]) for line in maps.splitlines() if re.search("/(dev/shm|memfd:)", line)}


@pytest.mark.parametrize("options", [[], ["--over", "tcp"], ["--hosts", 2]])
def test_a_script_finds_its_group(tmp_path, options):
    ended = finish([*PHALANX, "run", "-n", 4, *options, write_script(tmp_path, ADD_UP)])

    assert (ended.returncode, ended.stderr) == (0, "")
    assert sorted(ended.stdout.splitlines()) == [f"[rank {rank}] rank {rank} of 4: 10" for rank in range(4)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], "((0, 1, 2),)"), (["--hosts", 2], "((0, 1), (2,))"), (["--over", "tcp"], "((0,), (1,), (2,))")],
)
def test_options_say_who_shares_memory(tmp_path, options, expected):
    script = write_script(tmp_path, "with phalanx.connect() as group:\n    print(group.hosts)\n")

    ended = finish([*PHALANX, "run", "-n", 3, *options, script])

    assert [lines_of(ended.stdout, rank) for rank in range(3)] == [[expected]] * 3


def test_a_worker_runs_as_if_python_had_started_it(tmp_path):
    script = write_script(tmp_path, "print(__name__, sys.argv, sys.path[0])\n")

    ended = finish([*PHALANX, "run", "-n", 1, script, "-n", "5", "--help"])

    assert lines_of(ended.stdout, 0) == [f"__main__ {[str(script), '-n', '5', '--help']} {tmp_path}"]


def test_a_module_can_be_run(tmp_path):
    ended = finish([*PHALANX, "run", "-n", 1, "-m", "json.tool", "--help"])

    assert lines_of(ended.stdout, 0)[0].startswith("usage: python -m json.tool")


def test_output_comes_by_whole_lines_whatever_is_written(tmp_path):
    script = write_script(
        tmp_path,
        """
        rank = os.environ["PHALANX_RANK"].encode()
        for stream in (1, 2):
            for _ in range(200):
                for part in (rank * 300, rank * 300, b"\\n"):
                    os.write(stream, part)
            os.write(stream, rank * 300_000 + b"\\n")
            os.write(stream, b"\\xff\\x00\\x80\\n" + b"no end")
        """,
    )

    ended = subprocess.run([*PHALANX, "run", "-n", "2", str(script)], capture_output=True, check=True)

    for text in (ended.stdout.decode(errors="replace"), ended.stderr.decode(errors="replace")):
        for rank in range(2):
            lines = lines_of(text.replace("\x00", "0"), rank)
            assert lines[:200] == [str(rank) * 600] * 200
            assert "".join(lines[200:-2]) == str(rank) * 300_000
            assert lines[-2:] == ["\N{REPLACEMENT CHARACTER}0\N{REPLACEMENT CHARACTER}", "no end"]


def test_the_first_failure_is_reported_with_its_traceback_and_status(tmp_path):
    script = write_script(
        tmp_path,
        """
        with phalanx.connect() as group:
            group.barrier()
            if group.rank == 1:
                raise ValueError("boom")
            group.barrier()
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 3, script])

    block = ended.stderr.rpartition("\nphalanx: ")[2]
    assert ended.returncode == 1
    assert block.startswith("rank 1 failed first: it ended with exit code 1\n\nTraceback (most recent call last)")
    assert block.endswith("ValueError: boom\n")
    assert "runpy" not in block
    words = "phalanx.errors.PeerLost: rank 1 failed: ValueError: boom; rank 1 is process "
    assert lines_of(ended.stderr, 0)[-1].startswith(words)


def test_a_launcher_without_descriptors_says_so_in_one_line(tmp_path):
    script = write_script(tmp_path, "signal.pause()")

    ended = finish(["bash", "-c", 'ulimit -n 18 && exec "$@"', "bash", *PHALANX, "run", "-n", 8, script])

    assert ended.returncode == 1
    assert re.fullmatch(r"phalanx: cannot start rank \d: this process may have 18 open files .*\n", ended.stderr)


def test_a_worker_that_exits_gives_its_status(tmp_path):
    script = write_script(
        tmp_path,
        """
        group = phalanx.connect()
        if group.rank == 2:
            sys.exit("I have had enough")
        group.barrier()
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 3, script])

    assert ended.returncode == 1
    assert ended.stderr.endswith("phalanx: rank 2 failed first: it ended with exit code 1\n\nI have had enough\n")


def test_a_worker_that_fails_without_a_with_block_tells_the_others_why(tmp_path):
    script = write_script(
        tmp_path,
        """
        group = phalanx.connect(timeout_s=30)
        group.barrier()
        if group.rank == 1:
            raise ValueError("bad batch 17")
        try:
            group.barrier()
        except phalanx.PeerLost as error:
            print(error)
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 2, script])

    assert "rank 1 failed: ValueError: bad batch 17" in ended.stdout


def test_a_killed_worker_is_named_with_its_signal(tmp_path):
    script = write_script(
        tmp_path,
        """
        with phalanx.connect() as group:
            if group.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            group.barrier()
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 3, script])

    assert ended.returncode == 128 + signal.SIGKILL
    assert ended.stderr.endswith("phalanx: rank 1 failed first: it was killed by SIGKILL and wrote nothing to stderr\n")
    assert "PeerLost: rank 1 went away" in lines_of(ended.stderr, 0)[-1]


def test_workers_that_do_not_notice_a_failure_are_stopped(tmp_path):
    script = write_script(
        tmp_path,
        """
        if os.environ["PHALANX_RANK"] == "0":
            signal.pause()
        sys.exit(7)
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 2, script])

    assert ended.returncode == 7
    assert "rank 1 failed first: it ended with exit code 7" in ended.stderr


def test_a_program_connects_again_when_all_have_left(tmp_path):
    script = write_script(
        tmp_path,
        """
        for _ in range(3):
            with phalanx.connect() as group:
                print(group.epoch, group.rank, group.size)
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 2, script])

    assert ended.returncode == 0, ended.stderr
    for rank in range(2):
        assert re.findall(rf"\[rank {rank}\] (\d) {rank} 2", ended.stdout) == ["1", "2", "3"]


def test_connecting_again_while_the_group_is_there_is_refused_in_words(tmp_path):
    script = write_script(
        tmp_path,
        """
        group = phalanx.connect()
        group.barrier()
        phalanx.connect()
        """,
    )

    ended = finish([*PHALANX, "run", "-n", 2, script])

    assert ended.returncode == 1
    assert ended.stderr.endswith("a program that connects again has to close its group first\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_launcher_ends_everything(tmp_path, number):
    with started([*PHALANX, "run", "-n", 3, write_script(tmp_path, WAIT_FOREVER)]) as launcher:
        watched = Watched(pids_of(launcher, 3))

        launcher.send_signal(number)
        launcher.communicate()

        assert launcher.returncode == 128 + number
        assert watched.left_after(seconds=30) == []


def test_workers_that_ignore_signals_are_killed(tmp_path):
    script = write_script(
        tmp_path,
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdout.write(f"pids {os.getpid()} {os.getpid()}\\n")
        while True:
            signal.pause()
        """,
    )
    with started([*PHALANX, "run", "-n", 2, script]) as launcher:
        watched = Watched(pids_of(launcher, 2))

        launcher.send_signal(signal.SIGINT)
        launcher.communicate()

        assert launcher.returncode == 130
        assert watched.left_after(seconds=30) == []


def test_children_of_a_worker_end_with_it(tmp_path):
    script = write_script(
        tmp_path,
        """
        child = subprocess.Popen(["sleep", "1000"])
        sys.stdout.write(f"pids {os.getpid()} {child.pid}\\n")
        signal.sigtimedwait([signal.SIGUSR1], 1)  # until the test watches both
        """,
    )
    with started([*PHALANX, "run", "-n", 1, script]) as launcher:
        watched = Watched(pids_of(launcher, 1))

        launcher.communicate()

        assert launcher.returncode == 0
        assert watched.left_after(seconds=30) == []


def test_nobody_reading_the_output_ends_everything(tmp_path):
    script = write_script(tmp_path, "while True:\n    print(os.getpid(), os.getpid())\n")
    with started([*PHALANX, "run", "-n", 1, script]) as launcher:
        watched = Watched(set(pids_of(launcher, 1)))

        launcher.stdout.close()
        complaints = launcher.stderr.read()

        assert launcher.wait() == 128 + signal.SIGPIPE
        assert complaints == ""
        assert watched.left_after(seconds=30) == []


@pytest.mark.parametrize("who", ["the launcher", "everybody"])
def test_nothing_is_left_after_kill_9(tmp_path, who):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with started([*PHALANX, "run", "-n", 3, write_script(tmp_path, WAIT_FOREVER)], TMPDIR=str(temporary)) as launcher:
        pids = pids_of(launcher, 3)
        workers, children = Watched(pids[0::2]), Watched(pids[1::2])
        shared = shared_memory_of(pids[0::2])
        assert shared  # the arena was in use

        launcher.kill()
        if who == "everybody":
            workers.kill()

        assert workers.left_after(seconds=30) == []
        children.kill()  # nobody else can: their parents had no time to
        assert children.left_after(seconds=30) == []
    assert list(temporary.iterdir()) == []
    assert [file for file in shared if file.exists()] == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_a_benchmark_ends_what_it_has_started(number):
    with started([*PHALANX, "bench", "commit", "--workers", "1,1", "--steps", 10, "--json"]) as bench:
        wait_until(bench, lambda: workers_of(bench))
        watched = Watched(workers_of(bench))

        bench.send_signal(number)
        _, err = bench.communicate()

        assert (bench.returncode, err) == (128 + number, "")
        assert watched.left_after(seconds=30) == []


def test_alone_a_script_is_a_group_of_one(tmp_path):
    ended = finish([sys.executable, write_script(tmp_path, ADD_UP)])

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "rank 0 of 1: 1\n", "")


def test_torchrun_starts_a_group(tmp_path):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    torchrun = Path(sys.executable).parent / "torchrun"

    ended = finish([torchrun, "--standalone", "--nproc-per-node", 2, write_script(tmp_path, ADD_UP)])

    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == ["rank 0 of 2: 3", "rank 1 of 2: 3"]


def test_mpirun_starts_a_group(tmp_path):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed")
    options = ["--oversubscribe", *(["--allow-run-as-root"] if os.getuid() == 0 else [])]

    ended = finish(["mpirun", *options, "-n", 3, sys.executable, write_script(tmp_path, ADD_UP)])

    assert ended.returncode == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == [f"rank {rank} of 3: 6" for rank in range(3)]


class TestHosted:
    """Groups whose rank 0 runs the coordinator, started as mpirun would."""

    @pytest.fixture
    def job(self):
        return uuid.uuid4().hex

    @staticmethod
    def environ(job, rank, size):
        return {
            "OMPI_COMM_WORLD_RANK": str(rank),
            "OMPI_COMM_WORLD_SIZE": str(size),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(size),
            "PMIX_NAMESPACE": job,
        }

    def start(self, script, job, rank, size):
        return started([sys.executable, script], **self.environ(job, rank, size))

    def test_a_second_group_may_follow_the_first(self, tmp_path, job):
        script = write_script(tmp_path, "phalanx.connect(timeout_s=30).close()\n" + ADD_UP.replace("\n    ", "\n"))

        with self.start(script, job, 0, 2) as zero, self.start(script, job, 1, 2) as one:
            written = [each.communicate() for each in (zero, one)]

        assert written == [("rank 0 of 2: 3\n", ""), ("rank 1 of 2: 3\n", "")]

    def test_a_port_that_another_job_holds_is_passed_over(self, tmp_path, job):
        script = write_script(tmp_path, ADD_UP)
        first = find_launch(self.environ(job, 0, 2)).coordinator[0]

        with (
            Coordinator(first.host, first.port, terms=Terms.exactly(2, "another")),
            self.start(script, job, 1, 2) as one,
            self.start(script, job, 0, 2) as zero,
        ):
            written = [each.communicate() for each in (zero, one)]

        assert written == [("rank 0 of 2: 3\n", ""), ("rank 1 of 2: 3\n", "")]

    def test_the_others_go_on_when_rank_0_is_done(self, tmp_path, job):
        script = write_script(
            tmp_path,
            """
            with phalanx.connect(timeout_s=30) as group:
                if group.rank:
                    others = group.subgroup([1, 2])
                    sys.stdin.readline()
                    for _ in range(100):
                        others.barrier()
                sys.stdout.write("done\\n")
                sys.stdout.flush()
            """,
        )
        with (
            self.start(script, job, 0, 3) as zero,
            self.start(script, job, 1, 3) as one,
            self.start(script, job, 2, 3) as two,
        ):
            assert zero.stdout.readline() == "done\n"

            for each in (one, two):
                each.stdin.write("go\n")
                each.stdin.flush()
            written = [each.communicate() for each in (one, two, zero)]

        assert written == [("done\n", ""), ("done\n", ""), ("", "")]

    def test_a_rank_0_that_fails_does_not_wait_for_the_others(self, tmp_path, job):
        script = write_script(
            tmp_path,
            """
            with phalanx.connect(timeout_s=40) as group:
                if group.rank == 0:
                    raise ValueError("boom")
                sys.stdin.readline()
                group.barrier()
            """,
        )
        with self.start(script, job, 0, 2) as zero, self.start(script, job, 1, 2) as one:
            _, failure = zero.communicate(timeout=200)
            _, consequence = one.communicate("go\n")

        assert failure.endswith("ValueError: boom\n")
        assert "phalanx.errors.PeerLost: rank 0 failed: ValueError: boom; rank 0 is process " in consequence
