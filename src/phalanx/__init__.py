"""Phalanx: train one model on many workers, with the same bits however many there are."""

from phalanx.buffers import DType, ReduceOp
from phalanx.errors import (
    AuthError,
    BadFrame,
    CollectiveMismatch,
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    EpochChanged,
    Evicted,
    GradientCorrupted,
    Halted,
    JoinRefused,
    LinkClosed,
    MembershipError,
    NonFiniteGradient,
    OutOfResources,
    PeerLost,
    PhalanxError,
    ProtocolError,
    RemoteError,
    StateLost,
    TransportError,
    WeightsDiverged,
)
from phalanx.group import ElasticRun, Group, Statistics
from phalanx.launch import connect, join_run, spawn
from phalanx.transport import Pending

__version__ = "0.1.0"

__all__ = [
    "AuthError",
    "BadFrame",
    "CollectiveMismatch",
    "ConfigError",
    "ConnectError",
    "DType",
    "DeadlineExceeded",
    "ElasticRun",
    "EpochChanged",
    "Evicted",
    "GradientCorrupted",
    "Group",
    "Halted",
    "JoinRefused",
    "LinkClosed",
    "MembershipError",
    "NonFiniteGradient",
    "OutOfResources",
    "PeerLost",
    "Pending",
    "PhalanxError",
    "ProtocolError",
    "ReduceOp",
    "RemoteError",
    "StateLost",
    "Statistics",
    "TransportError",
    "WeightsDiverged",
    "__version__",
    "connect",
    "join_run",
    "spawn",
]
