import contextlib
import logging
import os
import re
import select
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest
from msgspec.structs import replace

from phalanx.coordinator import Coordinator, CoordinatorClient, Terms, look
from phalanx.coordinator.connection import Connection
from phalanx.errors import CollectiveMismatch, ConnectError, DeadlineExceeded, JoinRefused, PeerLost
from phalanx.transport import Credentials, Deadline, Wait
from phalanx.transport import call as call_door
from phalanx.wire import (
    Cause,
    Done,
    FrameReader,
    Header,
    Heard,
    Hello,
    Kind,
    Leave,
    Look,
    Purpose,
    Refused,
    Tag,
    Waiting,
    Welcome,
    decode,
    encode,
)

STRANGERS = {
    "garbage": b"\x00\xff" * 100,
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "a message before the handshake": encode(Leave()),
}
NUISANCES = {
    "another message than hello": encode(Leave()),
    "too long a hello": Header(Kind.CONTROL, Tag(0, 0, 0), None, 1 << 32).pack(),
    "no message": Header(Kind.CONTROL, Tag(0, 0, 0), None, 3).pack() + b"\xff" * 3,
}


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def coordinator(stack):
    return stack.enter_context(Coordinator(terms=Terms.exactly(3)))


def hello(rank=None, job=""):
    return Hello(host="anvil", addresses=(), pid=os.getpid(), rank=rank, size=None, job=job)


def call(stack, coordinator, data=b""):
    """A connection to the coordinator that is no client of ours."""
    where = coordinator.address
    connected = stack.enter_context(socket.create_connection((where.host, where.port), timeout=10))
    connected.sendall(data)
    return connected


def prove(stack, coordinator, data=b""):
    """A connection that has been let in, and is no client of ours."""
    deadline = Deadline.after(10)
    connected = call_door([coordinator.address], deadline, Credentials(), Purpose.COORDINATOR, whom="it")
    stack.callback(connected.close)
    connected.settimeout(10)
    connected.sendall(data)
    return connected


def reach(stack, coordinator, **options):
    return stack.enter_context(closing(CoordinatorClient([coordinator.address], Deadline.after(10), **options)))


def join_all(stack, coordinator, ranks, **options):
    """Clients and epochs by rank, once all of them have joined."""
    clients = {rank: reach(stack, coordinator, **options) for rank in ranks}
    with ThreadPoolExecutor(len(clients)) as pool:
        joins = {rank: pool.submit(client.join, hello(rank), Deadline.after(10)) for rank, client in clients.items()}
    epochs = {rank: stack.enter_context(closing(join.result()[1])) for rank, join in joins.items()}
    return clients, epochs


def reason(epoch):
    """Wait until the epoch is revoked, and return why."""
    assert select.select([epoch], [], [], 10)[0], "the epoch was not revoked"
    return epoch.error


def test_three_workers_become_a_group(stack, coordinator):
    clients = [reach(stack, coordinator) for _ in range(3)]

    with ThreadPoolExecutor(3) as pool:
        joined = list(pool.map(lambda client: client.join(hello(), Deadline.after(10)), clients))

    for _, epoch in joined:
        epoch.close()
    welcomes = [welcome for welcome, _ in joined]
    assert sorted(welcome.rank for welcome in welcomes) == [0, 1, 2]
    assert len({(welcome.epoch, welcome.key, welcome.members) for welcome in welcomes}) == 1
    assert [epoch.number for _, epoch in joined] == [1, 1, 1]


def test_a_connection_that_closes_revokes_the_epoch_everywhere_and_names_the_rank(stack, coordinator):
    victim = prove(stack, coordinator, encode(hello(rank=1)))
    _, epochs = join_all(stack, coordinator, ranks=[0, 2])

    victim.close()

    for epoch in epochs.values():
        error = reason(epoch)
        assert isinstance(error, PeerLost)
        assert error.peer == 1
        assert "rank 1 went away" in str(error)


def test_who_leaves_is_no_loss_but_is_missed_by_who_needs_it(stack, coordinator):
    clients, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])

    clients[1].leave()
    clients[0].report(epochs[0], Cause.LOST, 1, "its link closed")

    for rank in (0, 2):
        error = reason(epochs[rank])
        assert "rank 1 left the group, and rank 0 needed it" in str(error)
        assert error.peer == 1
        assert epochs[rank].left == {1}


def test_ranks_that_disagree_are_all_told_both_sides_words(stack, coordinator):
    clients, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])

    clients[2].report(epochs[2], Cause.DISAGREED, 0, "barrier against broadcast")

    for epoch in epochs.values():
        assert isinstance(reason(epoch), CollectiveMismatch)
        assert str(reason(epoch)) == "barrier against broadcast"


