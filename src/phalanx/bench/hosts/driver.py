"""Measuring on hosts of our own making."""

import secrets
from collections.abc import Sequence

from phalanx.bench.hosts.network import Network, inside, network
from phalanx.bench.hosts.plan import SWITCH_ADDRESS, HostsRow, HostsTask, HostsTimes, HostSystem, rows
from phalanx.bench.training.driver import drive
from phalanx.coordinator import Coordinator, Terms
from phalanx.launch import local
from phalanx.launch.env import Launch
from phalanx.transport import Credentials, make_token


def measure_hosts(systems: Sequence[HostSystem], hosts: int, ranks: int, rate_bits: int, rounds: int) -> list[HostsRow]:
    """Make the hosts, measure all systems on them in one run, and return a row for each system."""
    with network(hosts, rate_bits) as made:
        task = HostsTask(systems=tuple(systems), namespaces=made.hosts, ranks=ranks, rounds=rounds)
        times = drive(
            "phalanx.bench.hosts.worker", task, hosts * ranks, HostsTimes, run=lambda program: _run(program, made)
        )
    return rows(times, hosts, ranks, rate_bits)


def _run(program: local.Program, made: Network) -> int:
    """Run the program on workers that are spread evenly over the hosts, and return the exit status.

    Only the coordinator's sockets are in the switch's namespace; it works in this process.
    """
    job, credentials = secrets.token_hex(8), Credentials(make_token().encode())
    with inside(made.switch):
        coordinator = Coordinator(SWITCH_ADDRESS, terms=Terms.exactly(program.workers, job), credentials=credentials)
    with coordinator:
        launches = [
            Launch(
                rank=rank,
                size=program.workers,
                job=job,
                coordinator=(coordinator.address,),
                host=f"host{rank * len(made.hosts) // program.workers}",
                credentials=credentials,
            )
            for rank in range(program.workers)
        ]
        return local.start(program, launches)
