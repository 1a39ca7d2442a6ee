"""The files in examples/clusters hold together, and every command of ours in them is one that exists."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from phalanx.cli.app import app

CLUSTERS = Path(__file__).parents[1] / "examples/clusters"
RECORDER = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as record:
    print(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]), file=record)
if "--" in sys.argv or os.path.basename(sys.argv[0]) != "srun":
    sys.exit()
os.execvp("phalanx", sys.argv[sys.argv.index("phalanx"):])
"""
SLURM = {"SLURM_JOB_ID": "17", "SLURM_NNODES": "4", "SLURMD_NODENAME": "node1", "HOME": "/home/somebody"}
SKYPILOT = {"SKYPILOT_NUM_NODES": "4", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2\n10.0.0.3\n10.0.0.4"}


def parse(words: list[str]) -> dict[str, object]:
    """Return what the command line makes of a command; it raises for options and values that do not exist."""
    name, command, *arguments = words
    assert name == "phalanx"
    commands = typer.main.get_command(app).commands
    return commands[command].make_context(command, list(arguments)).params


def run_recorded(script: str, folder: Path, environment: dict[str, str], *arguments: str) -> list[list[str]]:
    """Run a shell script with recorders in place of the commands of a cluster, and return how they were called."""
    tools = folder / "bin"
    tools.mkdir()
    for name in ("phalanx", "srun", "scontrol"):
        (tools / name).write_text(RECORDER, encoding="utf-8")
        (tools / name).chmod(0o755)
    record = folder / "record"
    variables = {"PATH": f"{tools}:{os.environ['PATH']}", "RECORD": str(record), "SLURM_SUBMIT_DIR": str(folder)}
    done = subprocess.run(
        ["bash", "-euc", script + "\nwait", "script", *arguments],
        cwd=folder, env=variables | environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [yaml.safe_load(line) for line in record.read_text(encoding="utf-8").splitlines()]


def only(calls: list[list[str]], *words: str) -> list[str]:
    (found,) = [call for call in calls if call[: len(words)] == list(words)]
    return found


def jobs_of(document: dict) -> dict[str, dict]:
    """Return the replicated jobs of a JobSet, or of a runtime that has one as its template, by name."""
    spec = document["spec"]
    jobs = spec.get("template", {}).get("spec", spec)["replicatedJobs"]
    return {job["name"]: job for job in jobs}


def pods_of(document: dict) -> dict[str, dict]:
    return {name: job["template"]["spec"]["template"]["spec"] for name, job in jobs_of(document).items()}


def kubernetes() -> Iterator[object]:
    for file, kind, job in (
        ("jobset.yaml", "jobset.x-k8s.io/v1alpha2 JobSet", "phalanx"),
        ("kubeflow-runtime.yaml", "trainer.kubeflow.org/v1alpha1 ClusterTrainingRuntime", "$(TRAIN_JOB)"),
    ):
        document = next(yaml.safe_load_all((CLUSTERS / file).read_text(encoding="utf-8")))
        yield pytest.param(document, kind, job, id=file)


@pytest.mark.parametrize(("document", "kind", "job"), list(kubernetes()))
def test_workers_of_kubernetes_join_the_coordinator_beside_them(document, kind, job):
    pods = pods_of(document)
    (coordinator,), (node,) = (pods[name]["containers"] for name in ("coordinator", "node"))

    hosting, joining = parse(coordinator["command"]), parse(node["command"] + node.get("args", ["/app/train.py"]))

    assert f"{document['apiVersion']} {document['kind']}" == kind
    port = hosting["bind"].rpartition(":")[2]
    assert joining["address"] == f"{job}-coordinator-0-0.{job}:{port}"
    assert joining["script"] == "/app/train.py"


@pytest.mark.parametrize(("document", "kind", "job"), list(kubernetes()))
def test_pods_come_back_alone_with_the_token_and_their_volume(document, kind, job):
    jobs, pods = jobs_of(document), pods_of(document)

    assert jobs["node"]["dependsOn"] == [{"name": "coordinator", "status": "Ready"}]
    for name, pod in pods.items():
        (container,) = pod["containers"]
        secrets = {each["name"]: each["valueFrom"].get("secretKeyRef") for each in container["env"]}
        assert secrets["PHALANX_TOKEN"] == {"name": "phalanx-token", "key": "token"}
        assert container["name"] == name
        assert pod["restartPolicy"] == "OnFailure"
        assert jobs[name]["template"]["spec"]["backoffLimit"] >= 100
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in pod["volumes"]}


def test_the_job_of_kubeflow_uses_the_runtime_and_fits_into_its_run():
    runtime, job = yaml.safe_load_all((CLUSTERS / "kubeflow-runtime.yaml").read_text(encoding="utf-8"))
    node = jobs_of(runtime)["node"]

    (coordinator,) = pods_of(runtime)["coordinator"]["containers"]
    most = int(parse(coordinator["command"])["workers"].partition(":")[2])

    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert node["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert job["spec"]["trainer"]["numNodes"] <= most


def lost_keys(given: object, kept: object, place: str = "") -> Iterator[str]:
    """Yield the places at which a document has something that a model of it does not have."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost_keys(value, kept.get(key), f"{place}.{key}")
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for number, (one, other) in enumerate(zip(given, kept, strict=True)):
            yield from lost_keys(one, other, f"{place}[{number}]")
    elif given != kept:
        yield place


@pytest.mark.parametrize("file", ["jobset.yaml", "kubeflow-runtime.yaml"])
def test_documents_of_kubernetes_have_only_what_their_models_know(file):
    models = pytest.importorskip("kubeflow_trainer_api.models")
    kinds = {
        "JobSet": models.JobsetV1alpha2JobSet,
        "ClusterTrainingRuntime": models.TrainerV1alpha1ClusterTrainingRuntime,
        "TrainJob": models.TrainerV1alpha1TrainJob,
    }

    for document in yaml.safe_load_all((CLUSTERS / file).read_text(encoding="utf-8")):
        model = kinds[document["kind"]].from_dict(document)

        assert not list(lost_keys(document, model.to_dict()))


def test_slurm_trains_on_the_first_node_and_joins_from_the_others(tmp_path):
    script = (CLUSTERS / "slurm.sbatch").read_text(encoding="utf-8")

    calls = run_recorded(script, tmp_path, SLURM, "my.toml")

    train, join = parse(only(calls, "phalanx", "train")), parse(only(calls, "phalanx", "join"))
    step = only(calls, "srun")
    assert str(train["config_file"]) == "my.toml"
    assert (train["bind"], train["workers"], train["local"]) == ("0.0.0.0:7000", "2:8", 2)
    assert (join["address"], join["workers"]) == ("node1:7000", 2)
    assert {"--relative=1", "--nodes=3", "--kill-on-bad-exit=0", "--no-kill"} <= set(step)


def test_a_slurm_job_that_was_queued_again_resumes(tmp_path):
    script = (CLUSTERS / "slurm.sbatch").read_text(encoding="utf-8")
    run = tmp_path / "run-17"
    run.mkdir()
    (run / "config.toml").touch()

    calls = run_recorded(script, tmp_path, SLURM, "my.toml")

    assert parse(only(calls, "phalanx", "train"))["resume"] == run


def test_slurm_reads_its_options_from_the_top_of_the_file():
    lines = (CLUSTERS / "slurm.sbatch").read_text(encoding="utf-8").splitlines()
    top = lines[: next(number for number, line in enumerate(lines) if line and not line.startswith("#"))]

    options = dict(re.fullmatch(r"#SBATCH --([a-z-]+)(?:=(.+))?", line).groups() for line in top if "SBATCH" in line)

    assert lines[0].startswith("#!")
    assert options["signal"] == "B:USR1@180"
    assert {"requeue", "no-kill"} <= options.keys()


@pytest.mark.parametrize("rank", ["0", "3"])
def test_skypilot_trains_on_the_first_node_and_joins_from_the_others(rank, tmp_path):
    task = yaml.safe_load((CLUSTERS / "skypilot.yaml").read_text(encoding="utf-8"))

    (call,) = run_recorded(task["run"], tmp_path, SKYPILOT | {"SKYPILOT_NODE_RANK": rank})

    found = parse(call)
    if rank == "0":
        assert (found["bind"], found["workers"], found["local"]) == ("0.0.0.0:7000", "2:8", 2)
    else:
        assert (found["address"], found["workers"], found["data_from_peers"]) == ("10.0.0.1:7000", 2, True)
    assert task["secrets"] == {"PHALANX_TOKEN": None}
