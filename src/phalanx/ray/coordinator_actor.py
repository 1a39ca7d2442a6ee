"""The coordinator as an actor of Ray."""

import logging
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from phalanx.coordinator import Coordinator, Terms
from phalanx.launch.env import read_credentials
from phalanx.transport import format_address

JOB = "ray"
_START_S = 120.0

ActorHandle = Any  # Ray is not type-checked


class CoordinatorActor:
    """Runs the coordinator of one run in a process of its own, on the node of this process."""

    def __init__(self, minimum: int, maximum: int, token: str) -> None:
        logging.basicConfig(level=logging.INFO, format="%(message)s")  # Ray shows it at the driver
        terms = Terms(minimum=minimum, maximum=maximum, first=maximum, job=JOB)
        credentials = replace(read_credentials(), token=token.encode())
        self._coordinator = Coordinator(ray.util.get_node_ip_address(), terms=terms, credentials=credentials)

    def address(self) -> str:
        """Return where workers reach the coordinator."""
        return format_address(self._coordinator.address)


def start_coordinator(minimum: int, maximum: int, token: str) -> tuple[ActorHandle, str]:
    """Start the actor on the node of this process, and return it and the address of its coordinator."""
    here = NodeAffinitySchedulingStrategy(node_id=ray.get_runtime_context().get_node_id(), soft=False)
    start = ray.remote(CoordinatorActor).options(num_cpus=0, scheduling_strategy=here).remote
    actor = start(minimum, maximum, token)
    return actor, ray.get(actor.address.remote(), timeout=_START_S)
