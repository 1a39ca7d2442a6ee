"""Moving bytes: links between ranks, and the memory that ranks of one host share."""

from phalanx.transport.acceptor import Acceptor, ProvenConnection, call
from phalanx.transport.address import format_address, is_loopback, own_hosts, parse_address
from phalanx.transport.arena import HALF_BYTES, Arena, ArenaSegments, Post
from phalanx.transport.bell import Bell
from phalanx.transport.connector import Connector, LazyLink, TcpConnector
from phalanx.transport.control_group import memory_limit_bytes
from phalanx.transport.cpus import usable_cpus
from phalanx.transport.credentials import Credentials, Tls, make_token, parse_token
from phalanx.transport.deadline import Deadline
from phalanx.transport.epoch import Epoch, Wait, Waited
from phalanx.transport.fork import close_in_children
from phalanx.transport.link import Link, Waitable, wait_for_links
from phalanx.transport.memory import MemoryConnector, memory_pair
from phalanx.transport.pages import allocate_pages
from phalanx.transport.pending import Pending, drop_variables
from phalanx.transport.segment import (
    Place,
    are_together,
    can_share_memory,
    host_identity,
    keep_apart,
    machine_of,
    simulated_machine_of,
    why_apart,
    why_not_share_memory,
)
from phalanx.transport.segment_pool import Location, SegmentPool
from phalanx.transport.serial_executor import SerialExecutor
from phalanx.transport.shortage import shortage_in_words
from phalanx.transport.stream import NOT_NOW, StreamLink
from phalanx.transport.tcp import Listener, connect, keep_alive

__all__ = [
    "HALF_BYTES",
    "NOT_NOW",
    "Acceptor",
    "Arena",
    "ArenaSegments",
    "Bell",
    "Connector",
    "Credentials",
    "Deadline",
    "Epoch",
    "LazyLink",
    "Link",
    "Listener",
    "Location",
    "MemoryConnector",
    "Pending",
    "Place",
    "Post",
    "ProvenConnection",
    "SegmentPool",
    "SerialExecutor",
    "StreamLink",
    "TcpConnector",
    "Tls",
    "Wait",
    "Waitable",
    "Waited",
    "allocate_pages",
    "are_together",
    "call",
    "can_share_memory",
    "close_in_children",
    "connect",
    "drop_variables",
    "format_address",
    "host_identity",
    "is_loopback",
    "keep_alive",
    "keep_apart",
    "machine_of",
    "make_token",
    "memory_limit_bytes",
    "memory_pair",
    "own_hosts",
    "parse_address",
    "parse_token",
    "shortage_in_words",
    "simulated_machine_of",
    "usable_cpus",
    "wait_for_links",
    "why_apart",
    "why_not_share_memory",
]
