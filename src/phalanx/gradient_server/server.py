"""The gradient server as its user sees it."""

import contextlib
from typing import Self

from phalanx.buffers import even_parts
from phalanx.errors import ConfigError, DeadlineExceeded, PhalanxError
from phalanx.gradient_server.accumulator import Arithmetic, Weighting
from phalanx.gradient_server.collect import (
    Collection,
    Reduced,
    add_up_lanes,
    broadcast,
    hear_next,
    make_scratch,
    until_quiet,
)
from phalanx.gradient_server.entrenar import split_samples
from phalanx.gradient_server.lanes import Lanes
from phalanx.gradient_server.loop import Star
from phalanx.gradient_server.worker import Result, Task
from phalanx.transport import Acceptor, Credentials, Deadline, format_address, is_loopback, make_token
from phalanx.wire import Address, Purpose, entrenar, gradient


class GradientServer:
    """A server that averages the gradients of ``workers`` workers. It listens as soon as it is constructed.

    A gradient counts in proportion to its samples; with ``weighting="equal"`` all gradients count the same. With
    ``dialect="entrenar"`` the server also accepts entrenar's own workers. Those prove nothing about themselves, so
    the server then listens on this machine only, unless ``is_insecure``. The server needs memory for the result and
    for one run of each worker, however large the gradient is, except when entrenar's workers count samples. When a
    worker fails, dies or sends a value that is not finite, the server tells all workers, and every further call
    raises the same error.

    With ``lanes`` workers send the pieces of a step's lanes instead, and get the sum in the order of the canonical
    tree. The sum is neither divided nor weighted nor checked for finite values. All pieces are held in memory.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        workers: int,
        weighting: Weighting | str = Weighting.SAMPLES,
        credentials: Credentials = Credentials(),  # noqa: B008 - it is frozen
        dialect: str | None = None,
        lanes: int | None = None,
        is_insecure: bool = False,
        timeout_s: float = 300.0,
    ) -> None:
        if workers < 1:
            raise ConfigError(f"a gradient server needs at least 1 worker, not {workers}")
        check_dialect(dialect, lanes)
        self._lanes = None if lanes is None else Lanes(lanes, workers)
        self._weighting = Weighting.parse(weighting)
        self._arithmetic = Arithmetic.ENTRENAR if dialect else Arithmetic.OURS
        self._timeout_s = timeout_s
        self._size = workers
        self._scratch = make_scratch(workers)
        if dialect:
            acceptor = _open_to_entrenar(host, port, credentials, is_insecure=is_insecure)
        else:
            acceptor = Acceptor(host, port, credentials, Purpose.STAR)
        self.address: Address = acceptor.address
        self.total_samples = 0
        """How many samples ``send_shards`` divides among the workers."""
        self._star = Star(acceptor, workers)

    @property
    def worker_count(self) -> int:
        """How many workers have joined."""
        return len(self._star.members)

    def wait_for_workers(self, timeout_s: float) -> None:
        """Return when all workers have joined. Other connections are refused and change nothing."""
        deadline = Deadline.after(timeout_s)
        if not self._star.is_complete.wait(deadline.remaining_s()):
            here = ", ".join(map(str, self._star.workers)) or "nobody"
            raise DeadlineExceeded(
                f"{self.worker_count} of {self._size} workers joined within {timeout_s:g} s ({here}): "
                f"start the others with the address {format_address(self.address)}, or allow more time"
            )

    def send_shards(self, step: int) -> None:
        """Divide the samples of a step among the workers, and tell each worker its own.

        Shares differ by at most 1 sample. With ``dialect="entrenar"`` the last worker gets all that is left over.
        """
        if self.total_samples < 1:
            raise ConfigError(
                f"there are {self.total_samples} samples to divide among the workers: set total_samples first"
            )
        self._carry_out(self._share_out(step), step, f"sending the shards of step {step}")

    def collect(self, step: int, what: gradient.What) -> Reduced:
        """Wait until every worker has sent this gradient, and return the mean, or with lanes the sum."""
        task = self._reduce(step, what, is_streaming=False)
        return self._carry_out(task, step, f"collecting step {step}, {what}")

    def broadcast(self, mean: Reduced) -> None:
        """Send a mean to all workers."""
        self._carry_out(
            broadcast(self._star.workers, mean), mean.step, f"sending the mean of step {mean.step}, {mean.what}"
        )

    def exchange(self, step: int, what: gradient.What) -> Reduced:
        """Collect and broadcast in one call. Without lanes, the mean of early runs leaves while later runs arrive."""
        return self._carry_out(self._exchange(step, what), step, f"exchanging step {step}, {what}")

    def exchange_next(self) -> Reduced:
        """Exchange whatever the workers send next. The first worker to send decides what all must send."""
        return self._carry_out(self._exchange_next(), 0, "waiting for what comes next")

    def shutdown(self) -> None:
        """Tell every worker that there is no more work."""
        with contextlib.suppress(PhalanxError):  # all workers have halted or gone: nobody is left to be told
            self._star.carry_out(self._star.end(), 0, "shutting down", Deadline.after(self._timeout_s))

    def close(self) -> None:
        """Close all connections. Closing twice is harmless."""
        self._star.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry_out(self, task: Task[Result], step: int, doing: str) -> Result:
        if not self._star.is_complete.is_set():
            raise ConfigError(f"{self.worker_count} of {self._size} workers have joined: call wait_for_workers first")
        return self._star.carry_out(task, step, doing, Deadline.after(self._timeout_s))

    def _share_out(self, step: int) -> Task[None]:
        workers = self._star.workers
        split = split_samples if self._arithmetic is Arithmetic.ENTRENAR else even_parts
        for worker, part in zip(workers, split(self.total_samples, self._size), strict=True):
            worker.peer.say(gradient.WorkerSamples(step=step, start=part.start, stop=part.stop))
        yield from until_quiet(workers)

    def _reduce(self, step: int, what: gradient.What, *, is_streaming: bool) -> Task[Reduced]:
        workers = self._star.workers
        if self._lanes:
            return add_up_lanes(workers, step, what, self._lanes)
        return Collection(workers, step, what, self._weighting, self._arithmetic, self._scratch, is_streaming).reduce()

    def _exchange_next(self) -> Task[Reduced]:
        step, what = yield from hear_next(self._star.workers)
        return (yield from self._exchange(step, what))

    def _exchange(self, step: int, what: gradient.What) -> Task[Reduced]:
        workers = self._star.workers
        is_streaming = self._lanes is None and all(worker.peer.wire.is_streaming for worker in workers)
        mean = yield from self._reduce(step, what, is_streaming=is_streaming)
        if is_streaming:
            yield from until_quiet(workers)
        else:
            yield from broadcast(workers, mean)
        return mean


def check_dialect(dialect: str | None, lanes: int | None) -> None:
    """Raise ConfigError for an unknown dialect, and for lanes in a dialect that has none."""
    if dialect not in (None, "entrenar"):
        raise ConfigError(f"{dialect!r} is not a dialect: leave it out for our own protocol, or use entrenar")
    if dialect and lanes is not None:
        raise ConfigError(f"entrenar's protocol has no lanes, and {lanes} were asked for: leave out one or the other")


def _open_to_entrenar(host: str, port: int, credentials: Credentials, *, is_insecure: bool) -> Acceptor:
    if is_insecure and credentials.token is None:
        credentials = Credentials(
            make_token().encode(), credentials.tls
        )  # nobody has this token, so only entrenar's workers can join
    acceptor = Acceptor(host, port, credentials, Purpose.STAR, knows_foreign=entrenar.is_opening)
    if not is_insecure and not is_loopback(acceptor.address.host):
        acceptor.close()
        raise ConfigError(
            f"{format_address(acceptor.address)} is reachable from other machines, and entrenar's workers have "
            "no token, so anybody could join: bind to 127.0.0.1, or set is_insecure=True (--insecure)"
        )
    return acceptor
