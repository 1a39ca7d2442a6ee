"""Plans over real links: what simulate promises in one thread, links keep between several."""

import threading

import numpy as np
import pytest

from phalanx.buffers import DType, ReduceOp, even_parts
from phalanx.collectives import Call, LinkRunner, direct, pair, ring, star, tree
from phalanx.transport import Deadline, Epoch, MemoryConnector
from phalanx.wire import HEADER_BYTES, Collective, Signature

PLANS = {
    "direct": lambda rank, size, length: direct.all_reduce(rank, even_parts(length, size)),
    "ring": lambda rank, size, length: ring.all_reduce(rank, even_parts(length, size)),
    "tree": tree.all_reduce,
    "star": lambda rank, size, length: star.all_reduce(rank, size, 0, length),
    "pair": lambda rank, _, length: pair.all_reduce(rank, length),
}


def on_every_rank(size, work):
    """What ``work(runner, deadline)`` returns on every rank, each rank a thread with links to all the others."""
    connector, results, failures = MemoryConnector(), {}, []

    def live(rank):
        deadline, epoch = Deadline.after(30), Epoch(1)
        try:
            links = {
                peer: (connector.dial if rank > peer else connector.accept)(bytes(16), rank, peer, deadline, epoch)
                for peer in range(size)
                if peer != rank
            }
            results[rank] = work(LinkRunner(rank, links, epoch, rank), deadline)
            for link in links.values():
                link.close()
        except BaseException as error:  # noqa: BLE001 - a thread cannot raise it where the test is
            failures.append(error)
        finally:
            epoch.close()

    threads = [threading.Thread(target=live, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    return results


def all_reduce(make_plan, size, length, op):
    def work(runner, deadline):
        buffer = np.arange(length, dtype=np.float64) * (runner.rank + 1)
        call = Call(Signature(Collective.ALL_REDUCE, DType.F64, length, op), 1, deadline)
        runner.run(make_plan(runner.rank, size, length), call, buffer, buffer, DType.F64, op)
        return buffer

    return on_every_rank(size, work)


@pytest.mark.parametrize("make_plan", [direct.barrier, tree.barrier])
def test_a_barrier_sends_the_empty_messages_of_its_plan(make_plan):
    size, nothing = 5, np.empty(0, np.uint8)

    def work(runner, deadline):
        call = Call(Signature(Collective.BARRIER, DType.U8, 0), 1, deadline)
        runner.run(make_plan(runner.rank, size), call, nothing, nothing, DType.U8)
        return runner.bytes_sent // HEADER_BYTES

    sent = on_every_rank(size, work)

    for rank in range(size):
        assert sent[rank] == sum(len(each.sends) for each in make_plan(rank, size).rounds)


@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.MEAN, ReduceOp.MAX])
@pytest.mark.parametrize("length", [1, 1009, 1 << 20])
@pytest.mark.parametrize(("name", "size"), [*((name, 3) for name in PLANS if name != "pair"), ("pair", 2)])
def test_every_algorithm_reduces_over_links_as_numpy_does(name, size, length, op):
    one = np.arange(length, dtype=np.float64)
    total = sum(range(1, size + 1))
    expected = {ReduceOp.SUM: one * total, ReduceOp.MEAN: one * total / size, ReduceOp.MAX: one * size}[op]

    results = all_reduce(PLANS[name], size, length, op)

    for rank in range(size):
        np.testing.assert_array_equal(results[rank], expected)
