"""Reads from the environment how this process was started. Only this module and ``torch_env`` read it."""

import hashlib
import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phalanx.coordinator import check_times
from phalanx.errors import ConfigError
from phalanx.group import Over
from phalanx.launch import torch_env
from phalanx.transport import Credentials, Tls, format_address, is_loopback, parse_address, parse_token
from phalanx.wire import Address

LOOPBACK = "127.0.0.1"
_CANDIDATES = 8  # ports that rank 0 tries: other programs may use the first ones
_FIRST_PORT, _PORTS = 20_000, 10_000  # below the range of ports that systems assign to clients

_TLS_NAMES = ("PHALANX_TLS_CERT", "PHALANX_TLS_KEY", "PHALANX_TLS_CA")
_SUPERSEDED = {
    "PHALANX_TOKEN_FILE",
    "PHALANX_JOIN",
    "PHALANX_COORDINATOR",
    "PHALANX_RANK",
    "PHALANX_SIZE",
    "PHALANX_PATIENCE",
    "PHALANX_STALL",
    "PHALANX_CHANNEL",
    *_TLS_NAMES,
    *torch_env.NAMES,
    "TORCHELASTIC_USE_AGENT_STORE",  # torch would look for torchrun's store instead of making one
}

_log = logging.getLogger("phalanx")

