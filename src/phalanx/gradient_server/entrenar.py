"""Translation between entrenar's messages and ours."""

from collections.abc import Iterator, Sequence

from phalanx.errors import BadFrame, CollectiveMismatch
from phalanx.wire import entrenar, gradient


class EntrenarWire:
    """Reads and writes entrenar's frames, for a server or for a worker.

    Messages that entrenar does not have become a Shutdown. A frame is never interrupted, because entrenar's own peers
    read every frame to its end.
    """

    is_streaming = False

    def __init__(self) -> None:
        self._reader = entrenar.EntrenarReader()
        self._worker = 0
        self._blocks = 1

    @property
    def wants(self) -> int:
        """The most bytes to feed next."""
        return self._reader.wants

    @property
    def data_bytes(self) -> int:
        """How many bytes of elements come next; 0 while a message is read."""
        return self._reader.data_bytes

    def feed(self, data: bytes) -> list[gradient.Event]:
        """Take in what the peer sent and return the events it completes."""
        return self._translate(self._reader.feed(data))

    def took(self, size_bytes: int) -> list[gradient.Event]:
        """Count bytes of elements that were received elsewhere, and return the event they complete, if any."""
        return self._translate(self._reader.took(size_bytes))

    def trust(self) -> None:
        """Accept frames of any length, now that the peer has joined."""
        self._reader.raise_limit(2**32 - 1)

    def frames(self, message: gradient.Message, data: memoryview) -> Iterator[tuple[gradient.Buffer, ...]]:
        """Yield the buffers to send for a message. ``data`` is the elements, if it has any, and is not copied."""
        if isinstance(message, gradient.WorkerJoined):
            self._worker = message.worker
        if isinstance(message, gradient.Gradient) and isinstance(message.what, gradient.ModelBlock):
            self._blocks = message.what.of
        theirs = self._to_theirs(message)
        if theirs:
            yield entrenar.opening(theirs), data, entrenar.closing(theirs)

    def _translate(self, event: entrenar.EntrenarBegan | entrenar.EntrenarEnded | None) -> list[gradient.Event]:
        match event:
            case None | entrenar.EntrenarEnded(message=entrenar.Heartbeat()):
                return []
            case entrenar.EntrenarBegan(message=theirs):
                message = self._to_ours(theirs, is_complete=False)
                assert isinstance(message, gradient.Gradient | gradient.Mean)
                return [gradient.GradientBegan(message)]
            case entrenar.EntrenarEnded(message=theirs):
                message = self._to_ours(theirs, is_complete=True)
                if isinstance(message, gradient.Gradient | gradient.Mean) and message.elements == 0:
                    return [gradient.GradientBegan(message), gradient.MessageEnded(message)]
                return [gradient.MessageEnded(message)]

    def _to_theirs(self, message: gradient.Message) -> entrenar.Message | None:
        match message:
            case gradient.WorkerJoin(name=name):
                return entrenar.JoinRequest(name, 1, "cpu")
            case gradient.WorkerJoined(worker=worker, workers=workers):
                return entrenar.JoinAccepted(worker, workers)
            case gradient.WorkerSamples(step=step, start=start, stop=stop):
                return entrenar.ShardAssignment(step, start, stop)
            case gradient.Gradient():
                return self._to_payload(message)
            case gradient.Mean():
                return _to_averaged(message)
            case gradient.ServerHalt() | gradient.ServerEnd() | gradient.WorkerRefused():
                return entrenar.Shutdown()
            case gradient.ServerAlive():
                return None  # entrenar's workers expect none

    def _to_payload(self, sent: gradient.Gradient) -> entrenar.Gradient:
        match sent.what:
            case gradient.Whole():
                return entrenar.GradientPayload(
                    sent.step, self._worker, sent.elements, sent.loss, sent.correct, sent.samples or 0
                )
            case gradient.ModelBlock(index=index, of=blocks):
                return entrenar.BlockGradientPayload(sent.step, self._worker, index, blocks, sent.sizes, sent.elements)
            case gradient.Component(value=component):
                return entrenar.NonBlockGradientPayload(sent.step, self._worker, component, sent.elements)

    def _to_ours(self, message: entrenar.Message, *, is_complete: bool) -> gradient.Message:
        match message:
            case entrenar.JoinRequest(node_id=name):
                return gradient.WorkerJoin(name=name)
            case entrenar.JoinAccepted(worker_id=worker, total_workers=workers):
                self._worker = worker
                return gradient.WorkerJoined(worker=worker, workers=workers)
            case entrenar.ShardAssignment(step=step, shard_start=start, shard_end=stop):
                return gradient.WorkerSamples(step=step, start=start, stop=stop)
            case entrenar.GradientPayload() | entrenar.BlockGradientPayload() | entrenar.NonBlockGradientPayload():
                return self._to_gradient(message, is_complete=is_complete)
            case entrenar.AveragedGradient(step=step, elements=elements, global_loss=loss):
                return gradient.Mean(step=step, what=gradient.Whole(), elements=elements, sizes=(elements,), loss=loss)
            case entrenar.AveragedBlockGradient(step=step, block_idx=index, component_sizes=sizes, elements=elements):
                return gradient.Mean(step=step, what=_block(index, self._blocks), elements=elements, sizes=sizes)
            case entrenar.AveragedNonBlockGradient(step=step, component=component, elements=elements):
                return gradient.Mean(step=step, what=_component(component), elements=elements, sizes=(elements,))
            case entrenar.Shutdown():
                return gradient.ServerEnd()
            case entrenar.Heartbeat():
                raise AssertionError("heartbeats are dropped before they get here")

    def _to_gradient(self, sent: entrenar.Gradient, *, is_complete: bool) -> gradient.Gradient:
        step, elements = sent.step, sent.elements
        match sent:
            case entrenar.GradientPayload(worker_id=worker, loss=loss, correct=correct, total=total):
                samples = total if is_complete else None
                message = gradient.Gradient(step, gradient.Whole(), elements, (elements,), loss, correct, samples)
            case entrenar.BlockGradientPayload(worker_id=worker, block_idx=index, num_blocks=of, component_sizes=sizes):
                message = gradient.Gradient(step, _block(index, of), elements, sizes)
            case entrenar.NonBlockGradientPayload(worker_id=worker, component=component):
                message = gradient.Gradient(step, _component(component), elements, (elements,))
        if worker != self._worker:
            raise CollectiveMismatch(
                f"it sent {message} as worker {worker}, but it is worker {self._worker}", peer=self._worker
            )
        return message


def split_samples(total: int, workers: int) -> Sequence[slice]:
    """Return the samples of each worker as entrenar's server divides them: the last worker gets what is left over."""
    share = total // workers
    return [slice(n * share, total if n == workers - 1 else (n + 1) * share) for n in range(workers)]


def _to_averaged(mean: gradient.Mean) -> entrenar.Gradient:
    match mean.what:
        case gradient.Whole():
            return entrenar.AveragedGradient(mean.step, mean.elements, mean.loss)
        case gradient.ModelBlock(index=index):
            return entrenar.AveragedBlockGradient(mean.step, index, mean.sizes, mean.elements)
        case gradient.Component(value=component):
            return entrenar.AveragedNonBlockGradient(mean.step, component, mean.elements)


def _block(index: int, of: int) -> gradient.ModelBlock:
    if index >= of:
        raise BadFrame(f"a model of {of} blocks has no block {index}")
    return gradient.ModelBlock(index, of)


def _component(code: int) -> gradient.Component:
    try:
        return gradient.Component(code)
    except ValueError:
        raise BadFrame(f"component {code} does not exist") from None
