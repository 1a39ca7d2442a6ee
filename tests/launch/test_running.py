"""Runs on this machine are found by the environment of their workers."""

from phalanx.launch.env import Launch, worker_environ
from phalanx.launch.running import find_runs
from phalanx.transport import Credentials
from phalanx.wire import Address

TOKEN = Credentials(b"Zm9yIHRlc3RzIG9ubHksIGtlZXBzIG5vYm9keSBvdXQ")


def process(folder, pid, environ):
    (folder / str(pid)).mkdir()
    data = b"".join(f"{name}={value}\0".encode() for name, value in environ.items())
    (folder / str(pid) / "environ").write_bytes(data)


def test_the_coordinators_of_workers_are_found_with_their_tokens(tmp_path, monkeypatch):
    monkeypatch.delenv("PHALANX_TOKEN", raising=False)
    first, second = Address("127.0.0.1", 4000), Address("10.0.0.5", 7000)
    joining = Launch.joining(second, Credentials(), (None, None))
    ranked = Launch(rank=1, size=2, job="j", coordinator=(first,), credentials=TOKEN)
    process(tmp_path, 10, worker_environ(ranked, threads=1))
    process(tmp_path, 11, worker_environ(ranked, threads=1))
    process(tmp_path, 12, worker_environ(joining, threads=1))
    process(tmp_path, 13, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"})
    torchrun = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1", "PHALANX_JOB": "x"}
    process(tmp_path, 16, torchrun)  # rank 0 hosts its coordinator, at one of several ports
    process(tmp_path, 14, {"PHALANX_JOB": "x", "PHALANX_JOIN": "nonsense"})
    (tmp_path / "15").mkdir()  # it ends at this moment
    (tmp_path / "self").mkdir()

    assert find_runs(tmp_path) == {first: TOKEN, second: Credentials()}


def test_where_there_are_no_such_files_there_is_no_run(tmp_path):
    assert find_runs(tmp_path / "nowhere") == {}
