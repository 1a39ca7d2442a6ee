"""Measuring on hosts of our own making."""

import secrets
from collections.abc import Sequence
from dataclasses import replace

from phalanx.bench.hosts.join import JoinRow, JoinTask, JoinTime, make_row
from phalanx.bench.hosts.plan import HostsRow, HostsTask, HostsTimes, HostSystem, rows
from phalanx.bench.training.driver import drive
from phalanx.coordinator import Coordinator, Terms
from phalanx.launch import local
from phalanx.launch.env import Launch
from phalanx.launch.network import Network, inside, network
from phalanx.launch.network_commands import SWITCH_ADDRESS
from phalanx.transport import Credentials, make_token


def measure_hosts(systems: Sequence[HostSystem], hosts: int, ranks: int, rate_bits: int, rounds: int) -> list[HostsRow]:
    """Make the hosts, measure all systems on them in one run, and return a row for each system."""
    with network([rate_bits] * hosts) as made:
        task = HostsTask(systems=tuple(systems), namespaces=made.hosts, ranks=ranks, rounds=rounds)
        times = drive(
            "phalanx.bench.hosts.worker",
            task,
            hosts * ranks,
            HostsTimes,
            run=lambda program: _run(program, made, Terms.exactly(hosts * ranks)),
        )
    return rows(times, hosts, ranks, rate_bits)


def measure_join(donors: int, layers: int, rate_bits: int) -> JoinRow:
    """Make a host for each donor and one with ``donors`` times their rate, and measure how long its worker joins."""
    with network([*[rate_bits] * donors, donors * rate_bits]) as made:
        task = JoinTask(namespaces=made.hosts, layers=layers)
        terms = Terms(minimum=donors, maximum=donors + 1)
        time = drive(
            "phalanx.bench.hosts.join_worker",
            task,
            donors + 1,
            JoinTime,
            run=lambda program: _run(program, made, terms, has_ranks=False),
        )
    return make_row(donors, layers, donors * rate_bits, time)


def _run(program: local.Program, made: Network, terms: Terms, *, has_ranks: bool = True) -> int:
    """Run the program on workers that are spread evenly over the hosts, and return the exit status.

    Only the coordinator's sockets are in the switch's namespace; it works in this process.
    """
    job, credentials = secrets.token_hex(8), Credentials(make_token().encode())
    with inside(made.switch):
        coordinator = Coordinator(SWITCH_ADDRESS, terms=replace(terms, job=job), credentials=credentials)
    with coordinator:
        launches = [
            Launch(
                rank=rank if has_ranks else None,
                size=program.workers if has_ranks else None,
                job=job,
                coordinator=(coordinator.address,),
                host=f"host{rank * len(made.hosts) // program.workers}",
                credentials=credentials,
            )
            for rank in range(program.workers)
        ]
        return local.start(program, launches)
