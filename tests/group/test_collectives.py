"""Every operation, type, transport and size of group: equal to numpy, and the same bits on every rank."""

import numpy as np
import pytest
from group_reference import REDUCTIONS, assert_reduced, data, digest

from phalanx.buffers import DType, ReduceOp
from phalanx.testing import World

LENGTHS = [0, 1, 7, 1009]
SIZES = [1, 2, 3, *(pytest.param(size, marks=pytest.mark.slow) for size in (4, 5, 6, 7))]
MIB = 1 << 20

each_world = pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
each_size = pytest.mark.parametrize("size", SIZES)


def same_on_all(results):
    return len(set(results)) == 1


@each_world
@each_size
def test_reductions_equal_numpy_and_agree_on_every_rank(size, over):
    def on_rank(group):
        results = []
        for op, dtype in REDUCTIONS:
            for length in LENGTHS:
                arrays = [data(dtype, length, rank) for rank in range(size)]
                own = arrays[group.rank].copy()

                assert group.all_reduce(own, op) is own
                parts = group.all_gather_unequal(group.reduce_scatter(arrays[group.rank], op))
                at_root = group.reduce(arrays[group.rank].copy(), size - 1, op)

                assert_reduced(op, dtype, own, arrays)
                assert_reduced(op, dtype, np.concatenate(parts), arrays)
                if group.rank == size - 1:
                    assert_reduced(op, dtype, at_root, arrays)
                else:
                    np.testing.assert_array_equal(at_root, arrays[group.rank])
                results += [own, *parts]
        return digest(*results)

    assert same_on_all(World(size, over).run(on_rank))


@each_world
@each_size
def test_what_moves_arrives_as_it_was(size, over):
    def on_rank(group):
        for dtype in DType:
            for length in LENGTHS:
                arrays = [data(dtype, length, rank) for rank in range(size)]
                root = length % size
                rows = [data(dtype, size * length, rank).reshape(size, length) for rank in range(size)]
                uneven = [data(dtype, length + rank, rank) for rank in range(size)]

                gathered = group.all_gather(arrays[group.rank])
                listed = group.all_gather_unequal(uneven[group.rank])
                sent = group.broadcast(arrays[group.rank].copy(), root)
                at_root = group.gather(arrays[group.rank], root)
                share = group.scatter(rows[root] if group.rank == root else None, np.zeros_like(arrays[0]), root)
                swapped = group.all_to_all(rows[group.rank])
                group.barrier()

                np.testing.assert_array_equal(gathered, np.stack(arrays))
                for found, expected in zip(listed, uneven, strict=True):
                    np.testing.assert_array_equal(found, expected)
                np.testing.assert_array_equal(sent, arrays[root])
                np.testing.assert_array_equal(share, rows[root][group.rank])
                np.testing.assert_array_equal(swapped, np.stack([row[group.rank] for row in rows]))
                assert (at_root is None) == (group.rank != root)
                if at_root is not None:
                    np.testing.assert_array_equal(at_root, np.stack(arrays))

    World(size, over).run(on_rank)


@each_world
@pytest.mark.parametrize("size", [2, 3, pytest.param(5, marks=pytest.mark.slow)])
def test_what_one_rank_sends_the_other_receives(size, over):
    def on_rank(group):
        right, left = (group.rank + 1) % size, (group.rank - 1) % size
        for dtype in DType:
            for length in [*LENGTHS, MIB]:
                sending = group.send_nowait(data(dtype, length, group.rank), right)
                received = group.recv(np.zeros(length, dtype.numpy), left)
                sending.wait()

                np.testing.assert_array_equal(received, data(dtype, length, left))

    World(size, over).run(on_rank)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("over", "dtype"),
    [("memory", DType.F32), ("tcp", DType.F32), ("tcp", DType.I8), ("arena", DType.F32), ("arena", DType.BF16)],
)
def test_eight_mebibytes_are_no_different(over, dtype):
    length, size = 8 * MIB // dtype.itemsize + 1, 4

    def on_rank(group):
        arrays = [data(dtype, length, rank) for rank in range(size)]
        own = arrays[group.rank].copy()

        group.all_reduce(own)
        part = group.reduce_scatter(arrays[group.rank])
        sent = group.broadcast(arrays[group.rank].copy(), 2)
        gathered = group.all_gather(arrays[group.rank])

        assert_reduced(ReduceOp.SUM, dtype, own, arrays)
        np.testing.assert_array_equal(np.concatenate(group.all_gather_unequal(part)), own)
        np.testing.assert_array_equal(sent, arrays[2])
        np.testing.assert_array_equal(gathered, np.stack(arrays))
        return digest(own)

    assert same_on_all(World(size, over).run(on_rank))