Environ = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the launcher told a process about its group.

    ``coordinator`` lists the addresses at which the coordinator may be. With ``is_hosted`` the launcher did not start
    one: rank 0 starts it, at the first of these addresses that is free. ``rank``, ``size``, ``patience_s`` and
    ``stall_s`` are None if the coordinator decides them. ``channel`` is for ``tell_rank``. ``local`` is the number of
    this worker among those that were started here with it, and how many these are. ``master`` is a free address for
    programs that ask torch to connect them. Only launchers set the last two, for ``torch_variables``.
    """

    rank: int | None
    size: int | None
    job: str
    coordinator: tuple[Address, ...]
    is_hosted: bool = False
    host: str | None = None
    over: Over = Over.AUTO
    patience_s: float | None = None
    stall_s: float | None = None
    credentials: Credentials = field(default_factory=Credentials)
    channel: str | None = None
    local: tuple[int, int] | None = None
    master: Address | None = None

    @classmethod
    def joining(
        cls,
        coordinator: Address,
        credentials: Credentials,
        times: tuple[float | None, float | None],
        over: Over = Over.AUTO,
    ) -> "Launch":
        """Return what to tell a worker that joins whatever group the coordinator has; ``times`` as ``read_times``."""
        patience_s, stall_s = times
        return cls(
            rank=None,
            size=None,
            job="",
            coordinator=(coordinator,),
            over=over,
            patience_s=patience_s,
            stall_s=stall_s,
            credentials=credentials,
        )


def read_launch() -> Launch | None:
    """Return what the launcher told this process; None if no launcher started it."""
    launch = find_launch(os.environ)
    if launch is None:
        return None
    patience_s, stall_s = read_times()
    return replace(
        launch,
        credentials=read_credentials(),
        patience_s=patience_s,
        stall_s=stall_s,
        channel=os.environ.get("PHALANX_CHANNEL"),
    )


def read_times(patience_s: float | None = None, stall_s: float | None = None) -> tuple[float | None, float | None]:
    """Return the two times as given, or else from the environment. A time that neither sets is None."""
    return find_times(os.environ, patience_s, stall_s)


def find_times(
    environ: Environ, patience_s: float | None = None, stall_s: float | None = None
) -> tuple[float | None, float | None]:
    """Return the two times as given, or else from ``environ``. A time that neither sets is None."""
    patience_s = _seconds(environ, "PHALANX_PATIENCE") if patience_s is None else patience_s
    stall_s = _seconds(environ, "PHALANX_STALL") if stall_s is None else stall_s
    check_times(patience_s, stall_s)
    return patience_s, stall_s


def read_credentials(
    token_file: Path | None = None, cert: Path | None = None, key: Path | None = None, ca: Path | None = None
) -> Credentials:
    """Return the token and the certificates from the files given, or else from the environment, if there are any."""
    return find_credentials(os.environ, token_file, (cert, key, ca))


def find_credentials(
    environ: Environ, token_file: Path | None = None, tls: tuple[Path | None, ...] = (None, None, None)
) -> Credentials:
    """Return the token and the certificates from the files given, or else from ``environ``, if there are any."""
    if token_file is None and environ.get("PHALANX_TOKEN_FILE"):
        token_file = Path(environ["PHALANX_TOKEN_FILE"])
    token = None
    if token_file is not None:
        token = _read_token(token_file)
    elif environ.get("PHALANX_TOKEN"):
        token = parse_token(environ["PHALANX_TOKEN"], "PHALANX_TOKEN")
    named = [path or environ.get(name) for path, name in zip(tls, _TLS_NAMES, strict=True)]
    if not any(named):
        return Credentials(token)
    if missing := [name for path, name in zip(named, _TLS_NAMES, strict=True) if not path]:
        options = " and ".join("--" + name.removeprefix("PHALANX_").lower().replace("_", "-") for name in missing)
        raise ConfigError(f"TLS needs a certificate, its key and an authority: pass {options} too")
    cert, key, ca = (Path(path) for path in named if path)
    return Credentials(token, Tls(cert, key, ca))


def find_launch(environ: Environ) -> Launch | None:
    """Return what phalanx, torchrun, mpirun or srun told this process in ``environ``; None if none of them started it.

    Raises ConfigError, which names the variable, if one is missing or makes no sense.
    """
    for find in (_under_phalanx, *_LAUNCHERS):
        if launch := find(environ):
            return launch if launch.size != 1 or not launch.is_hosted else None
    if "PHALANX_COORDINATOR" in environ:
        raise ConfigError(
            "PHALANX_COORDINATOR is set, but no variable says which rank this is: start the workers with srun or "
            "mpirun, set PHALANX_RANK, PHALANX_SIZE and PHALANX_JOB too, or unset PHALANX_COORDINATOR to run alone"
        )
    return None


def read_outer_launch() -> Launch | None:
    """Return what torchrun, mpirun or srun told this process, also if it is the only one; None if we started it."""
    if _under_phalanx(os.environ):
        return None
    return next(filter(None, (find(os.environ) for find in _LAUNCHERS)), None)


def worker_environ(launch: Launch, threads: int) -> dict[str, str]:
    """Return the environment of a worker: that of this process, and the variables that tell it ``launch``.

    The worker computes with ``threads`` threads, unless the user has set OMP_NUM_THREADS.
    """
    where = format_address(launch.coordinator[0])
    told = {"PHALANX_JOB": launch.job, "PHALANX_OVER": launch.over.value}
    if launch.rank is None:
        told["PHALANX_JOIN"] = where
    else:
        told |= {"PHALANX_COORDINATOR": where, "PHALANX_RANK": str(launch.rank), "PHALANX_SIZE": str(launch.size)}
    if launch.host is not None:
        told["PHALANX_HOST"] = launch.host
    if launch.patience_s is not None:
        told["PHALANX_PATIENCE"] = str(launch.patience_s)
    if launch.stall_s is not None:
        told["PHALANX_STALL"] = str(launch.stall_s)
    if launch.channel is not None:
        told["PHALANX_CHANNEL"] = launch.channel
    told |= torch_env.torch_variables(launch.rank, launch.size, launch.local, launch.master)
    # Without CUBLAS_WORKSPACE_CONFIG, cuBLAS may add up in another order each time.
    defaults = {"OMP_NUM_THREADS": str(threads), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return {**defaults, **credentials_environ(launch.credentials), **told}


def credentials_environ(credentials: Credentials) -> dict[str, str]:
    """Return the environment of a process that we start: that of this one, with the credentials of the group."""
    told = {} if credentials.token is None else {"PHALANX_TOKEN": credentials.token.decode()}
    if tls := credentials.tls:
        told |= dict(zip(_TLS_NAMES, map(str, (tls.cert, tls.key, tls.ca)), strict=True))
    inherited = {name: value for name, value in os.environ.items() if name not in _SUPERSEDED}
    return {**inherited, **told}


def wants_colour(*, is_terminal: bool) -> bool:
    """Return whether to write in colours: only to a terminal that has them, and unless NO_COLOR is set."""
    return is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def read_settings(names: Sequence[str]) -> dict[str, str]:
    """Return those of the variables ``names`` that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def parse_over(text: str, name: str) -> Over:
    """Return the transport that ``text`` names; an error says that ``name``, an option or a variable, is wrong."""
    try:
        return Over(text)
    except ValueError:
        raise ConfigError(f"{name} must be {' or '.join(each.value for each in Over)}, not {text!r}") from None


