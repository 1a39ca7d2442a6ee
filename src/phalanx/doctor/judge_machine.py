"""Decides what the facts of one machine mean for training on it."""

from collections.abc import Iterator

from phalanx.doctor.facts import MachineFacts, VolumeFacts
from phalanx.doctor.finding import CheckFinding, good, problem, warning

_GIB = 1 << 30
_MIB = 1 << 20
_FEW_FILES, _SOME_FILES = 256, 1024
_MPS = "start it with `nvidia-cuda-mps-control -d`"


def judge_machine(facts: MachineFacts) -> list[CheckFinding]:
    """Return the findings about a machine, in the order in which people should read them."""
    return [
        good(
            "versions",
            f"Python {facts.python}, phalanx {facts.phalanx}, numpy {facts.numpy}, {facts.system}, {facts.processor}",
        ),
        _judge_torch(facts),
        *_judge_gpus(facts),
        _judge_cpus(facts),
        _judge_threads(facts),
        _judge_memory(facts),
        _judge_sharing(facts),
        _judge_shm(facts.shm),
        _judge_files(facts),
        *_judge_ports(facts),
        *_judge_disk(facts.disk),
        _judge_clock(facts),
    ]


def _judge_torch(facts: MachineFacts) -> CheckFinding:
    if facts.torch is None:
        return warning(
            "torch",
            "torch is not installed, or cannot be imported",
            "to train, pip install 'phalanx-train[train]'; groups and collectives work without it",
        )
    build = facts.torch
    device = f"CUDA {build.cuda}" if build.cuda else "no CUDA"
    return good("torch", f"{build.version} ({build.revision[:10]}), {device}, {build.instructions}")


def _judge_gpus(facts: MachineFacts) -> Iterator[CheckFinding]:
    gpus = facts.gpus
    if not gpus.names:
        if gpus.has_nvidia and facts.torch is not None:
            kind = "cannot use it" if facts.torch.cuda else "is a build without CUDA"
            yield warning(
                "GPU",
                f"this machine has an NVIDIA device, but torch {facts.torch.version} {kind}",
                "install a build of torch with CUDA that fits the driver, or train on the CPU",
            )
        return
    mps = "MPS runs" if gpus.has_mps else f"MPS does not run: if workers share a GPU, {_MPS}"
    yield good("GPU", f"{_count(gpus.names)}, {_size(gpus.memory_bytes)} each; {mps}")
    if gpus.strangers:
        pairs = ", ".join(f"{one} and {other}" for one, other in gpus.strangers[:8])
        yield warning(
            "GPU",
            f"these GPUs cannot read each other's memory: {pairs}",
            "exchanges between them go through the memory of the host; see `nvidia-smi topo -m`",
        )


def _judge_cpus(facts: MachineFacts) -> CheckFinding:
    limit = "" if facts.usable_cpus == facts.cpus else "; affinity or the container's quota withholds the others"
    found = f"{facts.usable_cpus} of {facts.cpus} CPUs may be used{limit}"
    if facts.usable_cpus < 2:
        return warning("CPUs", found, "one worker computes or exchanges at a time: give the container more CPUs")
    return good("CPUs", found)


def _judge_threads(facts: MachineFacts) -> CheckFinding:
    settings = {each.name: each.value for each in facts.settings}
    words = ", ".join(f"{name}={value}" for name, value in settings.items())
    if not settings:
        return good("threads", "OMP_NUM_THREADS is not set: phalanx divides the CPUs among the workers")
    for name, value in settings.items():
        if name.endswith("_NUM_THREADS") and not (value.isdecimal() and int(value) > 0):
            return warning("threads", f"{name} is {value!r}, which is no number of threads", f"unset {name}")
        if name.endswith("_NUM_THREADS") and int(value) > facts.usable_cpus:
            return warning(
                "threads",
                f"with {words}, each worker starts {value} threads for {facts.usable_cpus} CPUs",
                f"unset {name}; phalanx then divides the CPUs among the workers",
            )
    return good("threads", f"{words}: each worker starts as many, whatever its share of the CPUs")


def _judge_memory(facts: MachineFacts) -> CheckFinding:
    free = facts.memory_free_bytes
    found = f"{_size(free)} of {_size(facts.memory_bytes)} free"
    if facts.memory_limit_bytes is not None and facts.memory_limit_bytes < facts.memory_bytes:
        free = min(free, facts.memory_limit_bytes)
        found += f", and this container may use {_size(facts.memory_limit_bytes)}"
    advice = "end other programs, or give the container more memory"
    if free < _GIB // 2:
        return problem("memory", found, f"torch alone needs about that much for each worker: {advice}")
    return warning("memory", found, advice) if free < 2 * _GIB else good("memory", found)


