"""What all ranks keep, put together by its labels, goes on with any number of ranks; and how much each keeps."""

import pytest
import torch
from spread import of_all, spread
from zero_play import BY_BLOCKS, BY_PARAMETERS, digest, take_steps, train

from phalanx.parallel import DataParallel, ZeroOptimizer

ALL = BY_BLOCKS | BY_PARAMETERS
BLOCK_BYTES = 2 * 4 * 2**18  # two values of f32 for each element


def save(size, kind, folder):
    """Train with so many ranks, and leave what each keeps, and what all keep."""

    def work(group):
        model, optimizer = train(group, *ALL[kind], sharded=True, steps=2)
        full = optimizer.consolidate()
        torch.save([model.state_dict(), optimizer.labelled_state(), full], folder / str(group.rank))

    spread(size, work)


def go_on(size, kind, folder, saved):
    """The digests of what so many ranks make of it with a full optimizer, and with a sharded one."""

    def work(group):
        states = [torch.load(folder / str(rank)) for rank in range(saved)]
        labelled = {label: each for _, kept, _ in states for label, each in kept.items()}
        found = []
        for is_sharded in (False, True):
            model, optimizer = train(group, *ALL[kind], sharded=is_sharded, steps=0)
            model.load_state_dict(states[0][0])
            if is_sharded:
                optimizer.load_labelled_state(labelled)
            else:
                optimizer.load_state_dict(states[0][2])
            take_steps(model, optimizer, group, range(2, 4))
            found.append(digest(model))
        return found

    return of_all(spread(size, work))


@pytest.mark.parametrize("kind", ["adamw", "adafactor"])
def test_what_3_ranks_kept_goes_on_with_1_or_2(kind, tmp_path):
    save(3, kind, tmp_path)

    digests = [go_on(size, kind, tmp_path, saved=3) for size in (1, 2)]

    assert [shared for _, shared in digests] == [full for full, _ in digests]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ALL)
def test_what_4_ranks_kept_goes_on_with_1_or_5(kind, tmp_path):
    save(4, kind, tmp_path)

    digests = [go_on(size, kind, tmp_path, saved=4) for size in (1, 5)]

    assert [shared for _, shared in digests] == [full for full, _ in digests]


def keep(size, dtype=torch.float32):
    """What each rank says that it keeps, and what is there."""

    def work(group):
        model = DataParallel(torch.nn.Linear(1500, 1400, dtype=dtype), group)
        groups = [{"params": model.module.weight}, {"params": model.module.bias}]
        optimizer = ZeroOptimizer(groups, torch.optim.AdamW, group=group)
        model(torch.ones(2, 1500, dtype=dtype)).sum().backward()
        optimizer.step()
        there = [each.nbytes for kept in optimizer.state.values() for each in kept.values()]
        there += [each.nbytes for shard in optimizer._shards for each in shard.masters()]
        return optimizer.state_bytes(), sum(there)

    return spread(size, work)


@pytest.mark.parametrize(
    "size", [1, 2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_each_rank_keeps_its_part_of_the_state_to_within_a_block_for_each_group(size):
    whole = 2 * 4 * (1500 * 1400 + 1400)

    parts = keep(size)

    counts = 4 * 10  # what counts the steps of each block
    assert all(said == there for said, there in parts)
    assert all(abs(said - whole / size) <= 2 * BLOCK_BYTES + counts for said, _ in parts)
    assert whole <= sum(said for said, _ in parts) <= whole + counts


def test_masters_count_as_state():
    whole = 3 * 4 * (1500 * 1400 + 1400)

    parts = keep(2, torch.bfloat16)

    assert whole <= sum(said for said, _ in parts) <= whole + 4 * 10
