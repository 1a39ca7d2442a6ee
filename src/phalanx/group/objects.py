"""Calls with plain values instead of arrays: they travel as bytes, and nothing is pickled."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from phalanx.buffers import Array, DType
from phalanx.collectives import Call, Team
from phalanx.errors import BadFrame, ConfigError
from phalanx.group.arguments import check_rank
from phalanx.group.operations import Operation, make_signature
from phalanx.group.unequal import UnequalOperations, second_half
from phalanx.wire import Collective, decode_value, encode_value, find_dataclasses, name_class

MOST_BYTES = 64 << 20
"""How large a value may be as bytes. Larger arrays travel faster in a call for arrays."""

Find = Callable[[str], type | None]


class ObjectOperations:
    """Makes operations of one team out of plain values. Every rank gets copies, also of its own value.

    A dataclass comes back as the class of that name among ``types`` and in the rank's own value, and as no other.
    """

    def __init__(self, team: Team) -> None:
        self._team = team
        self._unequal = UnequalOperations(team, MOST_BYTES)

    def all_gather(self, value: object, types: Iterable[type]) -> Operation[list[Any]]:
        """Collect the values of all ranks."""
        found = self._unequal.all_gather(_encode(value))
        find = _known(value, types)
        return Operation(
            found.signature, found.action, found.arguments, [], read=lambda: self._decode_all(found.result, find)
        )

    def gather(self, value: object, root: int, types: Iterable[type]) -> Operation[list[Any] | None]:
        """Collect the values of all ranks on the root."""
        found = self._unequal.gather(_encode(value), check_rank(root, "root", self._team.size))
        find, is_root = _known(value, types), root == self._team.rank

        def read() -> list[Any] | None:
            return self._decode_all(found.result, find) if is_root else None

        return Operation(found.signature, found.action, found.arguments, None, read=read)

    def broadcast(self, value: object, root: int, types: Iterable[type]) -> Operation[Any]:
        """Copy the root's value to all ranks."""
        is_root = check_rank(root, "root", self._team.size) == self._team.rank
        data = _encode(value) if is_root else None
        find, arrived = _known(value, types), list[Array]()
        signature = make_signature(Collective.BROADCAST, DType.I64, 1, root=root)
        return Operation(
            signature, self._broadcast, (data, root, arrived), None, read=lambda: self._decode(arrived[0], root, find)
        )

    def _broadcast(self, call: Call, data: Array | None, root: int, arrived: list[Array]) -> None:
        length = np.array([0 if data is None else len(data)], np.int64)
        self._team.broadcast(call, length)
        count = int(length[0])
        if not 0 <= count <= MOST_BYTES:
            name = self._team.names[root]
            raise BadFrame(f"rank {name} wants to broadcast a value of {count} bytes", peer=name)
        buffer = np.empty(count, np.uint8) if data is None else data
        self._team.broadcast(second_half(call, Collective.BROADCAST, DType.U8, count, root), buffer)
        arrived.append(buffer)

    def _decode_all(self, arrived: Iterable[Array], find: Find) -> list[Any]:
        return [self._decode(data, rank, find) for rank, data in enumerate(arrived)]

    def _decode(self, data: Array, rank: int, find: Find) -> Any:  # Any: whatever the rank has sent
        name = self._team.names[rank]
        try:
            return decode_value(data.data, find)
        except ConfigError as error:
            raise ConfigError(f"from rank {name}: {error}") from error
        except ValueError as error:
            raise BadFrame(f"rank {name} sent bytes that are no value: {error}", peer=name) from None


def _encode(value: object) -> Array:
    data = encode_value(value, "value")
    if len(data) > MOST_BYTES:
        words = f"value has {len(data)} bytes, and {MOST_BYTES} are the most"
        raise ConfigError(f"{words}: pass its arrays to a call for arrays, such as all_gather or broadcast")
    return np.frombuffer(data, np.uint8)


def _known(value: object, types: Iterable[type]) -> Find:
    return {**find_dataclasses(value), **{name_class(each): each for each in types}}.get
