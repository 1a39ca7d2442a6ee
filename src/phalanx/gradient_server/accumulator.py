"""The gradient server's arithmetic: check that the contributions fit together, and average them run by run."""

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from phalanx.buffers import CHUNK, Array, DType, ReduceOp, fold, slices
from phalanx.errors import CollectiveMismatch, ConfigError, NonFiniteGradient
from phalanx.wire import gradient, odd_one_out

Fold = Callable[[Sequence[Array], Array], None]


class Weighting(Enum):
    """How much a worker's gradient counts in the mean."""

    SAMPLES = "samples"
    """In proportion to its samples."""
    EQUAL = "equal"
    """All gradients count the same."""

    @classmethod
    def parse(cls, value: "Weighting | str") -> "Weighting":
        """Return the weighting that an argument names."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"{value!r} is not a weighting: use samples or equal") from None


class Arithmetic(Enum):
    """In which order, and so with which rounding, a mean is computed."""

    OURS = "canonical tree, losses in f64"
    ENTRENAR = "from 0.0 on in the order of workers, losses in f32"


class Accumulator:
    """Computes the mean of one gradient of every worker. ``contributions`` and ``names`` are in the order of workers.

    It needs memory for the result and for one run of each worker, and does not change the contributions.
    """

    def __init__(
        self,
        contributions: Sequence[gradient.Gradient],
        names: Sequence[str],
        weighting: Weighting = Weighting.SAMPLES,
        arithmetic: Arithmetic = Arithmetic.OURS,
    ) -> None:
        check_shapes(contributions, names)
        self._first = contributions[0]
        self._names = names
        self._arithmetic = arithmetic
        self._fold = _choose_fold(contributions, weighting, arithmetic)
        self.result: Array = np.empty(self._first.elements, np.float32)

    def add_up(self, run: slice, contributions: Sequence[Array]) -> None:
        """Write the mean of one run of all contributions into the result, or raise NonFiniteGradient."""
        for piece in slices(run, CHUNK):
            inputs = [each[piece.start - run.start : piece.stop - run.start] for each in contributions]
            mean = self.result[piece]
            self._fold(inputs, mean)
            if not np.isfinite(mean).all():
                raise self._non_finite(piece.start, inputs)

    def describe(self, contributions: Sequence[gradient.Gradient]) -> gradient.Mean:
        """Return the message that describes the result, now that all contributions are complete."""
        return describe(contributions, self._first.sizes, self._arithmetic)

    def _non_finite(self, start: int, inputs: Sequence[Array]) -> NonFiniteGradient:
        step, where = self._first.step, f"of {self._first.what} at step {self._first.step}"
        for worker, values in enumerate(inputs):
            if len(found := np.flatnonzero(~np.isfinite(values))):
                words = f"{self._names[worker]} sent {values[found[0]]} as element {start + found[0]} {where}"
                return NonFiniteGradient(f"{words}: look at its samples", step=step, rank=worker)
        mean = self.result[start : start + len(inputs[0])]
        element = start + np.flatnonzero(~np.isfinite(mean))[0]
        words = f"the sum of all gradients overflows at element {element} {where}, although each of them is finite"
        return NonFiniteGradient(f"{words}: scale the loss, or clip", step=step)


def describe(
    contributions: Sequence[gradient.Gradient], sizes: tuple[int, ...], arithmetic: Arithmetic = Arithmetic.OURS
) -> gradient.Mean:
    """Return the message that describes a result of these sizes, with the loss over all samples."""
    samples = [each.samples or 0 for each in contributions]
    return gradient.Mean(
        step=contributions[0].step,
        what=contributions[0].what,
        elements=sum(sizes),
        sizes=sizes,
        loss=_mean_loss([each.loss for each in contributions], samples, arithmetic),
        correct=sum(each.correct for each in contributions),
        samples=sum(samples),
    )


def check_asked(worker: int, name: str, sent: gradient.Gradient, step: int, what: gradient.What) -> None:
    """Raise CollectiveMismatch unless a worker sent the step and the part that the server collects."""
    if (sent.step, sent.what) != (step, what):
        raise CollectiveMismatch(
            f"{name} sent step {sent.step}, {sent.what}, but the server collects step {step}, {what}: "
            "both must take the same steps in the same order",
            peer=worker,
        )


def check_shapes(contributions: Sequence[gradient.Gradient], names: Sequence[str]) -> None:
    """Raise CollectiveMismatch, naming the odd worker, unless all gradients have the same sizes."""
    check_alike([(sent.elements, sent.sizes) for sent in contributions], contributions, names)


def check_alike(shapes: Sequence[object], contributions: Sequence[gradient.Gradient], names: Sequence[str]) -> None:
    """Raise CollectiveMismatch, naming the odd worker, unless all shapes are equal."""
    found = odd_one_out(dict(enumerate(shapes)))
    if found:
        odd, other = found
        sent, theirs = contributions[odd], contributions[other]
        words = f"{names[odd]} sent {sent}, but {names[other]} sent {theirs}"
        if str(sent) == str(theirs):  # many components: only the first ones are shown
            pairs = enumerate(zip(sent.sizes, theirs.sizes, strict=False))
            words += next((f", and component {at} has {a} and {b} elements" for at, (a, b) in pairs if a != b), "")
        raise CollectiveMismatch(f"{words}: all workers must train the same model", peer=odd)


def has_late_weights(contributions: Sequence[gradient.Gradient], weighting: Weighting) -> bool:
    """Return whether the weights arrive after the gradients, which then cannot be averaged as they arrive."""
    is_whole = isinstance(contributions[0].what, gradient.Whole)  # entrenar counts samples for these only
    return weighting is Weighting.SAMPLES and is_whole and any(each.samples is None for each in contributions)


def _choose_fold(contributions: Sequence[gradient.Gradient], weighting: Weighting, arithmetic: Arithmetic) -> Fold:
    samples = [each.samples for each in contributions if each.samples is not None]
    is_weighted = weighting is Weighting.SAMPLES and len(samples) == len(contributions) and len(set(samples)) > 1
    if is_weighted:
        return _WeightedFold(samples)
    return _fold_in_order if arithmetic is Arithmetic.ENTRENAR else _fold_equal


def _fold_equal(inputs: Sequence[Array], out: Array) -> None:
    fold(ReduceOp.MEAN, DType.F32, inputs, out)


def _fold_in_order(inputs: Sequence[Array], out: Array) -> None:
    with np.errstate(all="ignore"):
        np.add(inputs[0], np.float32(0.0), out=out)  # turns -0.0 into 0.0, as entrenar does
        for each in inputs[1:]:
            np.add(out, each, out=out)
        np.divide(out, np.float32(len(inputs)), out=out)


class _WeightedFold:
    """Adds up gradients, each multiplied by its number of samples, and divides by all samples."""

    def __init__(self, samples: Sequence[int]) -> None:
        self._weights = [np.float32(each) for each in samples]
        self._total = np.float32(sum(samples))
        self._scaled = np.empty((len(samples), CHUNK), np.float32)

    def __call__(self, inputs: Sequence[Array], out: Array) -> None:
        scaled = [row[: len(out)] for row in self._scaled]
        with np.errstate(all="ignore"):
            for values, weight, row in zip(inputs, self._weights, scaled, strict=True):
                np.multiply(values, weight, out=row)
            fold(ReduceOp.SUM, DType.F32, scaled, out)
            np.divide(out, self._total, out=out)


def _mean_loss(losses: Sequence[float], samples: Sequence[int], arithmetic: Arithmetic) -> float:
    if not any(samples):
        return 0.0
    if arithmetic is Arithmetic.OURS:
        return sum(loss * count for loss, count in zip(losses, samples, strict=True)) / sum(samples)
    total = np.float32(0.0)
    with np.errstate(all="ignore"):
        for loss, count in zip(losses, samples, strict=True):
            total += np.float32(loss) * np.float32(count)
        return float(total / np.float32(sum(samples)))
