"""One call of a collective, as every layer below the group sees it."""

from typing import NamedTuple

from phalanx.transport import Deadline
from phalanx.wire import Signature


class Call(NamedTuple):
    """What is called, which call of which group it is, and until when it must be over."""

    signature: Signature
    sequence: int
    deadline: Deadline
    group: str = ""

    def __str__(self) -> str:
        return f"call {self.sequence}, {self.signature}"
