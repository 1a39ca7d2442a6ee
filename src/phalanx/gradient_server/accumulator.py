"""The gradient server's arithmetic: whether contributions belong together, and their mean, run by run."""

from collections.abc import Callable, Sequence
from enum import Enum

import numpy as np

from phalanx.buffers import RUN, Array, DType, ReduceOp, fold, runs
from phalanx.errors import CollectiveMismatch, ConfigError, NonFiniteGradient
from phalanx.wire import gradient, odd_one_out

Fold = Callable[[Sequence[Array], Array], None]


class Weighting(Enum):
    """What a worker's gradient counts for."""

    SAMPLES = "samples"
    """As many times as it has samples."""
    EQUAL = "equal"

    @classmethod
    def parse(cls, value: "Weighting | str") -> "Weighting":
        """The weighting that an argument names."""
        try:
            return cls(value)
        except ValueError:
            raise ConfigError(f"{value!r} is no weighting: use samples or equal") from None


class Arithmetic(Enum):
    """Whose rounding a mean has."""

    OURS = "canonical tree, losses in f64"
    ENTRENAR = "from 0.0 on in the order of workers, losses in f32"


class Accumulator:
    """The mean of one gradient of every worker, by number; ``names`` is what errors call them.

    Its memory is the result and a run for each worker: contributions are folded as they come, and left intact.
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
        """Write the mean of a run of all gradients into the result, or raise NonFiniteGradient."""
        for piece in runs(run, RUN):
            inputs = [each[piece.start - run.start : piece.stop - run.start] for each in contributions]
            mean = self.result[piece]
            self._fold(inputs, mean)
            if not np.isfinite(mean).all():
                raise self._non_finite(piece.start, inputs)

    def describe(self, contributions: Sequence[gradient.Gradient]) -> gradient.Mean:
        """The result in words and numbers; the contributions are complete now."""
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
    """What to say of a result of these sizes, with the loss over all samples."""
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
    """Raise CollectiveMismatch unless a worker sent what the server collects."""
    if (sent.step, sent.what) != (step, what):
        raise CollectiveMismatch(
            f"{name} sent step {sent.step}, {sent.what}, but the server collects step {step}, {what}: "
            "both must take the same steps in the same order",
            peer=worker,
        )


def check_shapes(contributions: Sequence[gradient.Gradient], names: Sequence[str]) -> None:
    """Raise CollectiveMismatch unless all gradients have the same elements; it names the one that is alone with its."""
    check_alike([(sent.elements, sent.sizes) for sent in contributions], contributions, names)


def check_alike(shapes: Sequence[object], contributions: Sequence[gradient.Gradient], names: Sequence[str]) -> None:
    """Raise CollectiveMismatch unless all shapes are the same; it names the worker that is alone with its."""
    found = odd_one_out(dict(enumerate(shapes)))
    if found:
        odd, other = found
        words = f"{names[odd]} sent {contributions[odd]}, but {names[other]} sent {contributions[other]}"
        raise CollectiveMismatch(f"{words}: all workers must train the same model", peer=odd)


def has_late_weights(contributions: Sequence[gradient.Gradient], weighting: Weighting) -> bool:
    """Whether weights will be known only when the gradients are complete: then they cannot be folded earlier."""
    is_whole = isinstance(contributions[0].what, gradient.Whole)  # entrenar counts no samples of anything else
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
        np.add(inputs[0], np.float32(0.0), out=out)  # makes -0.0 positive, as the original does
        for each in inputs[1:]:
            np.add(out, each, out=out)
        np.divide(out, np.float32(len(inputs)), out=out)


class _WeightedFold:
    """Folds gradients, each as many times as it has samples."""

    def __init__(self, samples: Sequence[int]) -> None:
        self._weights = [np.float32(each) for each in samples]
        self._total = np.float32(sum(samples))
        self._scaled = np.empty((len(samples), RUN), np.float32)

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