def test_a_stall_is_blamed_on_the_rank_that_answers_nobody(stack, coordinator, monkeypatch):
    monkeypatch.setattr("phalanx.coordinator.membership.GRACE_S", 0.75)  # a busy machine may answer late
    prove(stack, coordinator, encode(hello(rank=2)))
    clients, epochs = join_all(stack, coordinator, ranks=[0, 1])
    epochs[1].begin_wait(Wait((2,), "barrier"))

    clients[0].report(epochs[0], Cause.STALLED, 1, "rank 1 did not come")

    for epoch in epochs.values():
        assert isinstance(reason(epoch), DeadlineExceeded)
        assert reason(epoch).peer == 2


def test_a_rank_that_suspects_a_mismatch_learns_that_ranks_disagree(stack, coordinator, monkeypatch):
    monkeypatch.setattr("phalanx.coordinator.membership.GRACE_S", 0.75)  # a busy machine may answer late
    _, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])
    for rank, words in ((0, "barrier"), (1, "broadcast"), (2, "barrier")):
        epochs[rank].begin_wait(Wait((), words, group="world", sequence=5))

    epochs[0].suspect_mismatch()

    for epoch in epochs.values():
        assert isinstance(reason(epoch), CollectiveMismatch)
        assert re.match("rank 1 is in broadcast, but rank [02] is in barrier", str(reason(epoch)))


def test_very_long_words_are_cut_and_still_arrive(stack, coordinator):
    clients, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])

    clients[0].report(epochs[0], Cause.RAISED, 0, "x" * 100_000)

    assert str(reason(epochs[1])).startswith("xxx")


@pytest.mark.parametrize("stranger", STRANGERS)
def test_a_stranger_is_dropped_and_disturbs_nobody(stack, coordinator, stranger, caplog):
    with caplog.at_level(logging.WARNING, "phalanx"):
        connected = call(stack, coordinator, STRANGERS[stranger])
        _, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])
        while connected.recv(4096):
            pass

    assert f"refused a connection from 127.0.0.1:{connected.getsockname()[1]}" in caplog.text
    assert all(epoch.error is None for epoch in epochs.values())


@pytest.mark.parametrize("nuisance", NUISANCES)
def test_a_nuisance_that_knows_the_token_is_dropped_and_disturbs_nobody(stack, coordinator, nuisance, caplog):
    with caplog.at_level(logging.INFO, "phalanx"):
        connected = prove(stack, coordinator, NUISANCES[nuisance])
        _, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])
        while connected.recv(4096):
            pass

    assert f"refused a connection from 127.0.0.1:{connected.getsockname()[1]}: " in caplog.text
    assert all(epoch.error is None for epoch in epochs.values())


def test_a_silent_stranger_does_not_keep_the_others_waiting(stack, coordinator):
    call(stack, coordinator)
    prove(stack, coordinator, encode(hello())[:80])

    clients, _ = join_all(stack, coordinator, ranks=[0, 1, 2])

    assert len(clients) == 3


def test_a_hello_may_come_in_pieces(stack):
    coordinator = stack.enter_context(Coordinator(terms=Terms.exactly(1)))
    connected = prove(stack, coordinator)
    reader = FrameReader(1 << 20)
    messages = []

    for byte in encode(hello()):
        connected.sendall(bytes([byte]))
    while len(messages) < 2:
        reader.feed(connected.recv(4096))
        messages += [decode(frame[1]) for frame in iter(reader.next_frame, None)]

    assert [type(message) for message in messages] == [Heard, Welcome]


def test_who_is_refused_hears_why(stack, coordinator):
    client = reach(stack, coordinator)

    with pytest.raises(JoinRefused, match="not of 'day'"):
        client.join(hello(job="day"), Deadline.after(10))


def test_a_group_that_does_not_become_complete_ends_at_the_deadline(stack, coordinator):
    client = reach(stack, coordinator)

    with pytest.raises(ConnectError, match=r"the group was not complete within 0.02 s"):
        client.join(hello(), Deadline.after(0.02))


def test_a_coordinator_that_goes_away_ends_every_epoch_and_names_its_host(stack, coordinator):
    _, epochs = join_all(stack, coordinator, ranks=[0, 1, 2], hosted_by=0)

    coordinator.close()

    for epoch in epochs.values():
        error = reason(epoch)
        assert isinstance(error, PeerLost)
        assert "the coordinator, which rank 0 runs, went away" in str(error)
        assert error.peer == 0


def test_a_coordinator_that_goes_away_ends_joins_that_wait(stack, coordinator):
    client = reach(stack, coordinator)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(client.join, hello(), Deadline.after(10))
        coordinator.close()

        with pytest.raises(ConnectError):
            joining.result()


def test_closing_and_leaving_twice_are_harmless(stack, coordinator):
    clients, epochs = join_all(stack, coordinator, ranks=[0, 1, 2])

    for client in clients.values():
        client.leave()
        client.leave()
        client.close()
    coordinator.close()
    coordinator.close()

    assert all(epoch.error is None for epoch in epochs.values())


