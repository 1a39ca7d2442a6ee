import os
import re
import socket
import sys
from contextlib import ExitStack

import msgspec
import pytest
from msgspec.structs import replace

from phalanx.cli import main
from phalanx.coordinator import Coordinator, Journal, Terms, look
from phalanx.transport import Credentials, Deadline, call, format_address
from phalanx.wire import Done, Hello, Leave, Purpose, Status, encode

EVERYWHERE = "0.0.0.0:0"
HERE = "127.0.0.1:0"
TOKEN = "sixteen-or-more-characters"  # noqa: S105 - it keeps nobody out


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def phalanx_command(monkeypatch, capsys):
    """Run ``phalanx`` in this process: the exit status, stdout and stderr."""
    for name in [name for name in os.environ if name.startswith("PHALANX_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["phalanx", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        written = capsys.readouterr()
        assert TOKEN not in written.out + written.err
        return ended.value.code, written.out, written.err

    return call


class TestErrors:
    """Each is one paragraph: who, what, and what next."""

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (
                ["--bind", "nowhere", "--workers", 2],
                "'nowhere' is no address: write host:port, as in 10.0.0.5:29400 or [fd00::5]:29400",
            ),
            (
                ["--bind", HERE, "--workers", "many"],
                "the number of workers is N or MIN:MAX, as in 4 or 2:8, not 'many'",
            ),
            (
                ["--bind", HERE, "--workers", "4:2"],
                "in MIN:MAX workers, MIN must be at least 1 and MAX at least MIN, not 4:2",
            ),
            (
                ["--bind", HERE, "--workers", 2, "--patience", 0],
                "--patience and PHALANX_PATIENCE are from 0.1 to 3600 seconds, not 0",
            ),
            (
                ["--bind", HERE, "--workers", 2, "--token-file", "/none"],
                "cannot read the token in /none: No such file or directory; make one with `phalanx token > /none`",
            ),
            (
                ["--bind", HERE, "--workers", 2, "--journal", "/nowhere/journal"],
                "there is no folder /nowhere for the journal: make it, or name another",
            ),
            (
                ["--bind", HERE, "--workers", 2, "--journal", "/"],
                "cannot use / as a journal: Is a directory; name another file",
            ),
            (
                ["--bind", HERE, "--workers", 2, "--tls-cert", "cert.pem"],
                "TLS needs a certificate, its key and an authority: pass --tls-key and --tls-ca too",
            ),
        ],
    )
    def test_a_coordinator_cannot_be_started_so(self, phalanx_command, options, words):
        assert phalanx_command("coordinator", *options) == (2, "", f"phalanx: {words}\n")

    @pytest.mark.parametrize(
        ("steps", "what", "count"), [(3, "--samples", 0), (3, "--samples", -1), (3, "--blocks", 0), (0, "--samples", 5)]
    )
    def test_a_gradient_server_without_anything_to_do_is_refused(self, phalanx_command, steps, what, count):
        ended = phalanx_command("gradient-server", "--bind", HERE, "--workers", 2, "--steps", steps, what, count)

        words = f"{steps} steps of {count} are nothing to do: give 1 or more of each"
        assert ended == (2, "", f"phalanx: {words}\n")

    def test_a_coordinator_that_others_can_reach_needs_a_token(self, phalanx_command):
        status, out, err = phalanx_command("coordinator", "--bind", EVERYWHERE, "--workers", 2)

        assert (status, out) == (2, "")
        assert re.fullmatch(
            r"phalanx: 0\.0\.0\.0:\d+ is reachable from other machines, and without a token anybody could join: make "
            r"one with `phalanx token > FILE` and pass --token-file FILE, or bind to 127\.0\.0\.1\n",
            err,
        )

    def test_a_port_that_is_taken_is_named(self, phalanx_command):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"

            status, out, err = phalanx_command("coordinator", "--bind", address, "--workers", 2)

        assert (status, out) == (2, "")
        assert err.startswith(f"phalanx: cannot listen on {address}: Address already in use")
        assert err.endswith("; choose another address or port\n")

    def test_a_journal_that_another_coordinator_writes_is_named(self, phalanx_command, tmp_path):
        path = tmp_path / "journal"
        with Journal(path):
            ended = phalanx_command("coordinator", "--bind", HERE, "--workers", 2, "--journal", path)

        words = f"another coordinator writes the journal {path}: stop it, or name another file"
        assert ended == (2, "", f"phalanx: {words}\n")

    def test_a_run_that_is_over_does_not_go_on(self, phalanx_command, tmp_path):
        path = tmp_path / "journal"
        with Journal(path) as journal, serve(1, patience_s=0.1, journal=journal) as coordinator, ExitStack() as stack:
            enter(stack, coordinator, "only").sendall(encode(Leave()))
            stack.close()
            assert coordinator.wait_until_over(20)

        ended = phalanx_command("coordinator", "--bind", HERE, "--workers", 2, "--journal", path)

        words = f"the run in {path} is over: all workers left it at step 0; name another journal for a new run"
        assert ended == (2, "", f"phalanx: {words}\n")

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (
                ["nowhere", "SCRIPT"],
                "'nowhere' is no address: write host:port, as in 10.0.0.5:29400 or [fd00::5]:29400",
            ),
            (
                ["127.0.0.1:0", "SCRIPT"],
                "no coordinator listens on port 0: pass the port that it printed when it was started",
            ),
            (
                ["127.0.0.1:1", "missing.py"],
                "missing.py does not exist: pass a Python script, or -m and the name of a module",
            ),
            (["127.0.0.1:1", "-n", 0, "SCRIPT"], "a program needs at least one worker, not 0: pass -n 2, for example"),
            (["127.0.0.1:1", "--over", "pigeon", "SCRIPT"], "--over must be auto or tcp, not 'pigeon'"),
        ],
    )
    def test_nobody_can_join_so(self, phalanx_command, tmp_path, arguments, words):
        script = tmp_path / "script.py"
        script.touch()

        ended = phalanx_command("join", *(script if each == "SCRIPT" else each for each in arguments))

        assert ended == (2, "", f"phalanx: {words}\n")

    def test_a_token_that_is_too_short_is_not_quoted(self, phalanx_command, tmp_path):
        file = tmp_path / "token"
        file.write_text("hunter2", encoding="utf-8")

        ended = phalanx_command("status", HERE, "--token-file", file)

        words = f"the token in {file} is too short to keep anybody out: make one of 16 characters or more with "
        assert ended == (2, "", f"phalanx status: {words}`phalanx token > FILE`\n")

    def test_a_coordinator_that_is_not_there_has_no_status(self, phalanx_command):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"127.0.0.1:{listener.getsockname()[1]}"

        ended = phalanx_command("status", address, "--timeout", 0.2)

        words = f"the coordinator could not be reached within 0.2 s: {address}: Connection refused. "
        assert ended == (1, "", f"phalanx status: {words}Is it running, and does a firewall lie between?\n")

    @pytest.mark.parametrize(
        ("token", "words"),
        [
            (None, "this coordinator asks for a token: pass --token-file, or set PHALANX_TOKEN_FILE or PHALANX_TOKEN"),
            ("another-of-many-characters", "the token is wrong: pass the one that this coordinator was started with"),
        ],
    )
    def test_only_who_knows_the_token_may_look(self, phalanx_command, monkeypatch, token, words):
        if token:
            monkeypatch.setenv("PHALANX_TOKEN", token)
        with serve(2, credentials=Credentials(TOKEN.encode())) as coordinator:
            address = format_address(coordinator.address)

            ended = phalanx_command("status", address)

        assert ended == (1, "", f"phalanx status: cannot talk to the coordinator at {address}: {words}\n")


