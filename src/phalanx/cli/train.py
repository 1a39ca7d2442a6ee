"""``phalanx train``: train the transformer on workers of this machine."""

import secrets
import signal
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated

import msgspec
import typer

import phalanx
from phalanx.cli.dashboard import page_beside
from phalanx.cli.options import LogDir, Patience, Stall, TlsCa, TlsCert, TlsKey, TokenFile
from phalanx.cli.streams import go_on_without_output
from phalanx.cli.train_alone import train_alone
from phalanx.cli.train_chaos import describe_chaos, summarize
from phalanx.cli.train_launch import launch, rewind
from phalanx.cli.train_show import Display, show_beginning, show_end, show_failure
from phalanx.cli.train_venue import Venue, choose_range, format_proof
from phalanx.coordinator import parse_workers, read_events
from phalanx.errors import ConfigError
from phalanx.launch.chaos import Mishap, parse_chaos, plan_strikes
from phalanx.launch.env import Launch, read_credentials, read_outer_launch, read_times
from phalanx.launch.storm import Weather
from phalanx.train import require_torch
from phalanx.train.config import Config, Device, EngineChoice, RunConfig, TorchBackend, Transport
from phalanx.train.config_text import explain_config, format_config, parse_config
from phalanx.train.data import Corpus, open_corpus
from phalanx.train.data_share import DataShare
from phalanx.train.log import read_steps
from phalanx.train.machine import memory_bytes
from phalanx.train.rundir import RunDir, environment, read_config
from phalanx.train.shapes import count_parameters
from phalanx.transport import parse_address

_CHAOS_STALL_S = 3.0  # workers that are stopped on purpose shall not hold the others up for long
_MAY_CHANGE = ("run.", "train.steps", "data.path")
_REFUSED = 2  # the status of a worker that was asked for something impossible


