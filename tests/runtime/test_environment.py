"""What torchrun's and SLURM's variables say about a process."""

from __future__ import annotations

import pytest

from loopwright.runtime.environment import Launch, first_host
from tests.mistakes import raises

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "123456",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_NTASKS": "5",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "node[07-09]",
}


def test_without_any_variable_there_is_no_launch() -> None:
    assert (
        Launch.from_environment({"PATH": "/bin", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"})
        is None
    )


def test_torchrun_says_everything_itself() -> None:
    assert Launch.from_environment(TORCHRUN) == Launch(5, 8, 1, 4, "10.0.0.1", 29500, "torchrun")


def test_torchrun_inside_an_srun_step_comes_first() -> None:
    launch = Launch.from_environment(SRUN | TORCHRUN)
    assert launch is not None
    assert (launch.source, launch.rank) == ("torchrun", 5)


@pytest.mark.parametrize("missing", ["RANK", "MASTER_ADDR"])
def test_half_of_torchruns_variables_is_refused_with_the_missing_one(missing: str) -> None:
    half = {name: value for name, value in TORCHRUN.items() if name != missing}
    with raises("launcher-environment", f"{missing} not set"):
        Launch.from_environment(half)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"RANK": "8"}, "rank 8 of 8"),
        ({"LOCAL_WORLD_SIZE": "9"}, "1 of 9"),
        ({"RANK": "two"}, "RANK='two'"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0"),
    ],
)
def test_variables_that_contradict_each_other_are_refused(
    changed: dict[str, str], message: str
) -> None:
    with raises("launcher-environment", message):
        Launch.from_environment(TORCHRUN | changed)


def test_an_srun_step_is_understood() -> None:
    launch = Launch.from_environment(SRUN)
    assert launch is not None
    assert (launch.rank, launch.world, launch.local_rank, launch.local_world) == (3, 5, 1, 2)
    assert (launch.master_addr, launch.source) == ("node07", "slurm")


def test_all_tasks_of_a_step_derive_the_same_port_and_two_steps_do_not() -> None:
    def port(**changed: str) -> int:
        launch = Launch.from_environment(SRUN | changed)
        assert launch is not None
        return launch.master_port

    assert port(SLURM_PROCID="0", SLURM_LOCALID="0", SLURM_NODEID="0") == port()
    assert len({port(), port(SLURM_STEP_ID="1"), port(SLURM_JOB_ID="123457")}) == 3
    assert 1024 < port() < 32768


def test_an_address_given_by_hand_is_used_with_slurm() -> None:
    launch = Launch.from_environment(SRUN | {"MASTER_ADDR": "10.1.1.1", "MASTER_PORT": "4000"})
    assert launch is not None
    assert (launch.master_addr, launch.master_port) == ("10.1.1.1", 4000)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, id="one task"),
        pytest.param({"SLURM_PTY_PORT": "40000"}, id="a shell at a terminal"),
        pytest.param({"SLURM_STEP_ID": None}, id="a batch script without srun"),
    ],
)
def test_a_lone_process_under_slurm_is_no_launch(changed: dict[str, str | None]) -> None:
    variables = {name: value for name, value in (SRUN | changed).items() if value is not None}
    assert Launch.from_environment(variables) is None


@pytest.mark.parametrize("missing", ["SLURM_LOCALID", "SLURM_NTASKS"])
def test_an_srun_step_that_lacks_a_number_is_refused_with_its_name(missing: str) -> None:
    half = {
        name: value for name, value in SRUN.items() if name not in (missing, "SLURM_STEP_NUM_TASKS")
    }
    with raises("launcher-environment", missing):
        Launch.from_environment(half)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node[01-04,7]", "node01"),
        ("a3,b[1-2]", "a3"),
        ("rack[1-2]node[05-06]-ib", "rack1node05-ib"),
    ],
)
def test_the_first_host_of_a_node_list(nodes: str, first: str) -> None:
    assert first_host(nodes) == first