def test_tokens_are_long_and_differ(phalanx_command):
    made = [phalanx_command("token") for _ in range(2)]

    assert all((status, err) == (0, "") and len(out) > 32 for status, out, err in made)
    assert made[0] != made[1]


class TestStatus:
    """Coordinators with workers that only say what they are."""

    @pytest.fixture
    def shown(self, phalanx_command):
        """What ``phalanx status`` shows: its lines, the words of each cell, and times left out."""

        def show(coordinator):
            status, out, err = phalanx_command("status", format_address(coordinator.address))
            assert (status, err) == (0, "")
            lines = [line.strip() for line in re.sub(r"\d+\.\d s ago", "T", out).splitlines()]
            return [re.split(r" {2,}", line) for line in lines if line.strip("\N{BOX DRAWINGS LIGHT HORIZONTAL}")]

        return show

    HEADINGS = ("rank", "worker", "device", "lanes", "heard", "waits for", "doing")

    def test_of_a_coordinator_to_which_nobody_came(self, stack, shown):
        coordinator = stack.enter_context(serve(4))

        assert shown(coordinator) == [["epoch 0, step 0: waiting for workers: 0 here, at least 4 needed"]]

    def test_of_a_group_at_work(self, stack, shown):
        coordinator = stack.enter_context(serve(2))
        for rank in range(2):
            enter(stack, coordinator, f"w{rank}", rank=rank, lanes=None)
        wait_until(coordinator, lambda status: status.epoch == 1)

        assert shown(coordinator) == [
            ["epoch 1, step 0: a group is at work"],
            [*self.HEADINGS],
            ["0", "w0", "cpu", "-", "T", "-", "-"],
            ["1", "w1", "cpu", "-", "T", "-", "-"],
        ]

    def test_of_a_run_in_which_one_is_done_and_waits_for_another(self, stack, shown):
        coordinator = stack.enter_context(serve(2))
        first, _ = (enter(stack, coordinator, f"w{rank}", rank=rank) for rank in range(2))
        wait_until(coordinator, lambda status: status.epoch == 1)
        first.sendall(encode(Done(epoch=1, step=0, loss=1.0, digest=b"")))
        wait_until(coordinator, lambda status: status.workers[0].is_done)

        assert shown(coordinator) == [
            ["epoch 1, step 0: at step 0"],
            [*self.HEADINGS],
            ["0", "w0", "cpu", "0 to 3", "T", "rank 1", "done with this step"],
            ["1", "w1", "cpu", "4 to 7", "T", "-", "-"],
        ]

    def test_of_a_run_to_which_one_waits_to_be_admitted(self, stack, shown):
        coordinator = stack.enter_context(serve(1, 2))
        enter(stack, coordinator, "early")
        wait_until(coordinator, lambda status: status.epoch == 1)
        enter(stack, coordinator, "late")
        wait_until(coordinator, lambda status: len(status.workers) == 2)

        assert shown(coordinator) == [
            ["epoch 1, step 0: at step 0"],
            [*self.HEADINGS],
            ["0", "early", "cpu", "0 to 7", "T", "-", "-"],
            ["waits", "late", "cpu", "-", "T", "-", "-"],
        ]

    def test_shows_what_workers_say_of_themselves_as_it_is_and_fools_no_terminal(self, stack, shown):
        coordinator = stack.enter_context(serve(1))
        enter(stack, coordinator, "[/red] \x1b[2J [batch, seq]")
        wait_until(coordinator, lambda status: status.epoch == 1)

        assert shown(coordinator)[-1][1] == "[/red] \N{SYMBOL FOR ESCAPE}[2J [batch, seq]"

    def test_as_json_is_all_that_the_coordinator_says(self, stack, phalanx_command):
        coordinator = stack.enter_context(serve(1, 2))
        enter(stack, coordinator, "early")
        enter(stack, coordinator, "late")
        seen = wait_until(coordinator, lambda status: len(status.workers) == 2)

        status, out, err = phalanx_command("status", format_address(coordinator.address), "--json")

        assert (status, err, out.count("\n")) == (0, "", 1)
        told = msgspec.json.decode(out, type=Status)
        assert ageless(told) == ageless(seen)
        assert {each.rank for each in told.workers} == {0, None}


def serve(minimum, maximum=None, *, patience_s=60.0, **options):
    terms = Terms(minimum=minimum, maximum=maximum or minimum, patience_s=patience_s)
    return Coordinator(terms=terms, **options)


def enter(stack, coordinator, name, *, rank=None, lanes=8):
    """The connection of a worker that has said hello, and will say nothing else."""
    deadline = Deadline.after(20)
    connected = call([coordinator.address], deadline, Credentials(), Purpose.COORDINATOR, whom="the coordinator")
    stack.enter_context(connected)
    connected.sendall(encode(Hello("here", (), 1, rank, None, "", name=name, device="cpu", lanes=lanes)))
    return connected


def wait_until(coordinator, is_so):
    """How things stand, as soon as they stand so."""
    deadline = Deadline.after(20)
    while not is_so(status := look(coordinator.address, deadline, Credentials())):
        assert not deadline.has_passed
    return status


def ageless(status):
    return replace(status, workers=tuple(replace(each, silent_s=0.0) for each in status.workers))