def train(
    config_file: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="What to train, and how. Every key has a default.")
    ] = None,
    *,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; repeat for more.")
    ] = None,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="N|MIN:MAX",
            help="How many worker processes to start; they share the lanes. With fewer than MIN the run pauses.",
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="How many updates of the weights to make.")] = None,
    lanes: Annotated[
        int | None, typer.Option(help="How many lanes to cut each batch into; another number gives other bits.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the first weights, the order of samples and dropout.")
    ] = None,
    transport: Annotated[
        Transport | None,
        typer.Option(
            help="How to exchange gradients: shared memory (arena), TCP, or a gradient server (star).",
            show_default=False,
        ),
    ] = None,
    engine: Annotated[
        EngineChoice | None,
        typer.Option(
            help="What carries gradients: our own transports (phalanx), or a group of torch.distributed (torch).",
            show_default=False,
        ),
    ] = None,
    torch_backend: Annotated[
        TorchBackend | None,
        typer.Option(help="With --engine torch: its backend; auto is NCCL on GPUs and else Gloo.", show_default=False),
    ] = None,
    zero: Annotated[
        bool | None,
        typer.Option("--zero/--no-zero", help="Share the optimizer state among workers (ZeRO-1).", show_default=False),
    ] = None,
    paranoid: Annotated[
        bool | None,
        typer.Option(
            "--paranoid/--no-paranoid",
            help="Check gradients and optimizer state in every step for bits that a fault has changed.",
            show_default=False,
        ),
    ] = None,
    profile_steps: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST:END",
            help="Profile these steps with torch.profiler on every worker; phalanx trace shows them.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(metavar="auto|cpu|cuda|cuda:N", help="The device that the model is on.", show_default=False),
    ] = None,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="Where to save the run; by default a new directory under runs/.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN_DIR", help="Continue a run from its last checkpoint.")
    ] = None,
    from_step: Annotated[
        int | None, typer.Option("--from-step", help="With --resume: continue from the checkpoint of this step.")
    ] = None,
    bind: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Let workers of other machines join the run here, with phalanx join.",
            show_default=False,
        ),
    ] = None,
    local: Annotated[
        int | None,
        typer.Option("-n", "--local", help="With --bind: how many workers to start on this machine. Default: MIN."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="With --bind: wait for so many workers at the start, for up to 12 times the patience. Default: those "
            "of this machine, and at least MIN.",
            show_default=False,
        ),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Be one worker of the run of this coordinator, as under torchrun, srun or mpirun.",
            show_default=False,
        ),
    ] = None,
    token_file: TokenFile = None,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    tls_ca: TlsCa = None,
    show_config: Annotated[bool, typer.Option("--show-config", help="Print the config and exit.")] = False,
    patience: Patience = None,
    stall: Stall = None,
    chaos: Annotated[
        str | None,
        typer.Option(
            metavar="kill=20,stop=5",
            help="Let failures happen on purpose, so often: kill, stop, segfault, cut, hang, host, join, coordinator.",
            show_default=False,
        ),
    ] = None,
    chaos_seed: Annotated[int, typer.Option(help="Seed of the moments and victims of --chaos.")] = 0,
    log_dir: LogDir = None,
    has_page: Annotated[
        bool, typer.Option("--dashboard", help="Serve a live page of the run, and print the link to it.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one line of JSON at the end.")] = False,
) -> None:
    """Train a byte-level transformer, by default on the source of Python itself.

    Any number of workers gives the same weights, bit for bit. Ctrl-C saves a
    checkpoint and stops. Options change single keys of the config; --show-config
    prints every key with its value and an explanation.
    """
    directory = None if run_dir is None else str(run_dir)
    RunConfig(directory=directory)  # or it could be a path that no setting can hold
    least, most = parse_workers(workers) if workers else (None, None)
    given = {
        "run.workers": most,
        "run.min_workers": least if workers and ":" in workers else None,
        "train.steps": steps,
        "train.lanes": lanes,
        "train.seed": seed,
        "run.transport": transport and transport.value,
        "run.engine": engine and engine.value,
        "run.torch_backend": torch_backend and torch_backend.value,
        "run.zero": zero,
        "run.paranoid": paranoid,
        "run.profile_steps": profile_steps,
        **_parse_device(device),
        "run.directory": directory,
    }
    settings = [f"{key}={msgspec.json.encode(value).decode()}" for key, value in given.items() if value is not None]
    settings += sets or []
    times = read_times(patience, stall)
    counts = parse_chaos(chaos) if chaos is not None else None
    if counts and times[1] is None:
        times = times[0], _CHAOS_STALL_S
    if resume is None and from_step is not None:
        raise ConfigError("--from-step says where to resume: pass --resume RUN_DIR too")
    old = None if resume is None else _reopen(resume, settings, config_file)
    source = old.config if old else config_file
    config = read_config(source, settings) if source else parse_config("", settings)
    if show_config:
        print(explain_config(config))
        return
    _check_fixed(config, {"--chaos": chaos, "--bind": bind, "--coordinator": coordinator})
    weather = _make_weather(counts, config, chaos_seed) if counts else None
    go_on_without_output()
    require_torch()
    if outer := read_outer_launch() if config.run.engine is EngineChoice.TORCH else None:
        _refuse_beside("this launcher, which says how many there are", {"--workers": workers})
        raise typer.Exit(_train_under(outer, config, old, from_step, as_json=as_json))
    if coordinator is not None:
        beside = {"--bind": bind, "--local": local, "--first": first, "--workers": workers, "--resume": resume}
        _refuse_beside("--coordinator, where this process is one worker of a run", beside | {"--log-dir": log_dir})
        credentials = read_credentials(token_file, tls_cert, tls_key, tls_ca)
        raise typer.Exit(train_alone(config, parse_address(coordinator), credentials, times))
    venue = None
    if bind is not None:
        credentials = read_credentials(token_file, tls_cert, tls_key, tls_ca)
        proof = format_proof(token_file, credentials)
        local, first = choose_range(config, least, local, first)
        venue = Venue(parse_address(bind), local, first, credentials, proof, sys.stderr if as_json else sys.stdout)
    else:
        _refuse_without_bind({"--local": local, "--first": first})
    corpus = open_corpus(config.data)
    _check_device(config)
    _check_memory(config, corpus)
    run = old or _create(config)
    with run.hold(), ExitStack() as stack:
        if venue:
            share = stack.enter_context(DataShare(venue.bind.host, corpus, venue.credentials))
            venue.describe(config, corpus, secrets.token_hex(8), run.path, share)
        start = rewind(run, config, corpus, from_step) if old else None
        stack.enter_context(page_beside(run, log_dir, as_json=as_json) if has_page else nullcontext())
        status = _run(run, config, corpus, start, times, venue, weather, log_dir, as_json=as_json)
    raise typer.Exit(status)


