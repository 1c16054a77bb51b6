"""The Slurm script and the Kubernetes job: their syntax, and the commands that they start."""

import json
import os
import re
import signal
import subprocess
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from torchrun import parse_train
from vitreous.training import TrainConfig

EXAMPLES = Path(__file__).parent.parent / "examples"
SLURM, JOB = EXAMPLES / "slurm.sbatch", EXAMPLES / "pytorchjob.yaml"

# Options of sbatch and the values that they accept, from its manual page.
SBATCH = {
    "job-name": r"[\w-]+", "nodes": r"\d+", "ntasks-per-node": r"\d+", "gpus-per-node": r"(\w+:)?\d+",
    "cpus-per-task": r"\d+", "mem": r"\d+[KMGT]?", "time": r"(\d+-)?\d+:\d\d:\d\d", "requeue": "",
    "signal": r"(R?B?:)?[A-Z]+\d*@\d+", "open-mode": r"append|truncate", "output": r"[\w.%/-]+",
}  # fmt: skip
# Fields of PyTorchJob v1 of the Kubeflow Training Operator, and of the parts of a pod that the example uses.
JOB_FIELDS: dict[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"runPolicy", "elasticPolicy", "pytorchReplicaSpecs", "nprocPerNode"},
    "spec.elasticPolicy": {
        "minReplicas", "maxReplicas", "rdzvBackend", "rdzvPort", "rdzvHost", "rdzvId", "rdzvConf", "standalone",
        "maxRestarts", "metrics",
    },
    "spec.runPolicy": {
        "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy",
        "suspend",
    },
    "spec.pytorchReplicaSpecs": {"Master", "Worker"},
    "spec.pytorchReplicaSpecs.Worker": {"replicas", "restartPolicy", "template"},
    "spec.pytorchReplicaSpecs.Worker.template": {"metadata", "spec"},
    "spec.pytorchReplicaSpecs.Worker.template.spec": {
        "containers", "volumes", "terminationGracePeriodSeconds", "nodeSelector", "tolerations", "securityContext",
    },
}  # fmt: skip
CONTAINER = {"name", "image", "command", "args", "env", "resources", "volumeMounts", "securityContext", "workingDir"}


def parse_torchrun(words: Sequence[str]) -> tuple[Namespace, TrainConfig]:
    """Parse the arguments of torchrun and those of the `vitreous train` that it starts."""
    launch = get_args_parser().parse_args(words)
    assert launch.module
    assert (launch.training_script, launch.training_script_args[0]) == ("vitreous", "train")
    config = parse_train(launch.training_script_args[1:])
    assert config.auto_resume, "a restarted job must resume"
    return launch, config


def run_in_slurm(folder: Path, stop: bool) -> tuple[list[str], list[str], subprocess.CompletedProcess[str]]:
    """Run the script with stand-ins for Slurm's commands. Return the arguments of torchrun and scontrol."""
    wait = "trap 'kill $!; exit 143' TERM; sleep 60 & touch {0}/ready; wait" if stop else "exit 0"
    commands = {
        "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
        "torchrun": 'printf "%s\\n" "$TORCH_DISABLE_SHARE_RDZV_TCP_STORE" "$@" > {0}/torchrun.txt\n' + wait,
        "scontrol": 'echo "$*" >> {0}/scontrol.txt; [[ $1 != show ]] || printf "node-a\\nnode-b\\n"',
    }
    for name, text in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{text.format(folder)}\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "12345", "SLURM_JOB_NUM_NODES": "2"}
    environment |= {"SLURM_JOB_NODELIST": "node-[a-b]"}
    running = subprocess.Popen(
        ["bash", str(SLURM)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while stop and running.poll() is None and not (folder / "ready").exists():
            time.sleep(0.01)
        if stop:
            running.send_signal(signal.SIGTERM)
        out, errors = running.communicate(timeout=60)
    finally:
        running.kill()
    finished = subprocess.CompletedProcess("slurm.sbatch", running.returncode, out, errors)
    words, slurm = ((folder / f"{name}.txt").read_text().splitlines() for name in ("torchrun", "scontrol"))
    return words, slurm, finished


def test_the_slurm_script_has_valid_syntax_and_options() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    lines = SLURM.read_text().splitlines()
    options = [line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")]
    assert len(options) > 5
    for option in options:
        found = re.fullmatch(r"--([a-z-]+)(?:=(\S+))?", option)
        assert found is not None, option
        assert found[1] in SBATCH, option
        assert re.fullmatch(SBATCH[found[1]], found[2] or ""), option
    commands = [line for line in lines if line and not line.startswith("#")]
    assert max(lines.index(f"#SBATCH {option}") for option in options) < lines.index(commands[0])  # or they are ignored


def test_the_slurm_script_starts_torchrun(tmp_path: Path) -> None:
    (store, *words), _, finished = run_in_slurm(tmp_path, stop=False)
    launch, config = parse_torchrun(words)
    assert (finished.returncode, finished.stderr, store) == (0, "", "1")
    assert (launch.nnodes, launch.rdzv_backend, launch.rdzv_endpoint) == ("2", "c10d", "node-a:22345")
    assert int(launch.max_restarts) > 0
    assert config.batch_size == 1024


def test_the_slurm_job_is_queued_again_before_its_time_limit(tmp_path: Path) -> None:
    _, slurm, finished = run_in_slurm(tmp_path, stop=True)
    assert slurm[-1] == "requeue 12345", finished.stderr


def test_the_kubernetes_job_has_valid_fields_and_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    job = yaml.safe_load(JOB.read_text())
    json.dumps(job)  # no dates or other types of YAML that Kubernetes does not have
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    for path, fields in JOB_FIELDS.items():
        value: Any = job
        for name in filter(None, path.split(".")):
            value = value[name]
        assert set(value) <= fields, path

    spec = job["spec"]
    replica, policy = spec["pytorchReplicaSpecs"]["Worker"], spec["elasticPolicy"]
    assert policy["minReplicas"] <= replica["replicas"] <= policy["maxReplicas"]
    assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
    assert spec["runPolicy"]["cleanPodPolicy"] in ("All", "Running", "None")
    pod = replica["template"]["spec"]
    (container,) = pod["containers"]
    assert container["name"] == "pytorch"  # the operator passes its variables only to this container
    assert set(container) <= CONTAINER
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert all(isinstance(value, str) for value in container["resources"]["limits"].values())
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert environment == {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

    assert container["command"] == ["torchrun"]
    monkeypatch.setenv("PET_NNODES", f"{policy['minReplicas']}:{policy['maxReplicas']}")  # as the operator does
    monkeypatch.setenv("PET_MAX_RESTARTS", str(policy["maxRestarts"]))
    launch, config = parse_torchrun(container["args"])
    assert (launch.nnodes, int(launch.max_restarts), launch.nproc_per_node) == ("2:2", 3, "gpu")
    mounts = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    assert any(str(config.out).startswith(mount) for mount in mounts)