def _judge_sharing(facts: MachineFacts) -> CheckFinding:
    if facts.memory_sharing_fault:
        return problem(
            "shared memory",
            f"workers of this machine cannot share memory: {facts.memory_sharing_fault}",
            "they will use TCP, which is slower; in a container, mount /proc and allow memfd_create",
        )
    return good("shared memory", "workers of this machine can map each other's memory")


def _judge_shm(shm: VolumeFacts) -> CheckFinding:
    advice = "mount a tmpfs of 1 GiB or more there, or start the container with --shm-size=1g"
    if shm.fault:
        return problem("shm", f"a DataLoader with workers cannot pass tensors through {shm.path}: {shm.fault}", advice)
    found = f"{_size(shm.free_bytes)} free in {shm.path}, for workers of a DataLoader"
    if shm.free_bytes < 16 * _MIB:
        return problem("shm", f"{found}; they would die of a bus error", advice)
    return warning("shm", found, advice) if shm.free_bytes < _GIB // 4 else good("shm", found)


def _judge_files(facts: MachineFacts) -> CheckFinding:
    found = f"a process may have {facts.open_files} files open"
    wanted = 4096
    if facts.most_open_files >= wanted:
        advice = f"raise the limit with `ulimit -n {wanted}` in the shell that starts the workers"
    else:
        advice = (
            f"ask the administrator to raise the hard limit, which is {facts.most_open_files}, to {wanted}: "
            "limits.conf, LimitNOFILE of systemd, or --ulimit nofile of docker"
        )
    if facts.open_files < _FEW_FILES:
        return problem("open files", f"{found}; a worker needs one for each peer and more for its memory", advice)
    return warning("open files", found, advice) if facts.open_files < _SOME_FILES else good("open files", found)


def _judge_ports(facts: MachineFacts) -> Iterator[CheckFinding]:
    for check in facts.ports:
        if check.fault:
            yield problem(
                "ports",
                f"this machine cannot connect to itself at {check.host}: {check.fault}",
                "look at the rules of its firewall for that address (`nft list ruleset`), and at `ip address`",
            )
    if working := [check.host for check in facts.ports if not check.fault]:
        yield good("ports", f"this machine can listen and connect at {', '.join(working)}")


def _judge_disk(disk: VolumeFacts) -> Iterator[CheckFinding]:
    if disk.fault:
        yield problem("disk", f"nothing can be written to {disk.path}: {disk.fault}", "run phalanx in another folder")
        return
    found = f"{_size(disk.free_bytes)} free in {disk.path} ({disk.kind or 'unknown kind'})"
    if disk.free_bytes < _GIB:
        yield problem("disk", found, "a run keeps several checkpoints: make room, or pass --run-dir")
    elif disk.free_bytes < 10 * _GIB:
        yield warning("disk", found, "a run keeps several checkpoints: make room, or pass --run-dir")
    elif disk.kind in ("tmpfs", "ramfs"):
        yield warning("disk", found, "this is memory: runs are lost when the machine stops; pass --run-dir")
    else:
        yield good("disk", found)
    speed = f"{disk.write_bytes_s / 1e6:.0f} MB/s, {1000 * disk.sync_s:.1f} ms until a short write is on the disk"
    if disk.write_bytes_s < 50e6 or disk.sync_s > 0.05:
        yield warning("disk", speed, "checkpoints and the coordinator's journal wait for it: pass a faster --run-dir")
    else:
        yield good("disk", speed)


def _judge_clock(facts: MachineFacts) -> CheckFinding:
    if facts.is_clock_synchronised is None:
        return good("clock", "the system does not say whether its clock is synchronised")
    if facts.is_clock_synchronised:
        return good("clock", "the system keeps its clock synchronised")
    return warning(
        "clock",
        "the system says that nothing synchronises its clock",
        "start chrony or `timedatectl set-ntp true`; in a container or virtual machine, look at the host",
    )


def _count(names: tuple[str, ...]) -> str:
    return ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))


def _size(size_bytes: float) -> str:
    for unit, factor in (("GiB", _GIB), ("MiB", _MIB)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1024:.0f} KiB"
