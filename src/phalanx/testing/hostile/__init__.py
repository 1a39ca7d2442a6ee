"""What no program should accept, made when it is asked for: files, frames, and members of a run."""

from phalanx.testing.hostile.checkpoints import hostile_checkpoints
from phalanx.testing.hostile.files import HostileFile, hostile_configs, hostile_data, hostile_logs, hostile_settings
from phalanx.testing.hostile.floods import FloodingWorker, floods
from phalanx.testing.hostile.frames import HostileLink, hostile_frames, hostile_headers
from phalanx.testing.hostile.members import HostileMember, hostile_members
from phalanx.testing.hostile.tensors import StoredTensor, repair_hashes, rewrite_tensors

__all__ = [
    "FloodingWorker",
    "HostileFile",
    "HostileLink",
    "HostileMember",
    "StoredTensor",
    "floods",
    "hostile_checkpoints",
    "hostile_configs",
    "hostile_data",
    "hostile_frames",
    "hostile_headers",
    "hostile_logs",
    "hostile_members",
    "hostile_settings",
    "repair_hashes",
    "rewrite_tensors",
]
