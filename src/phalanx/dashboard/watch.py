"""One run as the page sees it: its files followed, and its view made from them."""

import re
import time
from pathlib import Path

import msgspec

from phalanx.coordinator import ask_stacks
from phalanx.dashboard.follow import EventFollower, RecordFollower, StepFollower
from phalanx.dashboard.strips import Strips
from phalanx.dashboard.view import View, make_charts, make_view
from phalanx.errors import ConfigError, DeadlineExceeded, PhalanxError
from phalanx.launch.running import find_runs
from phalanx.plain_file import open_plain
from phalanx.telemetry import BlameReport, StepTimes, add_up, judge
from phalanx.train.compare import compare
from phalanx.train.incidents import Incident, find_incidents
from phalanx.train.log import read_steps
from phalanx.train.run_status import RunStatus, describe_status
from phalanx.train.rundir import RunDir, read_config
from phalanx.train.story import Findings, make_story
from phalanx.transport import Deadline, parse_address

_JUDGE_S = 30.0  # between two verdicts on who is slow: adding up records takes time
_ANSWER_S = 5.0
_LOG_BYTES = 1 << 14


class Watch:
    """Follows a run, and another one to compare it with. One thread at a time may look."""

    def __init__(self, run: RunDir, other: RunDir | None = None, log_dir: Path | None = None) -> None:
        self._run, self._other, self._log_dir = run, other, log_dir
        self._steps = StepFollower(run.steps)
        self._other_steps = StepFollower(other.steps) if other else None
        self._events = EventFollower(run.events)
        self._records = RecordFollower(run.telemetry)
        self._incidents: list[Incident] = []
        self._verdict: tuple[StepTimes, BlameReport | None] | None = None
        self._judged_at = -_JUDGE_S
        self._comparison = ""
        self._is_compared = False  # for good
        self._planned = read_config(run.config).train.steps
        self._status: RunStatus | None = None

    def look(self) -> View:
        """Read what is new, and return what the page shows now."""
        self._steps.read()
        if self._events.read():
            self._incidents = find_incidents(self._events.events)
        if self._records.read():
            self._judge()
        is_over = not (self._run.address.exists() or self._run.is_held)
        if self._other and self._other_steps:
            self._other_steps.read()
            self._compare(self._other, is_over=is_over)
        story = make_story(
            Findings(
                run_dir=str(self._run.path),
                incidents=self._incidents,
                planned_steps=self._planned,
                result=self._run.read_result() if self._run.result.exists() else None,
                checkpoints=self._steps.saved,
            )
        )
        other = self._other_steps.columns() if self._other_steps else None
        return make_view(
            name=self._run.path.name,
            status=self.status(),
            story=story,
            incidents=self._incidents,
            events=self._events.events,
            charts=make_charts(self._steps.columns(), other),
            comparison=self._comparison,
            strips=self._records.live(),
            span=self._records.span(),
            now=time.time(),
            is_over=is_over,
            has_logs=self._log_dir is not None,
        )

    def status(self) -> RunStatus:
        """Return how the run stands, as of the last look."""
        times, report = self._verdict or (None, None)
        return describe_status(
            self._steps.recent,
            planned_steps=self._planned,
            incidents=self._incidents,
            times=times,
            report=report,
        )

    def window(self, start: float, end: float) -> Strips:
        """Return strips between two times since 1970."""
        return self._records.window(start, end)

    def stacks(self, rank: int) -> str:
        """Return the Python stacks of a rank, which its worker tells through the coordinator; or why not."""
        try:
            where = parse_address(self._run.read_address())
            credentials = find_runs().get(where)
            if credentials is None:
                return "No worker of this run is on this machine, so nobody here knows its token."
            return ask_stacks(where, Deadline.after(_ANSWER_S), credentials, rank)
        except DeadlineExceeded:
            return f"Rank {rank} does not answer: its process is stopped, or its machine does not respond."
        except PhalanxError as error:
            return str(error)

    def log(self, rank: int | None) -> str:
        """Return the last lines of the log of a rank, or with None of the coordinator; or why there are none."""
        if rank is not None and self._log_dir is None:
            return "This run keeps no logs of its workers: phalanx train --log-dir DIR does."
        path = self._run.coordinator_log if rank is None or not self._log_dir else self._log_dir / f"rank-{rank}.log"
        try:
            with open_plain(path) as file:
                file.seek(max(0, path.stat().st_size - _LOG_BYTES))
                text = (file.read(_LOG_BYTES) or b"").decode(errors="replace")
        except OSError as error:
            return f"There is no {path.name}: {error.strerror}."
        return re.sub(r"[^\n\t\x20-\x7e\u00a0-\uffff]", "?", text) or "The log is empty."

    def _judge(self) -> None:
        if self._verdict and time.monotonic() - self._judged_at < _JUDGE_S:
            return
        try:
            times = add_up(self._records.recent())
            self._verdict = times, judge(times)
        except ConfigError:
            self._verdict = None  # no rank has taken a step yet
        self._judged_at = time.monotonic()

    def _compare(self, other: RunDir, *, is_over: bool) -> None:
        if self._is_compared or (self._comparison and not is_over):
            return  # both logs are read whole, so only once, and again when the run is over
        self._is_compared = is_over
        try:
            self._comparison = str(compare(read_steps(self._run.steps), read_steps(other.steps)))
        except (ConfigError, msgspec.DecodeError) as error:
            self._comparison = str(error)
