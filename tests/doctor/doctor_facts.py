"""Machines for doctors to judge."""

from msgspec.structs import replace

from phalanx.doctor.facts import DoctorHello, GpuFacts, MachineFacts, PortCheck, TorchBuild, VolumeFacts
from phalanx.wire import Address

GIB = 1 << 30
WELL = MachineFacts(
    name="anvil",
    system="Linux 6.18 on x86_64",
    processor="EPYC",
    python="3.11.7",
    phalanx="0.1.0",
    numpy="2.4.6",
    wire=1,
    torch=TorchBuild("2.13.0+cpu", "cf30153c4cdead", "", "AVX2"),
    gpus=GpuFacts(),
    cpus=8,
    usable_cpus=8,
    memory_bytes=64 * GIB,
    memory_limit_bytes=None,
    memory_free_bytes=60 * GIB,
    settings=(),
    memory_sharing_fault="",
    shm=VolumeFacts("/dev/shm", "tmpfs", 32 * GIB),  # noqa: S108 - it is what the doctor looks at
    open_files=4096,
    most_open_files=1 << 20,
    ports=(PortCheck("127.0.0.1"), PortCheck("10.0.0.1")),
    port_range="32768 to 60999",
    disk=VolumeFacts("/data", "ext4", 500 * GIB, 900e6, 0.001),
    is_clock_synchronised=True,
)


def introduce(name, host="10.0.0.1", port=40000, offset_s=0.0, error_s=0.001, **changed):
    return DoctorHello(replace(WELL, name=name, **changed), (Address(host, port),), offset_s, error_s)
