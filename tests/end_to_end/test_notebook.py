"""``phalanx.spawn`` in a real Jupyter kernel, where functions live in the ``__main__`` of the kernel."""

import pytest

manager = pytest.importorskip("jupyter_client.manager", reason="the extra notebook is not installed")
pytest.importorskip("ipykernel", reason="the extra notebook is not installed")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]

LIMIT_S = 200


class Notebook:
    """A kernel and what its cells say."""

    def __init__(self, client):
        self._client = client

    def run(self, cell):
        """What a cell prints, the text of its value, and its error in lines."""
        printed, values, errors = [], [], []

        def note(message):
            content = message["content"]
            if message["msg_type"] == "stream":
                printed.append(content["text"])
            elif message["msg_type"] == "execute_result":
                values.append(content["data"]["text/plain"])
            elif message["msg_type"] == "error":
                errors.append(f"{content['ename']}: {content['evalue']}")

        self._client.execute_interactive(cell, timeout=LIMIT_S, output_hook=note)
        return "".join(printed), "".join(values), "\n".join(errors)


@pytest.fixture(scope="module")
def notebook():
    kernel, client = manager.start_new_kernel(kernel_name="python3", startup_timeout=LIMIT_S)
    try:
        yield Notebook(client)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)


def test_a_function_of_a_notebook_runs_on_workers_and_prints_into_the_cell(notebook):
    notebook.run("import phalanx\ndef work(group, base):\n    print('hello')\n    return base + group.all_reduce(1)\n")

    printed, value, error = notebook.run("phalanx.spawn(work, 40, workers=2)")

    assert error == ""
    assert value == "[42, 42]"
    assert sorted(printed.split("\n"))[-2:] == ["[rank 0] hello", "[rank 1] hello"]


def test_the_first_error_is_in_the_cell_and_the_kernel_goes_on(notebook):
    notebook.run("def fail(group):\n    if group.rank:\n        raise ValueError('boom')\n    group.barrier()\n")

    error = notebook.run("import phalanx; phalanx.spawn(fail)")[2]

    assert error.startswith("RemoteError: rank 1 failed: ValueError: boom")
    assert "in fail" in error
    assert notebook.run("1 + 1")[1] == "2"


def test_a_model_is_trained_in_a_notebook_that_has_used_torch_before(notebook):
    pytest.importorskip("torch")
    notebook.run(
        """
import torch, phalanx
from phalanx.parallel import DataParallel
torch.manual_seed(0)
inputs = torch.randn(64, 4)
print((torch.randn(500, 500) @ torch.randn(500, 500)).shape)
def train(group):
    model = DataParallel(torch.nn.Linear(4, 1), group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(inputs[group.rank :: group.size]).square().mean().backward()
        optimizer.step()
    return model.state_dict()["weight"]
"""
    )

    error, value = (
        notebook.run("first, second = phalanx.spawn(train)")[2],
        notebook.run("torch.equal(first, second)")[1],
    )

    assert (error, value) == ("", "True")


def test_a_cell_that_is_interrupted_leaves_no_worker(notebook):
    cell = "import os, signal, threading\ndef wait(group):\n    group.barrier()\n    if group.rank == 0:\n        "
    cell += "os.kill(os.getppid(), signal.SIGINT)\n    threading.Event().wait()\nphalanx.spawn(wait)"

    error = notebook.run(cell)[2]

    assert error.startswith("KeyboardInterrupt")
    assert "ChildProcessError" in notebook.run("os.waitpid(-1, os.WNOHANG)")[2]