@pytest.mark.slow
def test_a_member_that_says_nothing_is_named_once_another_has_waited_for_it_for_the_stall_time(stack):
    terms = Terms(minimum=2, maximum=2, patience_s=0.3, stall_s=0.5)
    coordinator = stack.enter_context(Coordinator(terms=terms))
    prove(stack, coordinator, encode(hello(rank=1)))  # it never says anything again
    _, epochs = join_all(stack, coordinator, ranks=[0])

    epochs[0].begin_wait(Wait((1,), "barrier"))

    error = reason(epochs[0])
    assert isinstance(error, DeadlineExceeded)
    assert error.peer == 1
    assert re.match(r"rank 0 has waited \d\.\d s for rank 1, which does nothing: it is stopped, or stuck", str(error))


def test_a_coordinator_that_waits_for_its_group_to_leave_does_not_wait_for_the_next(stack):
    coordinator = stack.enter_context(Coordinator(terms=Terms.exactly(2)))
    clients, _ = join_all(stack, coordinator, ranks=[0, 1])
    for client in clients.values():
        client.leave()
    early = reach(stack, coordinator)
    with ThreadPoolExecutor(1) as pool:
        joining = pool.submit(early.join, hello(), Deadline.after(50))
        deadline = Deadline.after(10)
        while not look(coordinator.address, deadline, Credentials()).workers:
            assert not deadline.has_passed

        coordinator.close_when_left(Deadline.after(1000))

        with pytest.raises(ConnectError, match="hung up before the group was complete"):
            joining.result()


# Members that misbehave


def read_until(connected, kind):
    """Read messages until one of this kind has come, and return it."""
    reader = FrameReader(1 << 24)
    while True:
        data = connected.recv(1 << 16)
        assert data, "they hung up"
        reader.feed(data)
        for _, payload in iter(reader.next_frame, None):
            message = decode(payload)
            if isinstance(message, kind):
                return message


def test_a_member_that_floods_the_coordinator_does_not_keep_the_others_waiting(stack, coordinator):
    flooder = prove(stack, coordinator, encode(hello(rank=2)))
    _, epochs = join_all(stack, coordinator, ranks=[0, 1])
    flood = encode(Waiting(1, (0,), (0.0,), "", 0, "barrier", 0.0)) * 10_000

    with ThreadPoolExecutor(1) as pool:
        flooding = pool.submit(keep_sending, flooder, flood)
        try:
            standings = [look(coordinator.address, Deadline.after(10), Credentials()).workers for _ in range(3)]
            is_flooding = flooding.running()
        finally:
            flooder.shutdown(socket.SHUT_RDWR)

    assert [len(workers) for workers in standings] == [3, 3, 3]
    assert is_flooding
    assert reason(epochs[0]).peer == 2  # because the test has cut its connection


def keep_sending(connected, data):
    """Send the data again and again, as fast as it is taken, until that fails."""
    with contextlib.suppress(OSError):
        while True:
            connected.sendall(data)


def test_a_connection_is_heard_at_most_64_messages_at_a_time(stack):
    left, right = map(stack.enter_context, socket.socketpair())
    connection = Connection(right, "a flooder", 1 << 20, 5.0)
    left.sendall(encode(Leave()) * 100)

    heard = []
    while len(heard) < 2 or connection.has_more:
        heard.append(len(connection.read_nowait()))

    assert heard == [64, 36]


def test_a_connection_that_says_nothing_after_the_handshake_is_closed(stack, coordinator, monkeypatch, caplog):
    monkeypatch.setattr("phalanx.coordinator.server._HELLO_S", 0.05)

    silent = prove(stack, coordinator)

    assert silent.recv(100) == b""
    assert "it did not say within 0.05 s what it wants" in caplog.text


def test_a_connection_that_reads_no_answers_is_closed(stack, coordinator, monkeypatch, caplog):
    monkeypatch.setattr("phalanx.coordinator.connection._MOST_UNSENT_BYTES", 1000)
    monkeypatch.setattr("phalanx.coordinator.membership.GRACE_S", 0.0)  # every look gets an answer of its own
    for rank in range(2):  # what is told about them is long
        prove(stack, coordinator, encode(replace(hello(rank), host="x" * 4096)))
    with caplog.at_level(logging.DEBUG, "phalanx"):
        deaf = prove(stack, coordinator)
        with contextlib.suppress(ConnectionError):
            while True:
                deaf.sendall(encode(Look()) * 64)

    assert "it does not read what it is told" in caplog.text


def test_a_member_that_talks_nonsense_reads_why_it_was_sent_away(stack, coordinator):
    liar = prove(stack, coordinator, encode(hello(rank=2)))
    _, epochs = join_all(stack, coordinator, ranks=[0, 1])

    liar.sendall(encode(Done(1, 2**53 - 1, 0.5, b"")))

    words = "it is done with step 9007199254740991, but the run is at step 0"
    assert words in read_until(liar, Refused).reason
    for epoch in epochs.values():
        assert (type(reason(epoch)), reason(epoch).peer) == (PeerLost, 2)
        assert words in str(reason(epoch))