@pytest.mark.slow
@pytest.mark.parametrize(
    "hosts",
    [["a", "b", "b"], *(pytest.param(hosts, marks=pytest.mark.slow) for hosts in (["a", "b"] * 2, [*"aaabb"]))],
)
@pytest.mark.parametrize("wire", [None, "bf16"])
def test_several_hosts_fold_at_home_and_exchange_the_rest(hosts, wire):
    size = len(hosts)

    def on_rank(group):
        assert {frozenset(host) for host in group.hosts} == {
            frozenset(rank for rank in range(size) if hosts[rank] == host) for host in hosts
        }
        results = []
        for op, dtype in REDUCTIONS:
            for length in [*LENGTHS, 100_003]:
                arrays = [data(dtype, length, rank) for rank in range(size)]
                narrow = wire if dtype is DType.F32 else None

                own = group.all_reduce(arrays[group.rank].copy(), op, wire=narrow)

                if not narrow:
                    assert_reduced(op, dtype, own, arrays)
                results.append(own)
        return digest(*results)

    assert same_on_all(World(size, "arena", hosts=hosts).run(on_rank))


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("over", ["memory", "arena"])
def test_a_bf16_wire_stays_within_its_rounding_and_agrees_on_every_rank(size, over):
    def on_rank(group):
        arrays = [data(DType.F32, 5003, rank) for rank in range(size)]

        own = group.all_reduce(arrays[group.rank].copy(), wire="bf16")

        expected = np.sum(arrays, axis=0, dtype=np.float64)
        magnitude = np.sum(np.abs(arrays), axis=0, dtype=np.float64)
        assert np.all(np.abs(own - expected) <= 2.0**-7 * magnitude)
        return digest(own)

    assert same_on_all(World(size, over).run(on_rank))


@pytest.mark.parametrize("over", ["memory", "tcp", "arena"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_allocated_buffers_keep_their_content_when_the_result_has_a_place_of_its_own(over, size):
    def on_rank(group):
        for length in [1, 7, 300_007]:
            source, result = group.allocate(length, "f32"), group.allocate(length, "f32", shared=True)
            arrays = [data(DType.F32, length, rank) for rank in range(size)]
            source[:] = arrays[group.rank]

            assert group.all_reduce(source, out=result) is result

            np.testing.assert_array_equal(source, arrays[group.rank])
            assert_reduced(ReduceOp.SUM, DType.F32, result, arrays)
            group.barrier()

    World(size, over).run(on_rank)


@pytest.mark.parametrize("sharing", [[], [0], [0, 1, 2]])
@pytest.mark.parametrize("allocating", [[0], [1, 2], [0, 1, 2]])
def test_allocated_and_ordinary_buffers_mix(allocating, sharing):
    def on_rank(group):
        for length in [7, 7, 600_011]:
            arrays = [data(DType.F32, length, rank) for rank in range(3)]
            shared = group.allocate(length, shared=True)
            own = group.allocate(length) if group.rank in allocating else np.empty(length, np.float32)
            own[:] = arrays[group.rank]

            found = group.all_reduce(own, out=shared if group.rank in sharing else None)

            assert_reduced(ReduceOp.SUM, DType.F32, found, arrays)

    World(3, "arena").run(on_rank)


def test_ranks_meet_once_for_a_small_all_reduce_and_twice_for_a_larger_one():
    def on_rank(group):
        meetings = []
        for length in [1 << 14, (1 << 14) + 1]:  # four of these are 256 KiB, and more
            before = group._team.arena.arena._meetings
            group.all_reduce(np.ones(length, np.float32))
            meetings.append(group._team.arena.arena._meetings - before)
        return meetings

    assert World(4, "arena").run(on_rank) == [[1, 2]] * 4


@pytest.mark.slow
def test_256_mebibytes_over_tcp_do_not_deadlock():
    length = 256 * MIB // 4

    def on_rank(group):
        own = np.full(length, group.rank + 1, np.float32)

        group.all_reduce(own)

        return bool((own == 3).all())

    assert World(2, "tcp", processes=True).run(on_rank) == [True, True]


@pytest.mark.parametrize("cpus", [1, 64], ids=["crowded", "roomy"])
@pytest.mark.parametrize(("op", "dtype"), [("sum", "f32"), ("mean", "f16"), ("max", "i32")])
def test_an_all_reduce_has_the_same_bits_however_many_cpus_there_are(op, dtype, cpus, monkeypatch):
    monkeypatch.setattr("phalanx.group.assemble.usable_cpus", lambda: cpus)
    kind, length = DType.parse(dtype).numpy, 12_345

    def work(group):
        values = (np.random.default_rng(group.rank).normal(size=length) * 100).astype(kind)
        before = values.tobytes()
        return group.all_reduce(values, op).tobytes(), before

    results = World(4, "tcp").run(work)
    apart = World(4, "tcp", hosts=["a", "b", "c", "d"]).run(work)  # between machines, ranks always stream

    assert len({result for result, _ in [*results, *apart]}) == 1
    every = np.array([np.frombuffer(values, kind) for _, values in results], np.float64)
    expected = {"sum": every.sum(0), "mean": every.mean(0), "max": every.max(0)}[op]
    np.testing.assert_allclose(np.frombuffer(results[0][0], kind), expected, rtol=2e-3, atol=2e-1)
