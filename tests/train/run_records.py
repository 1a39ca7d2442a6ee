"""Steps as runs log them."""

from phalanx.train.record import StepRecord, float_bits


def make_step(step, loss=2.5, **others):
    fields = {
        "norm": 1.25,
        "lr": 3e-4,
        "digest": "d1",
        "tokens": 1024,
        "workers": 2,
        "compute_s": 0.08,
        "exchange_s": 0.01,
        "wait_s": 0.005,
        "seconds": 0.1,
    }
    return StepRecord(step=step, loss=loss, loss_bits=float_bits(loss), **(fields | others))


def make_steps(count, **others):
    return [make_step(step, 5.0 / step, **others) for step in range(1, count + 1)]
