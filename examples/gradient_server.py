"""Linear regression through a gradient server: workers call one place, send their gradients, and get the mean.

python examples/gradient_server.py
"""

import threading

import numpy as np
import numpy.typing as npt

from phalanx.gradient_server import GradientServer, Whole, WorkerClient
from phalanx.wire import Address

WORKERS = 3
STEPS = 200
SAMPLES = 100
LEARNING_RATE = 0.1
TRUE_WEIGHTS = np.array([2.0, -1.0, 0.5], np.float32)


def work(server: Address, found: list[npt.NDArray[np.float32]]) -> None:
    """Stand in for a worker: usually a process on another machine."""
    inputs = np.random.default_rng(seed=0).normal(size=(SAMPLES, 3)).astype(np.float32)  # the same on every worker
    outputs = inputs @ TRUE_WEIGHTS
    weights = np.zeros(3, np.float32)
    with WorkerClient(server) as client:
        while shard := client.receive_shard():
            own = slice(shard.start, shard.stop)
            errors = inputs[own] @ weights - outputs[own]
            gradient = 2 / len(errors) * inputs[own].T @ errors
            loss = float(np.mean(errors**2))
            mean = client.exchange(shard.step, gradient, Whole(), loss=loss, samples=len(errors))
            weights -= LEARNING_RATE * mean.gradients
    found.append(weights)


with GradientServer(workers=WORKERS) as server:
    found: list[npt.NDArray[np.float32]] = []
    threads = [threading.Thread(target=work, args=(server.address, found)) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    server.wait_for_workers(timeout_s=10)
    server.total_samples = SAMPLES
    for step in range(STEPS):
        server.send_shards(step)
        mean = server.exchange(step, Whole())
    server.shutdown()
    for thread in threads:
        thread.join()

assert all((weights == found[0]).all() for weights in found), "the workers' weights differ"
print(f"{WORKERS} workers have {found[0].round(3).tolist()}, loss {mean.loss:.2e}")
