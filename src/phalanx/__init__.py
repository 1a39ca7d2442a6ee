"""Phalanx: train one model on many workers, with the same bits however many there are."""

from phalanx.buffers import DType, ReduceOp
from phalanx.errors import (
    BadFrame,
    CollectiveMismatch,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    JoinRefused,
    LinkClosed,
    MembershipError,
    PeerLost,
    PhalanxError,
    ProtocolError,
    TransportError,
)
from phalanx.group import Group, Statistics
from phalanx.launch import connect
from phalanx.transport import Pending

__version__ = "0.1.0"

__all__ = [
    "BadFrame",
    "CollectiveMismatch",
    "ConfigError",
    "ConnectError",
    "DType",
    "DeadlineExceeded",
    "Group",
    "JoinRefused",
    "LinkClosed",
    "MembershipError",
    "PeerLost",
    "Pending",
    "PhalanxError",
    "ProtocolError",
    "ReduceOp",
    "Statistics",
    "TransportError",
    "__version__",
    "connect",
]
