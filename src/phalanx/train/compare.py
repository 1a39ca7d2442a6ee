"""Comparing two runs step by step, bit for bit."""

from collections.abc import Sequence
from dataclasses import dataclass

from phalanx.train.record import StepRecord, float_bits


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of one step that differs between two runs. ``first`` and ``second`` are its values as text."""

    name: str
    first: str
    second: str

    def __str__(self) -> str:
        return f"{self.name} {self.first} and {self.second}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The result of comparing two runs.

    ``equal`` counts the steps that both have and that are equal, up to the first that differs: ``step``, with its
    ``differences``. ``first_alone`` and ``second_alone`` count the steps that only one run has.
    """

    equal: int
    step: int | None = None
    differences: tuple[Difference, ...] = ()
    first_alone: int = 0
    second_alone: int = 0

    @property
    def is_same(self) -> bool:
        """Whether the runs have steps in common, and all of these are equal."""
        return self.equal > 0 and self.step is None

    def __str__(self) -> str:
        if self.step is not None:
            words = ", ".join(map(str, self.differences))
            return f"step {self.step} differs: {words}. {_count(self.equal)} before it {_verb(self.equal)} the same."
        alone = ((self.first_alone, "first"), (self.second_alone, "second"))
        more = ", ".join(f"only the {run} has {_count(number)} more" for number, run in alone if number)
        if not self.equal:
            return f"there is no step that both have: {more or 'both are empty'}"
        common = "that both have, " if more else ""
        words = f"the same for all {_count(self.equal)}{' ' if common else ', '}{common}bit for bit"
        return f"{words}; {more}" if more else words


def compare(first: Sequence[StepRecord], second: Sequence[StepRecord]) -> Comparison:
    """Return the first difference in loss, norm, digests or held-out loss, over the steps that both runs have."""
    ones = {record.step: record for record in first}
    others = {record.step: record for record in second}
    common = sorted(ones.keys() & others.keys())
    first_alone, second_alone = len(ones) - len(common), len(others) - len(common)
    for equal, step in enumerate(common):
        if differences := _differences(ones[step], others[step]):
            return Comparison(
                equal=equal,
                step=step,
                differences=differences,
                first_alone=first_alone,
                second_alone=second_alone,
            )
    return Comparison(equal=len(common), first_alone=first_alone, second_alone=second_alone)


def _differences(one: StepRecord, other: StepRecord) -> tuple[Difference, ...]:
    pairs = [
        ("loss", _words(one.loss), _words(other.loss)),
        ("norm", _words(one.norm), _words(other.norm)),
        ("digest", one.digest, other.digest),
    ]
    if one.eval_loss is not None and other.eval_loss is not None:  # a run that was stopped has evaluated once more
        pairs.append(("held-out loss", _words(one.eval_loss), _words(other.eval_loss)))
    if one.state_digest is not None and other.state_digest is not None:  # and has saved one checkpoint more
        pairs.append(("digest of all state after the step", one.state_digest, other.state_digest))
    return tuple(Difference(*pair) for pair in pairs if pair[1] != pair[2])


def _words(value: float) -> str:
    """Return a number with its bits, because close numbers look alike in decimal digits."""
    return f"{value:.4f} (bits {float_bits(value)})"


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


def _verb(steps: int) -> str:
    return "is" if steps == 1 else "are"
