from contextlib import ExitStack, closing

import numpy as np
import pytest

from phalanx.errors import BadFrame, CollectiveMismatch, ConfigError, PeerLost, PhalanxError
from phalanx.testing import FaultyLink, World, check_link
from phalanx.transport import Deadline, Epoch, memory_pair, wait_for_links

DATA = bytes(range(256)) * 40


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


def faulty_pair(stack, **faults):
    """A link that is faulty at its left end."""
    left, right = memory_pair(0, 1)
    link = FaultyLink(left, **faults)
    stack.callback(link.close)
    stack.callback(right.close)
    return link, right


def send_all(link, data):
    """Send until everything is gone, and return the length of each piece that was taken."""
    lengths = []
    waiting = memoryview(data)
    while waiting:
        lengths.append(link.send_nowait(waiting))
        waiting = waiting[lengths[-1] :]
    return [length for length in lengths if length]


def receive_all(link):
    """What is there, up to the moment when there is nothing more or the peer is lost."""
    found = bytearray()
    room = memoryview(bytearray(1 << 16))
    try:
        while received := link.receive_nowait(room):
            found += room[:received]
    except PeerLost:
        pass
    return bytes(found)


def test_without_faults_everything_arrives(stack):
    link, peer = faulty_pair(stack)

    send_all(link, DATA)

    assert receive_all(peer) == DATA
    assert link.peer == 1


def test_delays_lose_and_exchange_nothing(stack):
    link, peer = faulty_pair(stack, seed=1, delay_s=0.002)

    pieces = send_all(link, DATA)

    assert receive_all(peer) == DATA
    assert sum(pieces) == len(DATA)


def test_a_link_with_delays_keeps_the_contract():
    check_link(lambda: [FaultyLink(end, seed=2, delay_s=0.0001) for end in memory_pair(0, 1)])


def test_a_delay_holds_bytes_back(stack):
    link, peer = faulty_pair(stack, seed=1, delay_s=1000.0)

    first = link.send_nowait(memoryview(DATA))
    second = link.send_nowait(memoryview(DATA))

    assert first > 0
    assert second == 0
    assert receive_all(peer) == DATA[:first]


def test_a_delay_comes_to_an_end(stack):
    epoch = stack.enter_context(closing(Epoch(1)))
    link, peer = faulty_pair(stack, seed=1, delay_s=0.001)
    deadline = Deadline.after(10)

    taken = link.send_nowait(memoryview(DATA))
    while not (again := link.send_nowait(memoryview(DATA)[taken:])):
        assert wait_for_links([link], {}, deadline, epoch)

    assert receive_all(peer) == DATA[: taken + again]


@pytest.mark.parametrize("position", [0, 1, 255, len(DATA) - 1])
def test_one_bit_is_flipped_at_the_position_given_and_the_senders_data_stays(stack, position):
    link, peer = faulty_pair(stack, corrupt_at=position)
    data = bytearray(DATA)

    for start in range(0, len(data), 100):
        send_all(link, data[start : start + 100])
    received = receive_all(peer)

    damage = [(index, sent ^ got) for index, (sent, got) in enumerate(zip(DATA, received, strict=True)) if sent != got]
    assert [index for index, _ in damage] == [position]
    assert damage[0][1].bit_count() == 1
    assert data == DATA


def test_a_position_beyond_what_is_sent_changes_nothing(stack):
    link, peer = faulty_pair(stack, corrupt_at=len(DATA), cut_after=len(DATA) + 1)

    send_all(link, DATA)

    assert receive_all(peer) == DATA


@pytest.mark.parametrize("limit", [0, 1, 1000])
def test_a_cut_loses_the_peer_at_both_ends_after_the_bytes_before_it(stack, limit):
    link, peer = faulty_pair(stack, cut_after=limit)

    with pytest.raises(PeerLost, match=f"cut on purpose after {limit} bytes") as caught:
        send_all(link, DATA)

    assert caught.value.peer == 1
    assert receive_all(peer) == DATA[:limit]
    with pytest.raises(PeerLost):
        peer.receive_nowait(memoryview(bytearray(1)))
    with pytest.raises(PeerLost):
        link.receive_nowait(memoryview(bytearray(1)))
    with pytest.raises(PeerLost):
        link.fileno()


def test_the_same_seed_makes_the_same_pieces_and_damage(stack):
    def observe(seed):
        link, peer = faulty_pair(stack, seed=seed, delay_s=1e-6, corrupt_at=100)
        return send_all(link, DATA * 10), receive_all(peer)

    assert observe(7) == observe(7)
    assert observe(7) != observe(8)


@pytest.mark.parametrize("faults", [{"delay_s": -1}, {"cut_after": -1}, {"corrupt_at": -1}])
def test_faults_that_cannot_be_are_refused(stack, faults):
    left, right = memory_pair(0, 1)

    with closing(left), closing(right), pytest.raises(ConfigError, match="begin at 0"):
        FaultyLink(left, **faults)


# In a world


def sum_of_ranks(group):
    array = np.full(10_000, group.rank, np.int64)
    group.all_reduce(array)
    return set(array.tolist())


def test_a_group_works_over_links_with_delays():
    world = World(3, wrap=lambda rank, link: FaultyLink(link, seed=10 * rank + link.peer, delay_s=0.001))

    assert world.run(sum_of_ranks) == [{3}, {3}, {3}]


@pytest.mark.parametrize("cut_after", [0, 10, 5000])
def test_a_link_that_is_cut_ends_the_call_on_every_rank_and_names_one_of_its_ends(cut_after):
    world = World(3, wrap=lambda rank, link: FaultyLink(link, cut_after=cut_after) if rank == 1 else link)

    outcomes = world.start(sum_of_ranks).outcomes()

    assert {outcome.kind for outcome in outcomes} == {"PeerLost"}


def test_a_damaged_header_is_an_error_and_never_a_result():
    world = World(2, wrap=lambda rank, link: FaultyLink(link, corrupt_at=20) if rank == 1 else link)

    with pytest.raises(PhalanxError) as caught:
        world.run(sum_of_ranks)

    assert isinstance(caught.value, BadFrame | CollectiveMismatch | PeerLost)
