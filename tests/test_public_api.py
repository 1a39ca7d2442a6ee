import subprocess
import sys
import tomllib
from pathlib import Path

import phalanx

PUBLIC = {
    "AuthError",
    "BadFrame",
    "CollectiveMismatch",
    "ConfigError",
    "ConnectError",
    "DType",
    "DeadlineExceeded",
    "ElasticRun",
    "EpochChanged",
    "Evicted",
    "GradientCorrupted",
    "Group",
    "Halted",
    "JoinRefused",
    "LinkClosed",
    "MembershipError",
    "NonFiniteGradient",
    "OutOfResources",
    "PeerLost",
    "Pending",
    "PhalanxError",
    "ProtocolError",
    "ReduceOp",
    "RemoteError",
    "StateLost",
    "Statistics",
    "TransportError",
    "WeightsDiverged",
    "__version__",
    "connect",
    "join_run",
    "spawn",
}


def test_the_public_names_are_these_and_no_others():
    assert set(phalanx.__all__) == PUBLIC
    assert all(hasattr(phalanx, name) for name in PUBLIC)


def test_the_samplers_need_no_torch():
    program = "import sys, phalanx.data; print(*phalanx.data.__all__, 'torch' in sys.modules)"

    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert printed.split() == ["LaneSampler", "RankSampler", "permute", "samples_of", "False"]


def test_every_error_is_public():
    errors = {name for name, each in vars(phalanx.errors).items() if isinstance(each, type)}

    assert errors <= PUBLIC


def test_the_version_is_the_one_of_the_project():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert phalanx.__version__ == project["version"]


def test_importing_phalanx_imports_neither_torch_nor_what_only_the_command_needs():
    program = "import phalanx, sys; print(*sorted({'torch', 'typer', 'rich'} & sys.modules.keys()))"

    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert imported.split() == []
