"""Decides what the facts of several machines, and of the ways between them, mean for training on all of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from phalanx.doctor.facts import DoctorHello, MachineFacts, MeasuredWay
from phalanx.doctor.finding import CheckFinding, Level, good, problem, warning
from phalanx.doctor.judge_machine import judge_machine
from phalanx.doctor.phases import Pair

_SLOW_BITS_S = 100e6
_FAR_S = 0.02
_MUCH_SLOWER = 4
_OFF_S, _FAR_OFF_S = 1.0, 10.0
_SAME_EVERYWHERE = "install the same on all machines"


def judge_machines(
    introductions: Sequence[DoctorHello], ways: Mapping[Pair, MeasuredWay] | None, own: int, late: Sequence[str] = ()
) -> list[CheckFinding]:
    """Return the findings about all machines, as the doctor with the number ``own`` should print them.

    ``ways`` is None if nothing was measured. ``late`` are machines that did not come to the end of the check. Findings
    about the own machine alone are not among these.
    """
    names = name_machines(introductions)
    facts = {name: each.facts for name, each in zip(names, introductions, strict=True)}
    return [
        *(_abroad(finding, name) for name in names if name != names[own] for finding in _bad(facts[name])),
        *_compare(facts),
        *judge_clocks(names, introductions),
        *(_judge_ways(names, facts, ways) if ways is not None else ()),
        *(
            problem("machines", f"{name} did not finish the check", "look there: was it stopped, or is it gone?")
            for name in late
        ),
    ]


def name_machines(introductions: Sequence[DoctorHello]) -> list[str]:
    """Return a name for each machine: its host name, with its address, and a port if need be, to tell it apart."""
    plain = [each.facts.name for each in introductions]
    hosts = [each.addresses[0].host if each.addresses else "?" for each in introductions]
    ports = [each.addresses[0].port if each.addresses else 0 for each in introductions]
    longer = [f"{name} ({host})" for name, host in zip(plain, hosts, strict=True)]
    longest = [f"{name} ({host}:{port})" for name, host, port in zip(plain, hosts, ports, strict=True)]
    return [
        next((names[place] for names in (plain, longer) if names.count(names[place]) == 1), longest[place])
        for place in range(len(plain))
    ]


def judge_clocks(names: Sequence[str], introductions: Sequence[DoctorHello]) -> list[CheckFinding]:
    """Return what differs between the clocks of machines and that of the coordinator."""
    findings = []
    for name, each in zip(names, introductions, strict=True):
        off_s = -each.clock_offset_s  # how far the machine is ahead
        if abs(off_s) - each.clock_error_s < _OFF_S:
            continue
        found = f"the clock of {name} is {abs(off_s):.1f} s {'ahead of' if off_s > 0 else 'behind'} the coordinator's"
        make = problem if abs(off_s) >= _FAR_OFF_S else warning
        why = "times in logs and records cannot be compared, and TLS may refuse certificates"
        findings.append(make("clock", found, f"synchronise both clocks, with chrony or NTP; until then {why}"))
    if findings:
        return findings
    apart_s = max(abs(each.clock_offset_s) + each.clock_error_s for each in introductions)
    apart = f"within {1000 * apart_s:.1f} ms of each other"
    return [good("clock", f"the clocks of {_all_of(names)} and of the coordinator are {apart}")]


def _all_of(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) < 3 else f"all {len(names)} machines"


def _bad(facts: MachineFacts) -> Iterator[CheckFinding]:
    return (finding for finding in judge_machine(facts) if finding.level is not Level.GOOD)


def _abroad(finding: CheckFinding, name: str) -> CheckFinding:
    return CheckFinding(finding.level, finding.about, f"on {name}, {finding.found}", finding.advice)


def _describe_torch(facts: MachineFacts) -> str:
    build = facts.torch
    return f"{build.version} ({build.revision[:10]})" if build else "not installed"


_COMPARED: tuple[tuple[str, Callable[[MachineFacts], str], Level, str], ...] = (
    ("phalanx", lambda each: each.phalanx, Level.PROBLEM, _SAME_EVERYWHERE),
    (
        "torch",
        _describe_torch,
        Level.PROBLEM,
        f"`phalanx join` refuses such a machine, since its bits may differ: {_SAME_EVERYWHERE}",
    ),
    ("Python", lambda each: ".".join(each.python.split(".")[:2]), Level.WARNING, _SAME_EVERYWHERE),
    ("numpy", lambda each: each.numpy, Level.WARNING, _SAME_EVERYWHERE),
    (
        "device",
        lambda each: "GPU" if each.gpus.names else "CPU",
        Level.PROBLEM,
        "a run trains on one kind of device: pass --device cpu, or leave these machines out",
    ),
    (
        "CPU",
        lambda each: f"{each.processor}, {each.torch.instructions if each.torch else '-'}",
        Level.WARNING,
        "training works, but its bits depend on the kind of CPU that computes a lane: use one kind if you compare runs",
    ),
    (
        "threads",
        lambda each: ", ".join(f"{one.name}={one.value}" for one in each.settings) or "not set",
        Level.WARNING,
        "set the same on all machines: bits may depend on the number of threads",
    ),
)


def _compare(facts: Mapping[str, MachineFacts]) -> Iterator[CheckFinding]:
    same = []
    for what, read, level, advice in _COMPARED:
        sides: dict[str, list[str]] = {}
        for name, each in facts.items():
            sides.setdefault(read(each), []).append(name)
        if len(sides) == 1:
            same.append(what)
            continue
        words = "; ".join(f"{value} on {', '.join(names)}" for value, names in sides.items())
        yield CheckFinding(level, what, f"{what} differs: {words}", advice)
    if same and len(facts) > 1:
        yield good("machines", f"the same on {_all_of(list(facts))}: {', '.join(same)}")


def _judge_ways(
    names: Sequence[str], facts: Mapping[str, MachineFacts], ways: Mapping[Pair, MeasuredWay]
) -> Iterator[CheckFinding]:
    speeds = [way.bits_s for way in ways.values() if not way.fault]
    usual_bits_s = median(speeds) if speeds else 0.0
    for one in range(len(names)):
        for other in range(one + 1, len(names)):
            there, back = ways.get((one, other)), ways.get((other, one))
            for (source, target), way in (((one, other), there), ((other, one), back)):
                if way is None or way.fault:
                    yield _judge_closed(names[source], names[target], facts[names[target]], way)
            if there and back and not there.fault and not back.fault:
                yield _judge_open(f"{names[one]} and {names[other]}", there, back, usual_bits_s)


def _judge_closed(source: str, target: str, facts: MachineFacts, way: MeasuredWay | None) -> CheckFinding:
    if way is None:
        return problem("connection", f"the way from {source} to {target} was not measured", "check again")
    return problem(
        "connection",
        f"{source} cannot connect to {target}: {way.fault}",
        f"let {target} accept TCP connections from {source} to ports {facts.port_range}, in the firewalls of both and "
        "of the network: each worker listens on a port that the system chooses",
    )


def _judge_open(pair: str, there: MeasuredWay, back: MeasuredWay, usual_bits_s: float) -> CheckFinding:
    slowest_bits_s, far_s = min(there.bits_s, back.bits_s), max(there.round_trip_s, back.round_trip_s)
    speeds = f"{_rate(there.bits_s)} there, {_rate(back.bits_s)} back"
    found = f"{pair}: {speeds}, round trip {1000 * far_s:.2f} ms"
    cost_s = 400e6 * 8 / max(1.0, slowest_bits_s)
    cost = f"100 million f32 gradients take {cost_s:.0f} s or more"
    if slowest_bits_s < _SLOW_BITS_S:
        return warning("connection", found, f"{cost}: use a faster network, or larger batches and fewer steps")
    if slowest_bits_s * _MUCH_SLOWER < usual_bits_s:
        times = usual_bits_s / slowest_bits_s
        return warning(
            "connection", f"{found}, {times:.0f} times slower than the usual", "look at its cable, port and settings"
        )
    if far_s > _FAR_S:
        return warning("connection", found, "every exchange waits for it: use machines that are closer to each other")
    return good("connection", found)


def _rate(bits_s: float) -> str:
    return f"{bits_s / 1e9:.2f} Gbit/s" if bits_s >= 1e9 else f"{bits_s / 1e6:.0f} Mbit/s"
