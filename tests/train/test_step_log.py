import math
import resource

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from run_records import make_step, make_steps

from forking import fork, wait
from phalanx.errors import ConfigError
from phalanx.train.log import StepLog, cut, read_steps
from phalanx.train.record import StepRecord, float_bits

finite = st.floats(allow_nan=False, allow_infinity=False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "steps.jsonl"


def write(path, steps):
    with StepLog(path) as log:
        for step in steps:
            log.append(step)
    return path.read_bytes()


# Records


@given(finite)
def test_the_bits_of_a_number_are_those_of_no_other(number):
    assert float_bits(number) != float_bits(math.nextafter(number, math.inf))
    assert float_bits(number) == float_bits(float(repr(number)))


def test_the_bits_of_one_are_those_of_the_standard():
    assert float_bits(1.0) == "3ff0000000000000"
    assert float_bits(-0.0) == "8000000000000000"


def test_a_loss_beside_the_bits_of_another_is_refused():
    with pytest.raises(ConfigError, match=r"loss 2.5 of step 3 has bits 4004000000000000"):
        StepRecord(**{name: getattr(make_step(3), name) for name in StepRecord.__struct_fields__} | {"loss_bits": "00"})


@pytest.mark.parametrize("figures", [{"loss": math.nan}, {"loss": math.inf}, {"norm": -math.inf}])
def test_a_step_that_is_not_finite_is_refused(figures):
    with pytest.raises(ConfigError, match="step 3 has loss"):
        make_step(3, **figures)


# Writing and reading


def test_what_was_appended_is_read_back(path):
    steps = [make_step(1), make_step(2, 0.1 + 0.2, eval_loss=2.0)]

    write(path, steps)

    assert read_steps(path) == steps


@settings(deadline=None)
@given(loss=finite, norm=finite, lr=finite)
def test_numbers_come_back_with_the_same_bits(tmp_path_factory, loss, norm, lr):
    path = tmp_path_factory.mktemp("log") / "steps.jsonl"
    write(path, [make_step(1, loss, norm=norm, lr=lr)])

    (found,) = read_steps(path)

    assert [float_bits(each) for each in (found.loss, found.norm, found.lr)] == [
        float_bits(each) for each in (loss, norm, lr)
    ]


def test_a_step_can_be_read_while_the_log_is_open(path):
    with StepLog(path) as log:
        log.append(make_step(1))

        assert read_steps(path) == [make_step(1)]


def test_a_log_goes_on_where_it_ended(path):
    write(path, make_steps(2))
    write(path, make_steps(4)[2:])

    assert read_steps(path) == make_steps(4)


def test_a_step_that_was_not_cut_is_not_written_again(path):
    write(path, make_steps(3))

    with StepLog(path) as log, pytest.raises(AssertionError, match="step 2 after step 3"):
        log.append(make_step(2))


def test_closing_twice_is_harmless(path):
    log = StepLog(path)

    log.close()
    log.close()

    assert read_steps(path) == []


def test_a_log_that_is_not_there_is_named(path):
    with pytest.raises(ConfigError) as caught:
        read_steps(path)

    assert str(caught.value) == f"cannot read {path}: No such file or directory; is it the log of a run?"


def test_a_log_that_cannot_be_opened_is_named(tmp_path):
    with pytest.raises(ConfigError) as caught:
        StepLog(tmp_path)

    assert str(caught.value) == f"cannot write {tmp_path}: Is a directory; name another run directory"


def test_a_full_disk_is_named_and_leaves_what_was_logged(path):
    write(path, make_steps(2))

    def fill():
        room = path.stat().st_size + 10
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        words = (
            f"cannot write step 3 to {path}: File too large; free some space, then continue with --resume {path.parent}"
        )
        with StepLog(path) as log, pytest.raises(ConfigError) as caught:
            log.append(make_step(3))
        assert str(caught.value) == words

    assert wait(fork(fill)) == 0
    assert path.read_bytes().count(b"\n") == 2
    assert read_steps(path) == make_steps(2)


# Damage


def test_a_last_line_torn_at_any_byte_is_ignored_and_written_over(path):
    data = write(path, make_steps(2))
    first = data.index(b"\n") + 1

    for size in range(first, len(data)):
        path.write_bytes(data[:size])

        assert read_steps(path) == make_steps(1)
        assert write(path, make_steps(2)[1:]) == data


def test_a_damaged_line_before_the_last_is_named(path):
    lines = write(path, make_steps(3)).splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b'"loss":2.5', b'"loss":2.4') + lines[2])

    for read in (read_steps, StepLog):
        with pytest.raises(ConfigError, match=f"^line 2 of {path} is altered or damaged: .*; restore the file$"):
            read(path)


@pytest.mark.parametrize("line", [b"\xff\n", b"[]\n", b"\n", b"\0\0\0\n", b'{"step":1}\n'])
def test_a_line_that_is_no_record_is_damage_unless_it_is_the_last(path, line):
    data = write(path, make_steps(1))

    path.write_bytes(data + line)
    assert read_steps(path) == make_steps(1)

    path.write_bytes(line + data)
    with pytest.raises(ConfigError, match=f"^line 1 of {path}"):
        read_steps(path)


# Cutting


@pytest.mark.parametrize(("step", "left"), [(0, 0), (1, 0), (3, 2), (5, 4), (6, 5), (99, 5)])
def test_records_from_a_step_on_are_cut(path, step, left):
    write(path, make_steps(5))

    cut(path, step)

    assert read_steps(path) == make_steps(5)[:left]


def test_a_torn_line_is_cut_too(path):
    whole = write(path, make_steps(2))
    path.write_bytes(whole + b'{"step":3,"lo')

    cut(path, 10)

    assert path.read_bytes() == whole


def test_a_log_that_was_cut_goes_on_with_the_same_bytes(path):
    data = write(path, make_steps(5))

    cut(path, 3)

    assert write(path, make_steps(5)[2:]) == data
