from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.errors import ConfigError
from phalanx.group import Over
from phalanx.launch.env import Launch, find_launch, find_times, first_host, wants_colour, worker_environ
from phalanx.wire import Address

PHALANX = {
    "PHALANX_COORDINATOR": "127.0.0.1:4000",
    "PHALANX_RANK": "2",
    "PHALANX_SIZE": "4",
    "PHALANX_JOB": "j",
}
TORCHRUN = {
    "RANK": "1",
    "WORLD_SIZE": "2",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "head.cluster",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_RUN_ID": "abc",
}
SRUN = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "8",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[003-007,9]",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-1@1",
}
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALNRANKS": "2", "PBS_JOBID": "12.pbs"}
LAUNCHERS = [PHALANX, TORCHRUN, SRUN, OPEN_MPI, MPICH]


def found(environ):
    launch = find_launch(environ)
    assert launch is not None
    return launch


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PATH": "/bin", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"},
        {**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"},
        {"RANK": "0", "WORLD_SIZE": "1"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
        {**SRUN, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_NODELIST": "node[1-2]"},
        {"SLURM_JOB_ID": "77", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},
        {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"},
        {"PMI_RANK": "0", "PMI_SIZE": "1"},
    ],
)
def test_a_process_without_peers_is_alone(environ):
    assert find_launch(environ) is None


def test_phalanx_run_says_everything_itself():
    launch = find_launch({**PHALANX, "PHALANX_HOST": "host1", "PHALANX_OVER": "tcp"})

    coordinator = (Address(host="127.0.0.1", port=4000),)
    assert launch == Launch(rank=2, size=4, job="j", coordinator=coordinator, host="host1", over=Over.TCP)


def test_a_group_of_one_under_phalanx_run_has_a_coordinator_like_any_other():
    assert found({**PHALANX, "PHALANX_RANK": "0", "PHALANX_SIZE": "1"}).size == 1


def test_under_torchrun_on_one_machine_rank_0_listens_on_loopback_above_the_master_port():
    launch = found(TORCHRUN)

    assert launch.is_hosted
    assert (launch.rank, launch.size) == (1, 2)
    assert launch.coordinator == tuple(Address(host="127.0.0.1", port=port) for port in range(29501, 29509))


def test_under_torchrun_on_several_machines_rank_0_is_at_the_master_address():
    assert {each.host for each in found({**TORCHRUN, "WORLD_SIZE": "4"}).coordinator} == {"head.cluster"}


def test_the_last_ports_are_not_passed():
    assert found({**TORCHRUN, "MASTER_PORT": "65533"}).coordinator[-1].port == 65535


def test_under_srun_rank_0_is_on_the_first_machine_of_the_step():
    launch = found(SRUN)

    assert (launch.rank, launch.size, launch.job) == (3, 8, "slurm-77.0")
    assert {each.host for each in launch.coordinator} == {"node003"}


def test_under_srun_on_one_machine_nothing_leaves_it():
    assert {each.host for each in found({**SRUN, "SLURM_STEP_NODELIST": "node003"}).coordinator} == {"127.0.0.1"}


@pytest.mark.parametrize("environ", [OPEN_MPI, MPICH])
def test_under_mpirun_on_one_machine_rank_0_listens_on_loopback(environ):
    launch = found(environ)

    assert launch.is_hosted
    assert (launch.rank, launch.size) == (1, 2)
    assert {each.host for each in launch.coordinator} == {"127.0.0.1"}


def test_all_ranks_of_a_job_find_the_same_ports_and_another_job_others():
    one, other = found(OPEN_MPI), found({**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0"})
    stranger = found({**OPEN_MPI, "PMIX_NAMESPACE": "prterun-2@1"})

    assert one.coordinator == other.coordinator != stranger.coordinator
    assert one.job == other.job != stranger.job


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_ports_of_a_job_are_eight_below_those_that_systems_give_away(job):
    ports = [each.port for each in found({**OPEN_MPI, "PMIX_NAMESPACE": job}).coordinator]

    assert len(set(ports)) == 8
    assert all(20_000 <= port < 30_000 for port in ports)


@pytest.mark.parametrize("environ", [TORCHRUN, SRUN, OPEN_MPI, MPICH])
def test_the_user_may_say_where_rank_0_listens(environ):
    launch = found({**environ, "PHALANX_COORDINATOR": "[fd00::5]:29400"})

    assert launch.is_hosted
    assert launch.coordinator == (Address(host="fd00::5", port=29400),)


@pytest.mark.parametrize("environ", [TORCHRUN, SRUN, OPEN_MPI, MPICH])
def test_the_user_may_name_the_job_and_simulate_hosts(environ):
    launch = found({**environ, "PHALANX_JOB": "mine", "PHALANX_HOST": "a", "PHALANX_OVER": "tcp"})

    assert (launch.job, launch.host, launch.over) == ("mine", "a", Over.TCP)


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({**SRUN, **TORCHRUN}, 1),  # srun started one torchrun on each machine
        ({**SRUN, **OPEN_MPI}, 1),  # srun started the agents of mpirun
        ({**SRUN, **MPICH}, 1),
        ({**SRUN, **MPICH, "PMI_RANK": "3", "PMI_SIZE": "8"}, 3),  # srun started the ranks, as mpirun would have
        ({**TORCHRUN, **PHALANX}, 2),
    ],
)
def test_the_innermost_launcher_counts(environ, rank):
    assert found(environ).rank == rank


@pytest.mark.parametrize("environ", LAUNCHERS)
def test_every_variable_that_is_needed_is_missed_by_name(environ):
    optional = {"LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_PROCID", "SLURM_STEP_ID", "PBS_JOBID"}
    optional |= {"PMIX_NAMESPACE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}

    for name in environ.keys() - optional:
        with pytest.raises(ConfigError, match=name):
            find_launch({key: value for key, value in environ.items() if key != name})


@pytest.mark.parametrize(
    ("environ", "name"),
    [
        ({**PHALANX, "PHALANX_RANK": "4"}, "PHALANX_RANK is 4, but PHALANX_SIZE is 4"),
        ({**PHALANX, "PHALANX_RANK": "-1"}, "PHALANX_RANK"),
        ({**PHALANX, "PHALANX_SIZE": "0"}, "PHALANX_SIZE"),
        ({**PHALANX, "PHALANX_SIZE": "four"}, "PHALANX_SIZE"),
        ({**PHALANX, "PHALANX_COORDINATOR": "nowhere"}, "PHALANX_COORDINATOR"),
        ({**PHALANX, "PHALANX_COORDINATOR": "here:0"}, "PHALANX_COORDINATOR"),
        ({**PHALANX, "PHALANX_OVER": "pigeon"}, "PHALANX_OVER must be auto or tcp"),
        ({**TORCHRUN, "RANK": "²"}, "RANK"),
        ({**TORCHRUN, "MASTER_PORT": "65535"}, "MASTER_PORT"),
        ({**SRUN, "SLURM_STEP_NODELIST": ",,"}, "SLURM_STEP_NODELIST"),
        ({"PHALANX_COORDINATOR": "here:1"}, "PHALANX_COORDINATOR"),
        ({**MPICH, "PBS_JOBID": ""}, "PHALANX_JOB"),
        ({**OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "several machines.*PHALANX_COORDINATOR"),
        ({**MPICH, "MPI_LOCALNRANKS": "1"}, "several machines.*PHALANX_COORDINATOR"),
    ],
)
def test_nonsense_is_refused_by_name(environ, name):
    with pytest.raises(ConfigError, match=name):
        find_launch(environ)


@pytest.mark.parametrize(
    ("expression", "host"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("node[003-007,9]", "node003"),
        ("node[9,003-007],login", "node9"),
        ("rack-[2-3]-node[01-04].cluster,x", "rack-2-node01.cluster"),
    ],
)
def test_the_first_machine_of_a_slurm_expression(expression, host):
    assert first_host(expression) == host


@pytest.mark.parametrize("expression", ["", ",a", "node[", "node[]", "a b", "node]1"])
def test_an_expression_that_names_no_machine_is_refused(expression):
    with pytest.raises(ConfigError, match="names no machine"):
        first_host(expression)


@pytest.mark.parametrize("host", [None, "host1"])
def test_a_worker_finds_what_the_launcher_wrote(host, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    coordinator = (Address(host="::1", port=4000),)
    launch = Launch(rank=1, size=3, job="j", coordinator=coordinator, host=host, over=Over.TCP)

    environ = worker_environ(launch, threads=2)

    assert find_launch(environ) == launch
    assert environ["OMP_NUM_THREADS"] == "2"


def test_a_worker_that_joins_finds_the_times_that_the_launcher_was_given():
    launch = Launch(
        rank=None, size=None, job="j", coordinator=(Address(host="::1", port=4000),), patience_s=2.5, stall_s=60.0
    )

    assert find_times(worker_environ(launch, threads=2)) == (2.5, 60.0)


@pytest.mark.parametrize(
    ("environ", "given", "times"),
    [
        ({}, (None, None), (None, None)),
        ({"PHALANX_PATIENCE": "2", "PHALANX_STALL": ""}, (None, None), (2.0, None)),
        ({"PHALANX_PATIENCE": "2", "PHALANX_STALL": "9"}, (None, 7.0), (2.0, 7.0)),
    ],
)
def test_times_that_are_given_count_more_than_the_environment(environ, given, times):
    assert find_times(environ, *given) == times


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"PHALANX_PATIENCE": "soon"}, "PHALANX_PATIENCE must be a number of seconds, not 'soon'"),
        ({"PHALANX_PATIENCE": "nan"}, "--patience and PHALANX_PATIENCE are from 0.1 to 3600 seconds, not nan"),
        ({"PHALANX_STALL": "0"}, "--stall and PHALANX_STALL are from 0.1 to 1000000 seconds, not 0"),
        ({"PHALANX_STALL": "inf"}, "--stall and PHALANX_STALL are from 0.1 to 1000000 seconds, not inf"),
    ],
)
def test_times_that_nobody_can_mean_are_refused(environ, words):
    with pytest.raises(ConfigError, match=words):
        find_times(environ)


def test_the_user_decides_about_threads(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    launch = Launch(rank=0, size=1, job="j", coordinator=(Address(host="::1", port=4000),))

    assert worker_environ(launch, threads=2)["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("is_terminal", "term", "no_color", "expected"),
    [
        (True, "xterm", "", True),
        (False, "xterm", "", False),
        (True, "dumb", "", False),
        (True, "xterm", "1", False),
    ],
)
def test_only_terminals_that_may_have_colours_get_them(monkeypatch, is_terminal, term, no_color, expected):
    monkeypatch.setenv("TERM", term)
    monkeypatch.setenv("NO_COLOR", no_color)

    assert wants_colour(is_terminal=is_terminal) is expected


def test_a_worker_gets_torchruns_variables_and_is_not_taken_for_one_of_torchrun():
    launch = Launch(rank=1, size=3, job="j", coordinator=(Address(host="::1", port=4000),))

    environ = worker_environ(replace(launch, local=(0, 2), master=Address(host="127.0.0.1", port=29500)), threads=1)

    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [environ[name] for name in names] == ["1", "3", "0", "2", "127.0.0.1", "29500"]
    assert find_launch(environ) == launch


def test_a_worker_that_joins_is_told_no_rank_even_if_torchrun_started_its_launcher(monkeypatch):
    for name, value in {**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"}.items():
        monkeypatch.setenv(name, value)
    launch = Launch(rank=None, size=None, job="", coordinator=(Address(host="::1", port=4000),), local=(1, 2))

    environ = worker_environ(launch, threads=1)

    assert {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"}.isdisjoint(environ)
    assert (environ["LOCAL_RANK"], environ["LOCAL_WORLD_SIZE"]) == ("1", "2")
