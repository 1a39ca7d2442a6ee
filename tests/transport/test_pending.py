import threading
import traceback
import weakref

import pytest

from phalanx.errors import DeadlineExceeded
from phalanx.transport import Pending


def test_a_result_is_there_for_whoever_waits():
    pending = Pending("all_reduce")
    worker = threading.Thread(target=pending.complete, args=(lambda: 42,))

    worker.start()
    result = pending.wait(10)
    worker.join()

    assert result == 42
    assert pending.wait() == 42


def test_an_error_is_raised_to_whoever_waits():
    pending = Pending("all_reduce")

    pending.complete(lambda: 1 // 0)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            pending.wait()


def test_it_is_done_once_there_is_a_result():
    pending = Pending("all_reduce")
    before = pending.is_done

    pending.complete(lambda: None)

    assert not before
    assert pending.is_done


def test_who_waits_too_short_is_told_what_for_and_may_wait_again():
    pending = Pending("all_reduce of 8 f32")

    with pytest.raises(DeadlineExceeded, match=r"all_reduce of 8 f32 was not finished after 0.001 s"):
        pending.wait(timeout_s=0.001)
    pending.complete(lambda: "late")

    assert pending.wait() == "late"


def test_an_error_that_came_instead_of_the_result_is_raised():
    pending = Pending("an exchange")

    pending.fail(ValueError("no"))

    assert pending.is_done
    with pytest.raises(ValueError, match="no"):
        pending.wait()


def test_an_error_keeps_its_lines_and_no_variable_of_the_frames_it_came_through():
    class Gradients:
        pass

    def exchange():
        nonlocal reference
        gradients = Gradients()
        reference = weakref.ref(gradients)
        first, second = ValueError("cut"), OSError("lost")
        first.__cause__, second.__cause__ = second, first  # a circle must not be walked for ever
        raise first

    reference = None
    pending = Pending("all_reduce")

    pending.complete(exchange)

    assert reference() is None
    assert [frame.name for frame in traceback.extract_tb(pending.error.__traceback__)] == ["exchange"]
