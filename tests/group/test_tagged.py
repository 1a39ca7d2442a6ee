"""Messages with tags: taken in any order, from one peer or any."""

import numpy as np
import pytest

from phalanx.errors import CollectiveMismatch, DeadlineExceeded
from phalanx.testing import World

each_world = pytest.mark.parametrize("over", ["memory", "tcp", "arena"])


@each_world
def test_messages_are_taken_by_tag_and_not_in_the_order_in_which_they_were_sent(over):
    def on_rank(group):
        if group.rank == 0:
            sent = [group.send_tagged_nowait(np.full(3, float(tag)), 1, tag) for tag in (5, 6, 7)]
            for each in sent:
                each.wait()
            return None
        boxes = {tag: np.empty(3) for tag in (7, 5, 6)}
        for tag, box in boxes.items():
            assert group.recv_tagged_nowait(box, 0, tag).wait() == 0
        return [box[0] for box in boxes.values()]

    assert World(2, over).run(on_rank)[1] == [7, 5, 6]


@each_world
def test_a_message_may_come_from_any_peer(over):
    def on_rank(group):
        if group.rank:
            group.send_tagged_nowait(np.array([group.rank * 10]), 0, 1).wait()
            return None
        box, found = np.empty(1, np.int64), {}
        for _ in range(group.size - 1):
            source = group.recv_tagged_nowait(box, None, 1).wait()
            found[source] = int(box[0])
        return found

    assert World(4, over).run(on_rank)[0] == {1: 10, 2: 20, 3: 30}


def test_messages_larger_than_any_buffer_pass_in_both_directions():
    def on_rank(group):
        peer = 1 - group.rank
        sent, box = np.full(3_000_000, float(group.rank)), np.empty(3_000_000)
        pending = group.recv_tagged_nowait(box, peer, 0), group.send_tagged_nowait(sent, peer, 0)
        for each in pending:
            each.wait()
        return box.min(), box.max()

    assert World(2, "tcp").run(on_rank) == [(1, 1), (0, 0)]


def test_a_message_of_another_length_names_both_sides():
    def on_rank(group):
        if group.rank == 0:
            group.send_tagged_nowait(np.zeros(3), 1, 2).wait()
        else:
            with pytest.raises(CollectiveMismatch, match=r"tag 2, send.* of 3 f64.*recv of send.* of 4 f64"):
                group.recv_tagged_nowait(np.zeros(4), 0, 2).wait()
        group.barrier()

    World(2).run(on_rank)


def test_a_message_that_does_not_come_ends_with_the_deadline():
    def on_rank(group):
        if group.rank == 1:
            with pytest.raises(DeadlineExceeded, match="rank 0 has not sent"):
                group.recv_tagged_nowait(np.zeros(4), 0, 2, timeout_s=0.3).wait()
        group.barrier()

    World(2).run(on_rank)