def first_host(expression: str) -> str:
    """Return the first machine in a SLURM expression such as ``node[003-007,9],login``."""
    first = re.match(r"(?:[^,\[\]\s]|\[[^\[\]\s]+\])+(?=,|$)", expression)
    if first is None:
        raise ConfigError(f"SLURM_STEP_NODELIST names no machine: {expression!r}; set PHALANX_COORDINATOR to host:port")
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0])


def _under_phalanx(environ: Environ) -> Launch | None:
    if "PHALANX_JOIN" in environ:
        where = _address(environ, "PHALANX_JOIN")
        job, host = environ.get("PHALANX_JOB", ""), environ.get("PHALANX_HOST")
        return Launch(rank=None, size=None, job=job, coordinator=(where,), host=host, over=_over(environ))
    if "PHALANX_RANK" not in environ and "PHALANX_SIZE" not in environ:
        return None
    rank, size = _rank_and_size(environ, "PHALANX_RANK", "PHALANX_SIZE")
    return Launch(
        rank=rank,
        size=size,
        job=_text(environ, "PHALANX_JOB"),
        coordinator=(_address(environ, "PHALANX_COORDINATOR"),),
        host=environ.get("PHALANX_HOST"),
        over=_over(environ),
    )


def _under_torchrun(environ: Environ) -> Launch | None:
    if "RANK" not in environ and "WORLD_SIZE" not in environ:
        return None
    rank, size = _rank_and_size(environ, "RANK", "WORLD_SIZE")
    if size == 1:
        return _hosted(environ, rank, size, "", ())
    host, port = _text(environ, "MASTER_ADDR"), _number(environ, "MASTER_PORT")
    is_one_machine = is_loopback(host) or environ.get("LOCAL_WORLD_SIZE") == environ["WORLD_SIZE"]
    job = f"torchrun-{environ.get('TORCHELASTIC_RUN_ID', '')}-{port}"
    # MASTER_PORT itself is taken by torch
    ports = range(port + 1, min(port + 1 + _CANDIDATES, 65536))
    if not ports:
        raise ConfigError(f"MASTER_PORT leaves no port above it for the coordinator: choose one below {port}")
    return _hosted(environ, rank, size, job, _at(LOOPBACK if is_one_machine else host, ports))


