"""The launch of this process, as torchrun or SLURM describe it in environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConfigurationError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_TASKS = ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")  # the step's before the job's
_SLURM_PORTS = range(12000, 32000)  # below the ports that systems use for outgoing connections


@dataclass(frozen=True, slots=True)
class Launch:
    """One process of several that were started together, and the address of their rendezvous."""

    rank: int
    world: int
    local_rank: int
    local_world: int
    master_addr: str
    master_port: int
    source: str
    """`"torchrun"` or `"slurm"`."""

    @classmethod
    def from_environment(cls, variables: Mapping[str, str] | None = None) -> Launch | None:
        """The launch that the variables (default: this process's) describe; None where there is no
        launcher.

        torchrun's come before SLURM's, since torchrun is often started by srun.
        """
        variables = os.environ if variables is None else variables
        if any(name in variables for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")):
            launch = _from_torchrun(variables)
        elif _is_slurm_step(variables):
            launch = _from_slurm(variables)
        else:
            return None
        is_consistent = launch.rank < launch.world and launch.local_rank < launch.local_world
        if not is_consistent or launch.local_world > launch.world:
            raise _refusal(
                f"The {launch.source} variables contradict each other: rank {launch.rank} of "
                f"{launch.world}, on its node {launch.local_rank} of {launch.local_world}."
            )
        if not 0 < launch.master_port < 65536:
            raise _refusal(f"MASTER_PORT is {launch.master_port}, which is no port.")
        return launch


def _refusal(problem: str) -> ConfigurationError:
    """The error for variables of a launcher that contradict each other, or of which one lacks."""
    return ConfigurationError(
        "launcher-environment",
        f"{problem} Start the program with `srun` or `torchrun`, and unset variables that were "
        f"set by hand, or set all of {', '.join(_TORCHRUN)}; to train alone, unset them.",
    )


def _number(variables: Mapping[str, str], *names: str, default: str = "") -> int:
    """The number in the first of these variables that is set."""
    name = next((name for name in names if variables.get(name)), names[0])
    value = variables.get(name) or default
    if not value:
        raise _refusal(f"{' or '.join(names)} is not set, although others of the launcher are.")
    if not value.isdecimal():
        raise _refusal(f"{name}={value!r} is not a whole number, 0 or more.")
    return int(value)


def _from_torchrun(variables: Mapping[str, str]) -> Launch:
    missing = [name for name in _TORCHRUN if not variables.get(name)]
    if missing:
        raise _refusal(f"{', '.join(missing)} not set, although others of the launcher are.")
    return Launch(
        rank=_number(variables, "RANK"),
        world=_number(variables, "WORLD_SIZE"),
        local_rank=_number(variables, "LOCAL_RANK"),
        local_world=_number(variables, "LOCAL_WORLD_SIZE"),
        master_addr=variables["MASTER_ADDR"],
        master_port=_number(variables, "MASTER_PORT"),
        source="torchrun",
    )


def _is_slurm_step(variables: Mapping[str, str]) -> bool:
    """Whether `srun` started this process as one of several: not a batch script, nor a shell at a
    terminal."""
    is_step = "SLURM_PROCID" in variables and "SLURM_STEP_ID" in variables
    return is_step and "SLURM_PTY_PORT" not in variables and _number(variables, *_TASKS) > 1


def _from_slurm(variables: Mapping[str, str]) -> Launch:
    nodes = variables.get("SLURM_STEP_NODELIST") or variables.get("SLURM_JOB_NODELIST", "")
    # the same port on all nodes, and another for every job and step, since steps may share a node
    job = _number(variables, "SLURM_JOB_ID", default="0")
    step = _number(variables, "SLURM_STEP_ID")
    port = _SLURM_PORTS[(job + 997 * step) % len(_SLURM_PORTS)]
    world = _number(variables, *_TASKS)
    return Launch(
        rank=_number(variables, "SLURM_PROCID"),
        world=world,
        local_rank=_number(variables, "SLURM_LOCALID"),
        local_world=_tasks_on_node(variables, world),
        master_addr=variables.get("MASTER_ADDR") or first_host(nodes),
        master_port=_number(variables, "MASTER_PORT", default=str(port)),
        source="slurm",
    )


def first_host(nodes: str) -> str:
    """The first host of a list as SLURM writes it: `node[01-04,7]` is node01, `a3,b[1-2]` is a3."""
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes.strip())
    if first is None:
        raise _refusal(
            f"Cannot read the node list {nodes!r}: set MASTER_ADDR to the host of rank 0."
        )
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first.group())


def _tasks_on_node(variables: Mapping[str, str], world: int) -> int:
    """This node's entry in a list such as `2(x3),1`; all tasks, where there is no list."""
    listed = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE")
    if not listed:
        return world
    counts: list[int] = []
    for num_tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", listed):
        counts += [int(num_tasks)] * int(times or 1)
    node = _number(variables, "SLURM_NODEID", default="0")
    if node >= len(counts):
        raise _refusal(
            f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE={listed!r} has no such node."
        )
    return counts[node]
