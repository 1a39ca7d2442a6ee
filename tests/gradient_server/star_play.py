"""A gradient server and its workers in one process, for tests."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from phalanx.gradient_server import GradientServer, Whole, WorkerClient

F32 = np.float32


def serve(stack, workers, **options):
    return stack.enter_context(GradientServer(workers=workers, **{"timeout_s": 10.0, **options}))


def join(stack, server, count=1, **options):
    """Workers that have joined, by number."""
    options = {"timeout_s": 10.0, **options}
    return [stack.enter_context(WorkerClient(server.address, **options)) for _ in range(count)]


def star(stack, count, **options):
    server = serve(stack, count, **options)
    workers = join(stack, server, count)
    server.wait_for_workers(10)
    return server, workers


def together(*calls):
    """What each call returned, or raised."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
    return [future.exception() or future.result() for future in futures]


def full(value, length=5):
    return np.full(length, value, F32)


def exchange(worker, step=0, what=None, gradients=None, **options):
    gradients = full(worker.worker + 1.0) if gradients is None else gradients
    return lambda: worker.exchange(step, gradients, Whole() if what is None else what, **options)