def _run(
    run: RunDir,
    config: Config,
    corpus: Corpus,
    start: int | None,
    times: tuple[float | None, float | None],
    venue: Venue | None,
    weather: Weather | None,
    log_dir: Path | None,
    *,
    as_json: bool,
) -> int:
    if not as_json:
        show_beginning(run, config, corpus, start)
    logged_bytes = _count_bytes(run.steps)
    with Display(run, config, start or 0, is_silent=as_json):
        status = launch(run, config, corpus, start, times, venue, weather, log_dir)
    if weather:
        chaos = summarize(weather, list(read_events(run.events)), read_steps(run.steps) if run.steps.exists() else [])
        run.write_chaos(chaos)
        if not as_json:
            print(describe_chaos(chaos))
    if run.result.exists():
        is_complete = show_end(run, config, start, as_json=as_json)
        return 0 if is_complete else status or 128 + signal.SIGTERM  # somebody may have stopped a worker
    is_vain = start is not None and status == _REFUSED and _count_bytes(run.steps) == logged_bytes
    if not is_vain:  # else to resume would only fail again
        show_failure(run)
    return 1 if status in (0, _REFUSED) else status


def _make_weather(counts: Mapping[Mishap, int], config: Config, seed: int) -> Weather:
    if counts.get(Mishap.PARTITION):
        raise ConfigError("a partition needs several hosts: leave it out, or use phalanx chaos --hosts 2")
    return Weather(plan_strikes(counts, config.train.steps, seed))


def _refuse_without_bind(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} says how many of the workers start here, or first: pass --bind HOST:PORT too")


def _train_under(outer: Launch, config: Config, old: RunDir | None, from_step: int | None, *, as_json: bool) -> int:
    from phalanx.cli.train_torch import train_under  # noqa: PLC0415 - it imports torch, which takes seconds

    return train_under(outer, config, old, from_step, as_json=as_json)


def _check_fixed(config: Config, options: Mapping[str, object]) -> None:
    """Refuse options that are for members that change, if the members of this run cannot change."""
    if config.run.transport is Transport.STAR:
        _refuse_beside("--transport star, where a run does not survive failures", {"--chaos": options["--chaos"]})
    if config.run.engine is EngineChoice.TORCH:
        _refuse_beside("--engine torch, where a run ends with the first worker that is lost", options)


def _refuse_beside(what: str, options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name} makes no sense with {what}: leave one of them out")


def _count_bytes(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0


def _create(config: Config) -> RunDir:
    path = Path(config.run.directory) if config.run.directory else None
    facts = environment(
        version=phalanx.__version__, threads=config.run.threads_per_worker, device=config.run.device.value
    )
    return RunDir.create(path, format_config(config), facts)


def _reopen(path: Path, settings: list[str], config_file: Path | None) -> RunDir:
    """Return the run in a directory. ``settings`` may change only what leaves it the same run."""
    if config_file is not None:
        raise ConfigError(f"{path} has its own config: pass --set to change a key, and no CONFIG.toml")
    for setting in settings:
        if setting.startswith("run.directory"):
            raise ConfigError(f"this run is in {path}: leave out --run-dir, or copy the run and resume the copy")
        if not setting.startswith(_MAY_CHANGE):
            words = f"{setting} would change what this run is: with --resume only"
            raise ConfigError(f"{words} run.*, train.steps and data.path can be set")
    return RunDir.open(path)


def _parse_device(text: str | None) -> dict[str, object]:
    """Return what ``--device cuda:1`` sets."""
    if text is None:
        return {}
    name, _, number = text.partition(":")
    if name not in {each.value for each in Device} or (number and (name != "cuda" or not number.isdecimal())):
        raise ConfigError(f"--device is auto, cpu, cuda, or one GPU such as cuda:1, not {text!r}")
    return {"run.device": name, "run.gpu": int(number) if number else None}


def _check_device(config: Config) -> None:
    if config.run.device is Device.CUDA:
        from phalanx.train.loop import choose_device  # noqa: PLC0415 - it imports torch, which takes seconds

        choose_device(config.run.device, config.run.gpu)


def _check_memory(config: Config, corpus: Corpus) -> None:
    """Refuse a model whose weights alone are larger than the memory of this machine."""
    need = 4 * count_parameters(config.model, corpus.vocabulary)
    have = memory_bytes()
    if need > have:
        words = f"the weights of this model take {need / 2**30:,.0f} GiB, and this machine has {have / 2**30:,.0f} GiB"
        raise ConfigError(f"{words}: lower model.layers, model.width or model.hidden")
