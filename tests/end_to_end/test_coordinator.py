import itertools
import json
import resource
import secrets
import shutil
import signal
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest
from coordinating import (
    TOKEN,
    WITH_TOKEN,
    WORKER,
    Leash,
    committed,
    make_certificates,
    run,
    running,
    serving,
    write_token,
)
from launching import PHALANX, write_script
from stepping import Stepper

from phalanx.coordinator import look
from phalanx.errors import ConnectError, Halted
from phalanx.transport import Credentials, Deadline, own_hosts, parse_address

pytestmark = pytest.mark.slow  # real processes, all of them

WITHOUT = Credentials()
SAY_HELLO = """
    with phalanx.connect(timeout_s=30) as group:
        array = np.array([group.rank + 1.0])
        group.all_reduce(array)
        sys.stdout.write(f"rank {group.rank} of {group.size}: {array[0]:g}\\n")
"""


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def take_steps(address, count, steps, leash):
    """Workers in threads; the leash holds the first of them."""
    free = Leash(limit=steps + 1)
    return [
        Stepper(parse_address(address), f"thread{number}", steps, on_step=free if number else leash)
        for number in range(count)
    ]


def begin_with_a_process(stack, address, steps):
    """Two workers in threads and one in a process, which all three have come to step 20; the leash holds them there."""
    leash = Leash(limit=1)
    workers = take_steps(address, 2, steps, leash)
    leash.wait_for(1)
    process = stack.enter_context(running([*WORKER, address, "process", ""]))
    wait_for_workers(address, 3)
    leash.let(20)
    process.wait_for("step 20 ")
    return workers, process, leash


def wait_for_workers(address, count, credentials=WITHOUT):
    """Return when so many are there, members or not."""
    deadline = Deadline.after(20)
    while len(look(parse_address(address), deadline, credentials).workers) != count:
        assert not deadline.has_passed


def became(worker):
    """What a worker in a process writes at its end."""
    status, out, err = worker.finish()
    assert (status, err) == (0, "")
    return json.loads(out.splitlines()[-1])


def restart_at(moments, journal, steps):
    """Take steps with 4 workers; kill the coordinator and start it again whenever they have come so far."""
    options = ["--workers", 4, "--patience", 3, "--journal", journal]
    leash = Leash(limit=moments[0] + 20)
    workers, address = [], "127.0.0.1:0"
    for moment, following in itertools.pairwise([*moments, steps]):
        with serving(*options, bind=address) as (coordinator, address):
            workers = workers or take_steps(address, 4, steps, leash)
            leash.wait_for(moment)
            coordinator.process.kill()
            coordinator.finish()
            leash.let(following + 20)
    with serving(*options, bind=address) as (coordinator, _):
        for worker in workers:
            worker.join()
        status, out, _ = coordinator.finish()
    assert (status, out.splitlines()[-1]) == (0, f"phalanx: the run is over: all workers left it at step {steps}")
    return workers


def test_a_coordinator_that_is_killed_and_started_again_costs_no_step(tmp_path):
    journal = tmp_path / "journal"

    workers = restart_at([25], journal, 60)

    assert [worker.applied for worker in workers] == [list(range(60))] * 4
    assert [worker.error for worker in workers] == [None] * 4
    assert committed(journal) == list(range(60))


@pytest.mark.long
def test_a_coordinator_may_be_killed_five_times_at_any_moment(tmp_path):
    journal = tmp_path / "journal"
    moments = list(itertools.accumulate(5 + secrets.randbelow(55) for _ in range(5)))

    workers = restart_at(moments, journal, 400)

    assert [worker.applied for worker in workers] == [list(range(400))] * 4, moments
    assert [worker.error for worker in workers] == [None] * 4, moments
    assert committed(journal) == list(range(400)), moments


