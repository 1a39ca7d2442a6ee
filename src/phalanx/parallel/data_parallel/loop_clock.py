"""Recording the steps of a loop of somebody's own, as far as the model sees them."""

import time

from phalanx.group import Group
from phalanx.telemetry import Activity, Recorder


class LoopClock:
    """Records what a rank does between two exchanges. A step ends when ``.grad`` holds the mean.

    The model sees only its own calls. So all between an exchange and the next forward pass is recorded as data, also
    the optimizer, and all between a forward pass and the last gradient as backward, also the loss.
    """

    def __init__(self, recorder: Recorder, group: Group) -> None:
        self._recorder = recorder
        self._rank, self._epoch = group.rank, group.epoch
        self._is_behind_forward = False
        self.begin_step(0)

    def begin_step(self, step: int) -> None:
        """Say that this step begins now."""
        self._recorder.begin_step(step, self._rank, self._epoch)
        self._began = self._mark = time.monotonic_ns()
        self._is_behind_forward = False

    def begin_forward(self) -> None:
        """Say that a forward pass begins: what was before it is data, or the backward of an earlier pass."""
        self._end(Activity.BACKWARD if self._is_behind_forward else Activity.DATA)

    def end_forward(self) -> None:
        """Say that a forward pass is over."""
        self._end(Activity.FORWARD)
        self._is_behind_forward = True

    def end_backward(self) -> None:
        """Say that this rank has all its gradients."""
        self._end(Activity.BACKWARD)

    def end_step(self, next_step: int) -> None:
        """Say that ``.grad`` holds the mean, and that the next step begins."""
        self._recorder.record(Activity.EXPOSED, self._mark)
        self._recorder.record(Activity.STEP, self._began)
        self.begin_step(next_step)

    def _end(self, activity: Activity) -> None:
        self._recorder.record(activity, self._mark, self._rank)
        self._mark = time.monotonic_ns()
