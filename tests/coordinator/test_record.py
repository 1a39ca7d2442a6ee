import msgspec
import pytest

from phalanx.coordinator.record import Committed, Ended, Formed, Line, Past, recall
from phalanx.wire import Commit

FORMED = Formed(epoch=1, step=0, lanes=8, names=("a", "b"))


@pytest.mark.parametrize(
    ("lines", "past"),
    [
        ([], Past()),
        ([FORMED], Past(epoch=1, lanes=8, names=frozenset({"a", "b"}))),
        (
            [FORMED, Committed(1, 0, b"d0", 0.5)],
            Past(epoch=1, step=1, lanes=8, names=frozenset({"a", "b"}), last=Commit(0, b"d0")),
        ),
        (
            [FORMED, Committed(1, 0, b"d0", 0.5), Formed(2, 1, 8, ("b",)), Committed(2, 1, b"d1", None)],
            Past(epoch=2, step=2, lanes=8, names=frozenset({"b"}), last=Commit(1, b"d1")),
        ),
        ([FORMED, Ended("why")], Past(epoch=1, lanes=8, names=frozenset({"a", "b"}), ended="why")),
        ([Ended("why"), FORMED], Past(epoch=1, lanes=8, names=frozenset({"a", "b"}))),
        ([Formed(4, 100, 2, ("a",))], Past(epoch=4, step=100, lanes=2, names=frozenset({"a"}))),
    ],
    ids=["nothing", "an epoch", "a step", "two epochs", "the end", "a new beginning", "from a checkpoint"],
)
def test_lines_amount_to_a_past(lines, past):
    assert recall(lines) == past


def test_a_new_epoch_keeps_the_last_commit():
    past = recall([FORMED, Committed(1, 0, b"d0", 0.5), Formed(2, 1, 8, ("a",))])

    assert past.last == Commit(0, b"d0")


@pytest.mark.parametrize("line", [FORMED, Committed(1, 0, b"\x00\xff", 0.5), Ended("why")])
def test_a_line_outlives_its_being_written(line):
    assert msgspec.json.decode(msgspec.json.encode(line), type=Line) == line


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_no_number_is_written_as_none(loss):
    text = msgspec.json.encode(Committed(1, 0, b"", loss))

    assert msgspec.json.decode(text, type=Line) == Committed(1, 0, b"", None)
