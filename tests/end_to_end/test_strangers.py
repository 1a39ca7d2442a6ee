import json
import re
import socket
import statistics
import sys
import time
from contextlib import ExitStack
from itertools import cycle, islice, pairwise
from pathlib import Path

import numpy as np
import pytest
from coordinating import WITH_TOKEN, WORKER, running, serving, write_token

from phalanx.errors import AuthError
from phalanx.transport import Credentials, Deadline, call, parse_address
from phalanx.wire import Header, Kind, Purpose, Tag

GARBAGE = [b"GET / HTTP/1.1\r\nHost: here\r\n\r\n", b"SSH-2.0-OpenSSH_9.6\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"]
QUIET_STEPS, LAST_STEPS = 1000, 2000
MOST_GROWTH_KB = 50_000


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


class Stranger:
    """A connection from nowhere, and its own address."""

    def __init__(self, address, words=b""):
        self.socket = socket.create_connection((address.host, address.port))
        host, port = self.socket.getsockname()
        self.origin = f"{host}:{port}"
        self.socket.sendall(words)


def probe(address):
    stranger = Stranger(address)
    stranger.socket.close()
    return stranger.origin


def send_garbage(stack, address, number):
    """HTTP, other known openings, and noise; kept open, as who sends it waits for an answer."""
    noise = np.random.default_rng(number).bytes(100)
    stranger = Stranger(address, next(islice(cycle([*GARBAGE, noise]), number, None)))
    stack.enter_context(stranger.socket)
    return stranger.origin


def stay_silent(stack, address):
    stranger = Stranger(address)
    stack.enter_context(stranger.socket)
    return stranger.origin


def send_by_the_byte(stack, address, worker, count):
    """One byte after every step that a worker has taken meanwhile."""
    stranger = Stranger(address)
    stack.enter_context(stranger.socket)
    for byte in b"PHLX\x01\x01\x01\x00" + bytes(count):
        stranger.socket.send(bytes([byte]))
        worker.wait_for("step ", len(worker.lines) + 1)
    return stranger.origin


def guess_the_token(address, number):
    guess = Credentials(b"a wrong token, number %d" % number)
    with pytest.raises(AuthError, match="the token is wrong"):
        call([address], Deadline.after(20), guess, Purpose.COORDINATOR, whom="the coordinator")


def claim_too_much(stack, address):
    """Somebody who knows the token, and announces 4 GiB."""
    connected = call([address], Deadline.after(20), WITH_TOKEN, Purpose.COORDINATOR, whom="the coordinator")
    stack.enter_context(connected)
    connected.sendall(Header(Kind.CONTROL, Tag(0, 0, 0), None, 4 << 30).pack() + bytes(1000))
    host, port = connected.getsockname()
    return f"{host}:{port}"


def memory_kb(pid, line):
    text = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(rf"{line}:\s+(\d+) kB", text)[1])


def median_ms(times, since, until):
    within = [at for at in times if since <= at <= until]
    return statistics.median(after - before for before, after in pairwise(within)) * 1000


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_run_does_not_notice_strangers_and_the_log_names_each_of_them(stack, tmp_path):
    token = write_token(tmp_path)
    coordinator, where = stack.enter_context(serving("--workers", 4, "--journal", tmp_path / "journal", *token))
    address = parse_address(where)
    workers = [stack.enter_context(running([*WORKER, where, f"w{number}", token[1]])) for number in range(4)]
    began = float(workers[0].wait_for(f"step {QUIET_STEPS} ")[0].split()[-1])
    before_kb = memory_kb(coordinator.pid, "VmRSS")

    silent = [stay_silent(stack, address) for _ in range(200)]
    probes = [probe(address) for _ in range(1000)]
    garbage = [send_garbage(stack, address, number) for number in range(200)]
    slow = send_by_the_byte(stack, address, workers[0], 30)
    for number in range(50):
        guess_the_token(address, number)
    greedy = claim_too_much(stack, address)
    all_came = time.monotonic()
    coordinator.wait_for("it did not prove itself within 10 s", 201)
    ended = time.monotonic()
    grown_kb = memory_kb(coordinator.pid, "VmHWM") - before_kb
    last = len(workers[0].lines) + LAST_STEPS
    for worker in workers:
        worker.say(last)

    ends = [json.loads(worker.finish()[1].splitlines()[-1]) for worker in workers]
    assert ends == [{"applied": list(range(last)), "epochs": [1], "error": "None"}] * 4
    assert grown_kb < MOST_GROWTH_KB
    _, _, log = coordinator.finish()
    refused = re.findall(r"refused a connection from (\S+): (.+)", log)
    reasons = dict(refused)
    assert len(refused) == len(reasons) == 200 + 1000 + 200 + 1 + 50 + 1
    assert {reasons[origin] for origin in silent} == {"it did not prove itself within 10 s"}
    assert {reasons[origin] for origin in probes} == {"it hung up before it said who it is"}
    assert all(reasons[origin].startswith("a frame begins with ") for origin in garbage)
    assert reasons[slow] == "it did not prove itself within 10 s"
    guesses = {reason for origin, reason in refused if origin not in {*silent, *probes, *garbage, slow, greedy}}
    assert guesses == {"the token is wrong: pass the one that this coordinator was started with"}
    assert reasons[greedy] == "a frame is over the limit of 1048576 bytes: control, 4294967296 bytes"
    times = [float(line.split()[-1]) for line in workers[0].lines if line.startswith("step ")]
    spans = {"quiet": (times[0], began), "abused": (began, all_came), "with the silent": (all_came, ended)}
    for name, span in spans.items():
        sys.stdout.write(f"median step, {name}: {median_ms(times, *span):.3f} ms\n")
    sys.stdout.write(f"the coordinator grew by {grown_kb} kB\n")
