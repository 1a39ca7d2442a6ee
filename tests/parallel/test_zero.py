"""ZeroOptimizer gives the bits of the full optimizer, whatever it shards and among however many ranks."""

import pytest
from spread import of_all, spread
from zero_play import BY_BLOCKS, BY_PARAMETERS, digest, train

ALL = BY_BLOCKS | BY_PARAMETERS


@pytest.mark.slow
@pytest.mark.parametrize("over", ["arena", "tcp"])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("kind", ALL)
def test_weights_are_those_of_the_full_optimizer(kind, size, over):
    def work(group):
        full, _ = train(group, *ALL[kind], sharded=False)
        shared, _ = train(group, *ALL[kind], sharded=True)
        return [digest(full), digest(shared)]

    full, shared = of_all(spread(size, work, over))

    assert shared == full