def test_workers_of_a_coordinator_that_stays_away_end_and_say_what_to_do(tmp_path):
    leash = Leash(limit=30)
    with serving("--workers", 2, "--patience", 0.2, "--journal", tmp_path / "journal") as (coordinator, address):
        workers = take_steps(address, 2, 100, leash)
        leash.wait_for(10)
        coordinator.process.kill()
        coordinator.finish()
    leash.let(101)

    for worker in workers:
        error = worker.join().error
        step = len(worker.applied)
        assert isinstance(error, ConnectError)
        assert str(error).startswith("the coordinator went away: ")
        assert str(error).endswith(
            f", and did not take this worker back for 2.4 s; it holds step {step}: "
            "start the coordinator again on its journal, then this worker"
        )


def test_a_worker_that_is_killed_costs_the_others_no_step(stack, tmp_path):
    journal = tmp_path / "journal"
    _, address = stack.enter_context(serving("--workers", "2:3", "--patience", 3, "--journal", journal))
    workers, victim, leash = begin_with_a_process(stack, address, 60)

    victim.process.kill()
    leash.let(61)

    assert [worker.join().applied for worker in workers] == [list(range(60))] * 2
    assert [worker.error for worker in workers] == [None] * 2
    assert committed(journal) == list(range(60))


def test_a_worker_that_was_stopped_is_given_up_and_takes_part_again_later(stack, tmp_path):
    journal = tmp_path / "journal"
    options = ["--workers", "2:3", "--patience", 3, "--stall", 3, "--journal", journal]
    coordinator, address = stack.enter_context(serving(*options))
    workers, stopped, leash = begin_with_a_process(stack, address, 100)

    stopped.process.send_signal(signal.SIGSTOP)
    coordinator.wait_for("which does nothing: it is stopped")
    leash.let(40)
    leash.wait_for(40)
    stopped.process.send_signal(signal.SIGCONT)
    wait_for_workers(address, 3)
    stopped.say(100)
    leash.let(101)

    assert [worker.join().applied for worker in workers] == [list(range(100))] * 2
    assert [worker.error for worker in workers] == [None] * 2
    end = became(stopped)
    assert end["error"] == "None"
    before = end["applied"][: end["applied"].index(41)]
    assert before[-1] in (19, 20)  # it may have been done with step 20, and learns when it goes on that this counted
    assert end["applied"] == [*range(before[0], before[-1] + 1), *range(41, 100)]
    assert committed(journal) == list(range(100))


def test_a_worker_that_was_stopped_until_the_end_is_told_that_the_run_is_over(stack):
    coordinator, address = stack.enter_context(serving("--workers", "2:3", "--patience", 3, "--stall", 3))
    workers, stopped, leash = begin_with_a_process(stack, address, 40)

    stopped.process.send_signal(signal.SIGSTOP)
    coordinator.wait_for("which does nothing: it is stopped")
    leash.let(41)
    for worker in workers:
        worker.join()
    stopped.process.send_signal(signal.SIGCONT)

    words = "the coordinator refused this worker: the run is over (all workers left it at step 40): "
    assert became(stopped)["error"] == words + "start a coordinator with a new journal"


def test_a_full_disk_halts_everybody_and_the_step_does_not_count(stack, tmp_path):
    journal = tmp_path / "journal"
    leash = Leash(limit=20)
    options = ["--workers", 3, "--patience", 3, "--journal", journal]
    with serving(*options) as (coordinator, address):
        workers = take_steps(address, 3, 100, leash)
        leash.wait_for(20)

        limit = journal.stat().st_size + 1000  # room for a few lines, and a part of one
        resource.prlimit(coordinator.pid, resource.RLIMIT_FSIZE, (limit, limit))
        leash.let(101)

        errors = [worker.join().error for worker in workers]
        status, out, _ = coordinator.finish()
    count = len(workers[0].applied)
    words = (
        "the coordinator cannot write its journal: File too large; make room, and start it again on the same journal"
    )
    assert {type(error) for error in errors} == {Halted}
    assert {(str(error), error.step) for error in errors} == {(words, count)}
    assert [worker.applied for worker in workers] == [list(range(count))] * 3
    assert committed(journal) == list(range(count))
    assert (status, out.splitlines()[-1]) == (1, f"phalanx: the run is over: {words}")
    with serving(*options) as (_, address):
        assert look(parse_address(address), Deadline.after(10), WITHOUT).step == count


