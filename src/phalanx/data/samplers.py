"""Samplers that know the group, continue in the middle of a pass, and follow a group that changes."""

from collections.abc import Iterator, Mapping, Sized

from phalanx.buffers import even_part
from phalanx.data.order import permute, samples_of
from phalanx.errors import ConfigError
from phalanx.group import ElasticRun, Group


class RankSampler:
    """The samples of this rank in each pass, as torch's DistributedSampler has them; for ``DataLoader(sampler=...)``.

    ``members`` are a group, or a run whose members change. In a pass, all ranks together get every sample once, in an
    order that depends on ``seed`` and the pass alone. So that all ranks get equally many, the first samples of a pass
    come again at its end; with ``drop_last``, its last samples are left out instead.

    Call ``advance`` after each step. Then an iteration that begins later continues behind the last step: after
    ``load_state_dict``, or with the ranks that there are when a group has changed.
    """

    def __init__(
        self,
        samples: int | Sized,
        members: Group | ElasticRun,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        self._length = _count(samples)
        self._members = members
        self._seed = seed
        self._shuffle = shuffle
        self._drop_last = drop_last
        self._pass = 0
        self._position = 0

    def __iter__(self) -> Iterator[int]:
        group = _group_of(self._members)
        rank, size, start = group.rank, group.size, self._position
        for number in range(self._rounds(size)):
            position = (start + number * size + rank) % self._length
            yield permute(position, self._length, self._seed, self._pass) if self._shuffle else position

    def __len__(self) -> int:
        """Return how many samples this rank gets in the rest of the pass."""
        return self._rounds(_group_of(self._members).size)

    def advance(self, count: int) -> None:
        """Note that every rank has used ``count`` more samples. Behind the last one, the next pass begins."""
        size = _group_of(self._members).size
        if not 0 < count <= self._rounds(size):
            raise ConfigError(f"{self._rounds(size)} samples are left for each rank in this pass, not {count}")
        is_over = count == self._rounds(size)
        self._pass += is_over
        self._position = 0 if is_over else self._position + count * size

    def set_epoch(self, epoch: int) -> None:
        """Begin a pass, as scripts for torch do. If it is the present one, it continues where it is."""
        if epoch != self._pass:
            self._pass, self._position = epoch, 0

    def state_dict(self) -> dict[str, int]:
        """Return where in which pass the ranks are; it is the same for all of them."""
        return {"pass": self._pass, "position": self._position}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where ``state_dict`` was taken, with any number of ranks."""
        if not 0 <= state["position"] < self._length:
            raise ConfigError(f"position {state['position']} is not within {self._length} samples: load other data")
        self._pass, self._position = state["pass"], state["position"]

    def _rounds(self, size: int) -> int:
        left = self._length - self._position
        return left // size if self._drop_last else -(-left // size)


class LaneSampler:
    """The samples of every lane of every step, for exact training: they do not depend on the number of ranks.

    ``samples(step, lane)`` is for ``Engine.train``, and right whichever lanes a rank computes. An iteration is for
    ``DataLoader(batch_sampler=...)`` in a group whose members stay: it has no end, and yields the samples of each of
    this rank's lanes, step by step. ``batch`` is the number of samples of a step, of all lanes together.

    Call ``advance`` after each step if you iterate. Then an iteration that begins later continues behind the last step.
    """

    def __init__(self, samples: int | Sized, members: Group | ElasticRun, *, batch: int, seed: int = 0) -> None:
        self._length = _count(samples)
        self._members = members
        self._batch = batch
        self._seed = seed
        self._step = 0
        lanes = _group_of(members).lanes
        if lanes is None:
            raise ConfigError("this group takes no steps: connect with phalanx.connect(lanes=...)")
        if batch < lanes:
            raise ConfigError(f"a batch of {batch} samples is too small for {lanes} lanes: each needs at least one")
        self._lanes = lanes

    def samples(self, step: int, lane: int) -> tuple[int, ...]:
        """Return the numbers of a lane's samples."""
        return samples_of(step, lane, lanes=self._lanes, batch=self._batch, length=self._length, seed=self._seed)

    def __iter__(self) -> Iterator[list[int]]:
        step = self._step
        while True:
            group = _group_of(self._members)
            own = even_part(self._lanes, group.size, group.rank)
            for lane in range(own.start, own.stop):
                yield list(self.samples(step, lane))
            step += 1

    def advance(self, steps: int = 1) -> None:
        """Note that steps have been taken since the last call."""
        self._step += steps

    def state_dict(self) -> dict[str, int]:
        """Return the next step; it is the same for all ranks."""
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Continue where ``state_dict`` was taken, with any number of ranks."""
        self._step = state["step"]


def _count(samples: int | Sized) -> int:
    length = samples if isinstance(samples, int) else len(samples)
    if length < 1:
        raise ConfigError(f"there must be at least one sample, not {length}")
    return length


def _group_of(members: Group | ElasticRun) -> Group:
    return members.group if isinstance(members, ElasticRun) else members
