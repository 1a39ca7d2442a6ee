"""One call of a collective, as every layer below the group sees it."""

from typing import NamedTuple

from phalanx.transport import Deadline
from phalanx.wire import Signature


class Call(NamedTuple):
    """The signature of a call, its number, its deadline and its group."""

    signature: Signature
    sequence: int
    deadline: Deadline
    group: str = ""

    def __str__(self) -> str:
        return f"call {self.sequence}, {self.signature}"