def join(address, *options):
    return [*PHALANX, "join", address, *options]


def ranks_in(*outs):
    """What the workers wrote, without the numbers that each launcher gives its own."""
    return sorted(line.partition("] ")[2] for out in outs for line in out.splitlines())


def test_workers_join_one_group_from_two_places(stack, tmp_path):
    token, script = write_token(tmp_path), write_script(tmp_path, SAY_HELLO)
    _, address = stack.enter_context(serving("--workers", 3, *token))

    first = stack.enter_context(running(join(address, "-n", 2, *token, "--", script)))
    second = stack.enter_context(running(join(address, "-n", 1, "--", script), PHALANX_TOKEN_FILE=str(token[1])))

    ends = [launcher.finish() for launcher in (first, second)]
    assert [(status, err) for status, _, err in ends] == [(0, "")] * 2
    assert ranks_in(*(out for _, out, _ in ends)) == [f"rank {rank} of 3: 6" for rank in range(3)]


@pytest.mark.skipif(len(own_hosts("127.0.0.1")) == 1, reason="this machine is on no network")
def test_a_coordinator_that_listens_everywhere_says_where_others_find_it(stack, tmp_path):
    token = write_token(tmp_path)
    coordinator, _ = stack.enter_context(serving("--workers", 2, *token, bind="0.0.0.0:0"))

    address = coordinator.wait_for("start workers with: phalanx join ")[0].split()[6]

    assert parse_address(address).host in own_hosts("127.0.0.1")[1:]
    wait_for_workers(address, 0, WITH_TOKEN)


def test_a_script_that_fails_on_one_worker_ends_all_places_with_its_words(stack, tmp_path):
    token = write_token(tmp_path)
    script = write_script(
        tmp_path,
        """
        with phalanx.connect(timeout_s=30) as group:
            group.barrier()
            if group.rank == 2:
                raise ValueError("boom")
            group.barrier()
        """,
    )
    _, address = stack.enter_context(serving("--workers", 3, *token))
    others = stack.enter_context(running(join(address, "-n", 2, *token, "--", script)))
    wait_for_workers(address, 2, WITH_TOKEN)

    failing = stack.enter_context(running(join(address, *token, "--", script)))

    status, _, err = failing.finish()
    block = err.rpartition("\nphalanx: ")[2]
    assert status == 1
    assert block.startswith("rank 2 failed first: it ended with exit code 1\n\nTraceback (most recent call last)")
    assert block.endswith("ValueError: boom\n")
    status, _, err = others.finish()
    assert status == 1
    assert "\nphalanx.errors.PeerLost: rank 2 failed: ValueError: boom; rank 2 is process " in err


def test_a_worker_with_the_wrong_token_or_none_is_told_so(stack, tmp_path):
    token, script = write_token(tmp_path), write_script(tmp_path, SAY_HELLO)
    other = tmp_path / "other"
    other.write_text("this is another token, also long enough", encoding="utf-8")
    coordinator, address = stack.enter_context(serving("--workers", 1, *token))

    wrong = run("join", address, "--token-file", other, "--", script)
    without = run("join", address, "--", script)

    where = f"phalanx join: cannot talk to the coordinator at {address}: "
    assert (wrong[0], without[0]) == (1, 1)
    assert wrong[2].endswith(f"{where}the token is wrong: pass the one that this coordinator was started with\n")
    hint = "this coordinator asks for a token: pass --token-file, or set PHALANX_TOKEN_FILE or PHALANX_TOKEN\n"
    assert without[2].endswith(where + hint)
    assert len(coordinator.wait_for("refused a connection from 127.0.0.1:", 2)) == 2
    assert "another token" not in wrong[2] + "".join(coordinator.lines)


