import getpass
import importlib.metadata
import json
import platform
import re
import resource
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from forking import fork, wait
from phalanx.errors import ConfigError
from phalanx.train.rundir import RunDir, environment

WHERE = {"threads": 1, "device": "cpu"}


def test_a_new_run_has_its_config_and_its_environment(tmp_path):
    path = tmp_path / "deep" / "run"

    run = RunDir.create(path, "[train]\nsteps = 3 # \N{GREEK SMALL LETTER PHI}\n", WHERE)

    assert run.path == path
    assert run.config.read_text(encoding="utf-8") == "[train]\nsteps = 3 # \N{GREEK SMALL LETTER PHI}\n"
    assert json.loads(run.environment.read_text(encoding="utf-8")) == WHERE


def test_without_a_path_a_run_gets_a_new_one_in_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    runs = [RunDir.create(None, "", WHERE).path for _ in range(3)]

    assert len(set(runs)) == 3
    assert all(re.fullmatch(r"runs/\d{8}-\d{6}-[0-9a-f]{4}", str(path)) and path.is_dir() for path in runs)


def test_an_empty_directory_can_be_used(tmp_path):
    assert RunDir.create(tmp_path, "", WHERE).config.exists()


def test_of_those_who_make_a_run_in_one_directory_at_the_same_time_one_succeeds(tmp_path):
    path = tmp_path / "run"

    def be_overtaken():
        is_overtaken = False

        def overtake(event, arguments):
            nonlocal is_overtaken
            if event == "open" and str(arguments[0]).startswith(str(path)) and not is_overtaken:
                is_overtaken = True
                RunDir.create(path, "the other's", WHERE)

        sys.addaudithook(overtake)  # another process makes its run just before this one writes its first file
        with pytest.raises(ConfigError, match=r"/run is not empty: name another directory, or continue the run in it"):
            RunDir.create(path, "ours", WHERE)

    assert wait(fork(be_overtaken)) == 0
    assert RunDir.open(path).config.read_text(encoding="utf-8") == "the other's"


def test_a_directory_with_something_in_it_is_left_alone_and_resuming_is_offered(tmp_path):
    (tmp_path / "notes.txt").write_text("buy milk")

    with pytest.raises(ConfigError) as caught:
        RunDir.create(tmp_path, "", WHERE)

    words = f"{tmp_path} is not empty: name another directory, or continue the run in it with --resume {tmp_path}"
    assert str(caught.value) == words
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(
    ("path", "reason"),
    [("notes.txt", "File exists"), ("notes.txt/run", "Not a directory"), ("x" * 300, "File name too long")],
)
def test_what_cannot_be_a_directory_is_named(tmp_path, path, reason):
    (tmp_path / "notes.txt").write_text("buy milk")

    with pytest.raises(ConfigError) as caught:
        RunDir.create(tmp_path / path, "", WHERE)

    assert str(caught.value) == f"cannot write to {tmp_path / path}: {reason}; name another run directory"


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system on which nobody can write")
def test_a_directory_that_cannot_be_written_is_named():
    with pytest.raises(ConfigError, match=r"^cannot write to /proc/self/run: .*; name another run directory$"):
        RunDir.create(Path("/proc/self/run"), "", WHERE)


def test_a_full_disk_leaves_a_directory_that_can_be_used_later(tmp_path):
    path = tmp_path / "run"

    def fill():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        with pytest.raises(ConfigError, match="File too large; name another run directory"):
            RunDir.create(path, "[train]\nsteps = 3\n", WHERE)

    assert wait(fork(fill)) == 0
    assert list(path.iterdir()) == []


def test_a_run_is_opened_where_it_was_made(tmp_path):
    made = RunDir.create(tmp_path / "run", "", WHERE)

    assert RunDir.open(tmp_path / "run") == made


@pytest.mark.parametrize("name", ["", "missing"])
def test_what_is_no_run_is_not_opened(tmp_path, name):
    with pytest.raises(ConfigError) as caught:
        RunDir.open(tmp_path / name)

    words = f"there is no run in {tmp_path / name}: name a directory that phalanx train has made"
    assert str(caught.value) == words


def test_a_run_that_cannot_be_read_is_not_called_missing(tmp_path):
    (tmp_path / "config.toml").symlink_to("config.toml")

    with pytest.raises(ConfigError, match=r"^cannot read .*config.toml: Too many levels of symbolic links; fix that"):
        RunDir.open(tmp_path)


def test_everything_that_a_run_leaves_lies_in_its_directory(tmp_path):
    run = RunDir(tmp_path)

    paths = [run.config, run.environment, run.steps, run.checkpoints, run.sample, run.result, run.halts]

    names = "config.toml environment.json steps.jsonl checkpoints sample.txt result.json halts"
    assert paths == [tmp_path / name for name in names.split()]


def test_the_environment_names_versions_machine_threads_and_device():
    found = environment(version="0.1.0", threads=3, device="cpu")

    assert list(found) == ["phalanx", "python", "torch", "numpy", "platform", "cpu", "threads", "device"]
    assert (found["phalanx"], found["threads"], found["device"]) == ("0.1.0", 3, "cpu")
    assert found["python"] == platform.python_version()
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert all(found.values())


def test_the_environment_names_neither_host_nor_user_nor_paths():
    words = json.dumps(environment(version="0.1.0", threads=1, device="cpu")).lower()

    private = (socket.gethostname(), str(Path.home()), str(Path.cwd()), sys.prefix, f"{getpass.getuser()}@")
    assert [each for each in private if each.lower() in words] == []


def test_a_run_directory_is_opened_without_torch():
    program = (
        "import phalanx.train.rundir, phalanx.train.log, phalanx.train.compare, sys; print('torch' in sys.modules)"
    )

    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert imported == "False\n"


def test_a_config_is_changed_as_a_whole_or_not_at_all(tmp_path):
    run = RunDir.create(tmp_path / "run", "old", WHERE)

    def change_without_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2, 2))
        with pytest.raises(ConfigError, match=r"^cannot write to .*/run: File too large; fix that, then try again$"):
            run.change_config("newer")

    status = wait(fork(change_without_room))
    before = run.config.read_text(encoding="utf-8")
    run.change_config("newer")

    assert (status, before, run.config.read_text(encoding="utf-8")) == (0, "old", "newer")
    assert sorted(path.name for path in run.path.iterdir()) == ["config.toml", "environment.json"]


def test_a_run_is_trained_by_one_at_a_time(tmp_path):
    run = RunDir.create(tmp_path / "run", "", WHERE)
    words = f"^another process is training in {run.path}: stop it, or wait until it ends$"

    with run.hold(), pytest.raises(ConfigError, match=words), RunDir.open(run.path).hold():
        pass
    with run.hold():
        is_free_again = True

    assert is_free_again


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only Linux tells who has locked what")
def test_others_can_see_whether_a_directory_is_held(tmp_path):
    run = RunDir.create(tmp_path / "run", "", WHERE)
    before = run.is_held

    with run.hold():
        meanwhile = run.is_held

    assert (before, meanwhile, run.is_held) == (False, True, False)


def test_a_run_that_cannot_be_written_cannot_be_held(tmp_path):
    run = RunDir.create(tmp_path / "run", "", WHERE)
    run.environment.unlink()
    run.environment.mkdir()

    with pytest.raises(ConfigError, match=r"^cannot write to .*/run: Is a directory; fix that"), run.hold():
        pass