def _under_open_mpi(environ: Environ) -> Launch | None:
    if "OMPI_COMM_WORLD_RANK" not in environ and "OMPI_COMM_WORLD_SIZE" not in environ:
        return None
    rank, size = _rank_and_size(environ, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    names = ("PHALANX_JOB", "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "OMPI_MCA_orte_ess_jobid")
    return _under_mpi(environ, rank, size, names, ("OMPI_COMM_WORLD_LOCAL_SIZE",))


def _under_mpich(environ: Environ) -> Launch | None:
    if "PMI_RANK" not in environ and "PMI_SIZE" not in environ:
        return None
    rank, size = _rank_and_size(environ, "PMI_RANK", "PMI_SIZE")
    names = ("PHALANX_JOB", "PMI_JOBID", "PALS_APID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
    return _under_mpi(environ, rank, size, names, ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"))


def _under_mpi(
    environ: Environ, rank: int, size: int, job_names: tuple[str, ...], local_names: tuple[str, ...]
) -> Launch:
    job = next((environ[name] for name in job_names if environ.get(name)), None)
    if size == 1:
        return _hosted(environ, rank, size, "", ())
    if job is None:
        raise ConfigError(
            "mpirun did not say which job this is: set PHALANX_JOB to a word that is the same on all ranks and "
            "different for every job"
        )
    is_one_machine = any(environ.get(name) == str(size) for name in local_names)
    if not is_one_machine and "PHALANX_COORDINATOR" not in environ:
        raise ConfigError(
            f"mpirun started {size} ranks on several machines and does not say where rank 0 is: set "
            "PHALANX_COORDINATOR to host:port, with the host of rank 0 and a free port, and pass it on to all ranks"
        )
    return _hosted(environ, rank, size, f"mpi-{job}", _at(LOOPBACK, _ports_of(job)))


def _under_srun(environ: Environ) -> Launch | None:
    if "SLURM_PROCID" not in environ or "SLURM_STEP_ID" not in environ:
        return None  # the shell of an allocation or a batch script, which is one process
    # A step may have fewer tasks than its job. An interactive shell is a step with one task.
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    rank, size = _rank_and_size(environ, "SLURM_PROCID", tasks)
    if environ.get("PMI_SIZE", str(size)) != str(size):
        return None  # srun started the agents of an mpirun, and those started this process
    if size == 1:
        return _hosted(environ, rank, size, "", ())
    job = f"slurm-{_text(environ, 'SLURM_JOB_ID')}.{environ['SLURM_STEP_ID']}"
    machines = _text(environ, "SLURM_STEP_NODELIST")
    host = first_host(machines)
    return _hosted(environ, rank, size, job, _at(LOOPBACK if host == machines else host, _ports_of(job)))


def _hosted(environ: Environ, rank: int, size: int, job: str, candidates: tuple[Address, ...]) -> Launch:
    if "PHALANX_COORDINATOR" in environ:
        candidates = (_address(environ, "PHALANX_COORDINATOR"),)
    return Launch(
        rank=rank,
        size=size,
        job=environ.get("PHALANX_JOB") or job,
        coordinator=candidates,
        is_hosted=True,
        host=environ.get("PHALANX_HOST"),
        over=_over(environ),
    )


def _at(host: str, ports: range) -> tuple[Address, ...]:
    return tuple(Address(host=host, port=port) for port in ports)


def _ports_of(job: str) -> range:
    """Return ports that every rank of a job computes alike, and that other jobs are unlikely to use."""
    digest = int.from_bytes(hashlib.sha256(job.encode()).digest()[:8], "big")
    first = _FIRST_PORT + digest % (_PORTS - _CANDIDATES + 1)
    return range(first, first + _CANDIDATES)


def _rank_and_size(environ: Environ, rank_name: str, size_name: str) -> tuple[int, int]:
    rank, size = _number(environ, rank_name), _number(environ, size_name)
    if size < 1:
        raise ConfigError(f"{size_name} is {size}: a group has at least one rank")
    if rank >= size:
        raise ConfigError(f"{rank_name} is {rank}, but {size_name} is {size}: ranks go from 0 to {size - 1}")
    return rank, size


def _number(environ: Environ, name: str) -> int:
    text = _text(environ, name)
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{name} must be a number of 0 or more, not {text!r}")
    return int(text)


def _seconds(environ: Environ, name: str) -> float | None:
    text = environ.get(name)
    try:
        return float(text) if text else None
    except ValueError:
        raise ConfigError(f"{name} must be a number of seconds, not {text!r}") from None


def _address(environ: Environ, name: str) -> Address:
    try:
        address = parse_address(_text(environ, name))
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None
    if address.port == 0:
        raise ConfigError(f"{name} must have a port that all ranks know, not 0")
    return address


def _read_token(path: Path) -> bytes:
    try:
        if path.stat().st_mode & 0o077:
            _log.warning("others on this machine can read the token in %s: chmod 600 %s", path, path)
        return parse_token(path.read_text(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ConfigError(f"cannot read the token in {path}: {why}; make one with `phalanx token > {path}`") from None


def _over(environ: Environ) -> Over:
    return parse_over(environ.get("PHALANX_OVER", Over.AUTO.value), "PHALANX_OVER")


def _text(environ: Environ, name: str) -> str:
    text = environ.get(name, "")
    if not text:
        raise ConfigError(
            f"{name} is not set, but other variables say that this process is one of several: set it too, or start the "
            "workers with phalanx run, torchrun, srun or mpirun"
        )
    return text


# srun comes late: both torchrun and mpirun may themselves be started by it, and then leave its variables in place.
_LAUNCHERS = (_under_torchrun, _under_open_mpi, _under_srun, _under_mpich)
