"""The backend for Ray Train: tells each worker where the coordinator is."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2._internal.execution.worker_group import ReplicaGroup

from phalanx.errors import ConfigError, JoinRefused
from phalanx.launch.env import Launch, read_credentials, read_times, worker_environ
from phalanx.ray.coordinator_actor import JOB, ActorHandle, start_coordinator
from phalanx.transport import make_token, parse_address

Workers = Any  # a WorkerGroup, or the ReplicaGroup of one worker: Ray is not type-checked


@dataclass
class PhalanxConfig(BackendConfig):  # type: ignore[misc]  # Ray is not type-checked
    """Ray Train over Phalanx: pass it as ``DataParallelTrainer(backend_config=PhalanxConfig())``.

    In the train function ``phalanx.join_run(lanes=...)`` joins the run. If a worker dies, the others go on, and Ray
    replaces it; ``FailureConfig(max_failures=...)`` says how often. If fewer than ``min_workers`` are left, the others
    wait for the replacement. ``phalanx.connect()`` works too: its group has the ranks of Ray. If one of them dies,
    all workers fail, and Ray starts all of them again.
    """

    min_workers: int = 1

    @property
    def backend_cls(self) -> type[Backend]:
        """The class that Ray makes in its controller."""
        return RayBackend

    @property
    def train_func_context(self) -> Callable[[], AbstractContextManager[None]]:
        """What the train function runs in."""
        return late_without_failing


class RayBackend(Backend):  # type: ignore[misc]  # Ray is not type-checked
    """Starts a coordinator for each group of workers, and tells them where it is. Lives in Ray's controller."""

    has_replica_groups = True  # each worker is replaced alone

    def __init__(self) -> None:
        self._actor: ActorHandle | None = None
        self._told: tuple[str, str, int] | None = None

    def on_start(self, worker_group: Workers, backend_config: PhalanxConfig) -> None:
        """Tell all workers, or the one that replaces another, how to join the run."""
        if not isinstance(worker_group, ReplicaGroup):
            self._begin(len(worker_group), backend_config.min_workers)
        assert self._told, "a worker replaces another one only in a group that was started"
        worker_group.execute(tell_worker, *self._told)

    def on_shutdown(self, worker_group: Workers, backend_config: PhalanxConfig) -> None:  # noqa: ARG002 - Ray's signature
        """End the coordinator with the whole group of workers, but not with one that is replaced."""
        if not isinstance(worker_group, ReplicaGroup):
            self._end()

    def _begin(self, size: int, min_workers: int) -> None:
        self._end()
        if not 1 <= min_workers <= size:
            raise ConfigError(f"PhalanxConfig(min_workers={min_workers}) does not fit {size} workers: use 1 to {size}")
        token = make_token()
        self._actor, address = start_coordinator(min_workers, size, token)
        self._told = address, token, size

    def _end(self) -> None:
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


def tell_worker(address: str, token: str, size: int) -> None:
    """Let ``connect`` and ``join_run`` in this process find the coordinator."""
    context = ray.train.get_context()
    patience_s, stall_s = read_times()
    launch = Launch(
        rank=context.get_world_rank(),
        size=size,
        job=JOB,
        coordinator=(parse_address(address),),
        patience_s=patience_s,
        stall_s=stall_s,
        credentials=replace(read_credentials(), token=token.encode()),
    )
    told = worker_environ(launch, threads=1)
    for name in os.environ.keys() - told.keys():
        del os.environ[name]  # another launcher, which may have started Ray, has set it
    os.environ.update(told)


@contextmanager
def late_without_failing() -> Iterator[None]:
    """Return from a train function that came too late: the others have finished the run without it."""
    try:
        yield
    except JoinRefused as error:
        if "the run is over" not in str(error):
            raise
