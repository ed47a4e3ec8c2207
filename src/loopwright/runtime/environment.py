"""The launch of this process, as torchrun or SLURM describe it in environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import ConfigurationError

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
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
        launch._check()
        return launch

    def _check(self) -> None:
        names = (
            ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT")
            if self.source == "torchrun"
            else (
                "SLURM_PROCID",
                "the number of tasks",
                "SLURM_LOCALID",
                "the tasks on this node",
                "MASTER_PORT",
            )
        )
        rank, world, local_rank, local_world, port = names
        _check_below(rank, self.rank, world, self.world)
        _check_below(local_rank, self.local_rank, local_world, self.local_world)
        if self.local_world > self.world:
            raise _refusal(
                f"{local_world} is {self.local_world}, more than {world}, which is {self.world}: "
                f"variables of another job seem to be mixed in. {_advice(self.source)}",
            )
        if not 0 < self.master_port < 65536:
            raise _refusal(
                f"{port} is {self.master_port}: use a free port between 1 and 65535.",
            )


def _check_below(name: str, value: int, limit_name: str, limit: int) -> None:
    if not 0 <= value < limit:
        source = "slurm" if name.startswith("SLURM") else "torchrun"
        raise _refusal(
            f"{name} is {value}, but {limit_name} is {limit}: it must be from 0 to {limit - 1}. "
            f"{_advice(source)}",
        )


def _refusal(problem: str) -> ConfigurationError:
    """The error for variables of a launcher that contradict each other, or of which one lacks."""
    return ConfigurationError("launcher-environment", problem)


def _advice(source: str) -> str:
    if source == "slurm":
        return "Start the program with `srun`, and unset SLURM_* variables that were set by hand."
    return (
        f"Start the program with `torchrun`, or set all of {', '.join(_TORCHRUN)}; to train "
        "alone, unset them."
    )


def _from_torchrun(variables: Mapping[str, str]) -> Launch:
    missing = [name for name in _TORCHRUN if not variables.get(name)]
    if missing:
        present = [name for name in _TORCHRUN if variables.get(name)]
        raise _refusal(
            f"{', '.join(present)} {'is' if len(present) == 1 else 'are'} set, as for several "
            f"processes, but {', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not. "
            f"{_advice('torchrun')}",
        )
    return Launch(
        rank=_integer(variables, "RANK"),
        world=_integer(variables, "WORLD_SIZE"),
        local_rank=_integer(variables, "LOCAL_RANK"),
        local_world=_integer(variables, "LOCAL_WORLD_SIZE"),
        master_addr=variables["MASTER_ADDR"],
        master_port=_integer(variables, "MASTER_PORT"),
        source="torchrun",
    )


def _is_slurm_step(variables: Mapping[str, str]) -> bool:
    """Whether `srun` started this process as one of several: not a batch script, nor a shell at a
    terminal."""
    is_step = "SLURM_PROCID" in variables and (
        "SLURM_STEP_ID" in variables or "SLURM_STEPID" in variables
    )
    return is_step and "SLURM_PTY_PORT" not in variables and _num_tasks(variables) > 1


def _num_tasks(variables: Mapping[str, str]) -> int:
    """Tasks of the step, which may be fewer than the job's."""
    for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"):
        if name in variables:
            return _integer(variables, name)
    raise _refusal(
        "SLURM_PROCID and SLURM_STEP_ID are set, as by srun, but SLURM_NTASKS is not, which says "
        f"how many processes there are. {_advice('slurm')}",
    )


def _from_slurm(variables: Mapping[str, str]) -> Launch:
    if "SLURM_LOCALID" not in variables:
        raise _refusal(
            "SLURM_PROCID is set, as by srun, but SLURM_LOCALID, this process's number on its "
            f"node, is not. {_advice('slurm')}",
        )
    world = _num_tasks(variables)
    return Launch(
        rank=_integer(variables, "SLURM_PROCID"),
        world=world,
        local_rank=_integer(variables, "SLURM_LOCALID"),
        local_world=_tasks_on_node(variables, world),
        master_addr=variables.get("MASTER_ADDR") or _first_slurm_host(variables),
        master_port=_integer(variables, "MASTER_PORT")
        if variables.get("MASTER_PORT")
        else _slurm_port(variables),
        source="slurm",
    )


def _first_slurm_host(variables: Mapping[str, str]) -> str:
    for name in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if variables.get(name):
            return first_host(variables[name])
    raise _refusal(
        "SLURM started several processes, but neither SLURM_STEP_NODELIST nor SLURM_NODELIST says "
        "on which nodes: set MASTER_ADDR to the host of rank 0.",
    )


def first_host(nodes: str) -> str:
    """The first host of a list as SLURM writes it: `node[01-04,7]` is node01, `a3,b[1-2]` is a3."""
    first = re.match(r"(?:[^,\[\]]|\[[^\]]*\])+", nodes.strip())
    if first is None:
        raise _refusal(
            f"Cannot read the node list {nodes!r}: set MASTER_ADDR to the host of rank 0.",
        )
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first.group())


def _tasks_on_node(variables: Mapping[str, str], world: int) -> int:
    """This node's entry in a list such as `2(x3),1`; all tasks, where there is no list."""
    listed = variables.get("SLURM_STEP_TASKS_PER_NODE") or variables.get("SLURM_TASKS_PER_NODE")
    if not listed:
        return world
    counts: list[int] = []
    for entry in listed.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", entry.strip())
        if match is None:
            raise _refusal(
                f"Cannot read SLURM_STEP_TASKS_PER_NODE={listed!r}: expected e.g. '2(x3),1'.",
            )
        counts += [int(match[1])] * int(match[2] or 1)
    node = _integer(variables, "SLURM_NODEID") if "SLURM_NODEID" in variables else 0
    if node >= len(counts):
        raise _refusal(
            f"SLURM_NODEID is {node}, but SLURM_STEP_TASKS_PER_NODE={listed!r} lists "
            f"{len(counts)} nodes. {_advice('slurm')}",
        )
    return counts[node]


def _slurm_port(variables: Mapping[str, str]) -> int:
    """The same port on all nodes and another for every job and step, since steps may share a
    node."""
    job = _integer(variables, "SLURM_JOB_ID") if "SLURM_JOB_ID" in variables else 0
    step = _integer(variables, "SLURM_STEP_ID" if "SLURM_STEP_ID" in variables else "SLURM_STEPID")
    return _SLURM_PORTS[(job + 997 * step) % len(_SLURM_PORTS)]


def _integer(variables: Mapping[str, str], name: str) -> int:
    try:
        return int(variables[name])
    except ValueError:
        raise _refusal(
            f"{name}={variables[name]!r} is not a whole number. {_advice('torchrun')}",
        ) from None