def test_workers_may_be_started_before_their_coordinator_and_say_what_they_wait_for(stack, tmp_path):
    script = write_script(tmp_path, SAY_HELLO)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    # nobody listens there now
    early = stack.enter_context(running([*PHALANX, "join", address, "--", script]))
    (line,) = early.wait_for("could not be reached")

    stack.enter_context(serving("--workers", 1, bind=address))

    assert f"within 3 s: {address}: Connection refused. Is it running, and does a firewall lie between?" in line
    assert early.finish()[0] == 0


def test_workers_that_wait_for_others_in_vain_say_so(stack, tmp_path):
    script = write_script(tmp_path, "phalanx.connect(timeout_s=1)\n")
    _, address = stack.enter_context(serving("--workers", 3))

    status, _, err = run("join", address, "-n", 2, "--", script)

    assert status == 1
    assert err.endswith("ConnectError: the group was not complete within 1 s: were all workers started?\n")


def test_one_worker_too_many_is_refused(stack, tmp_path):
    script = write_script(tmp_path, "with phalanx.connect(timeout_s=30):\n    signal.pause()\n")
    _, address = stack.enter_context(serving("--workers", 1))

    status, _, err = run("join", address, "-n", 2, "--", script)

    words = "the coordinator refused this worker: the group is complete: "
    assert status == 1
    assert f"phalanx.errors.JoinRefused: {words}" in err.rpartition("failed first: it ended with exit code 1")[2]


def test_the_token_is_on_no_command_line_of_anything_that_was_started(stack, tmp_path):
    token, script = write_token(tmp_path), write_script(tmp_path, SAY_HELLO)
    coordinator, address = stack.enter_context(serving("--workers", 3, *token))
    launcher = stack.enter_context(running(join(address, "-n", 2, *token, "--", script)))
    wait_for_workers(address, 2, WITH_TOKEN)

    workers = look(parse_address(address), Deadline.after(10), WITH_TOKEN).workers

    pids = [coordinator.pid, launcher.pid, *(worker.pid for worker in workers)]
    lines = [Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8") for pid in pids]
    assert len(lines) == 4
    assert all("python" in line and TOKEN not in line for line in lines)


@pytest.fixture
def tls(tmp_path):
    """The options for TLS with certificates of one authority."""
    if not shutil.which("openssl"):
        pytest.skip("the openssl command is not installed")
    paths = make_certificates(tmp_path)
    return ["--tls-cert", paths.cert, "--tls-key", paths.key, "--tls-ca", paths.ca]


def test_with_tls_workers_join_exchange_and_are_looked_at(stack, tmp_path, tls):
    options = [*write_token(tmp_path), *tls]
    _, address = stack.enter_context(serving("--workers", 2, *options))

    status, out, err = run("join", address, "-n", 2, "--over", "tcp", *options, "--", write_script(tmp_path, SAY_HELLO))

    assert (status, err, ranks_in(out)) == (0, "", ["rank 0 of 2: 3", "rank 1 of 2: 3"])
    status, out, err = run("status", address, *options)
    assert (status, out, err) == (0, "epoch 1, step 0: waiting for workers: 0 here, at least 2 needed\n", "")


def test_who_comes_without_tls_is_told_so(stack, tmp_path, tls):
    token = write_token(tmp_path)
    coordinator, address = stack.enter_context(serving("--workers", 2, *token, *tls))

    status, _, err = run("status", address, *token, "--timeout", 1)

    assert status == 1
    assert f"{address}: it hung up on us; do both sides use TLS?" in err
    assert "TLS failed: do both sides use it" in coordinator.wait_for("refused a connection from 127.0.0.1:")[0]


def test_who_comes_with_tls_where_there_is_none_is_told_so(stack, tmp_path, tls):
    token = write_token(tmp_path)
    coordinator, address = stack.enter_context(serving("--workers", 2, *token))

    status, _, err = run("status", address, *token, *tls)

    words = f"phalanx status: cannot talk to the coordinator at {address}: TLS failed: do both sides use it, "
    assert status == 1
    assert err.startswith(f"{words}with certificates of the same authority? ")
    assert "this looks like TLS" in coordinator.wait_for("refused a connection from 127.0.0.1:")[0]
