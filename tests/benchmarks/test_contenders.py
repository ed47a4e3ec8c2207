"""Contenders run, their processes are measured in turns, and one that fails does not take the
others with it."""

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from .conftest import BENCHMARKS

PEERS = sorted(
    file
    for file in (BENCHMARKS / "peers").glob("*.py")
    if file.stem not in ("__init__", "environments")
)


def small_w1(order: tuple[int, ...] | None = None):
    from workloads import WORKLOADS

    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 10), torch.randn(96, 1))
    return replace(WORKLOADS["W1"], build_data=lambda: data, order=order)


def names(module: str, group: str) -> list[str]:
    """The functions listed in a group of contenders, read without importing it; compiling takes too
    long here."""
    for node in ast.parse((BENCHMARKS / f"{module}.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and node.target.id == group:
            listed = node.value.generators[0].iter.elts
            return [name.id for name in listed if "compiled" not in name.id]
    raise AssertionError(group)


@pytest.mark.parametrize(
    "name", [*names("contenders", "CONTENDERS"), *names("interface_contenders", "INTERFACES")]
)
def test_every_contender_of_ours_runs_three_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    from contender import find

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    build, differs = find(name)
    build(small_w1())(3)
    assert differs is None


def test_hand_written_loops_and_ours_have_the_same_loss_over_the_same_order(
    tmp_path: Path, monkeypatch, capsys
):
    from contender import checked_loss, find

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    listed = ["naive", "tight", "ours_own_optimizer", "ours_factory", "ours_bare", "ours_bare_own"]
    losses = [checked_loss(find(name)[0], small_w1(), 3) for name in listed]
    assert max(losses) - min(losses) <= 1e-6
    assert losses[0] != checked_loss(find("naive")[0], small_w1(), 2)


def test_rows_in_a_given_order_are_those_that_a_loader_gives() -> None:
    order = tuple(reversed(range(96)))
    inputs, targets = small_w1(order).rows(2)
    whole = small_w1().build_data()[list(order)]
    assert torch.equal(inputs, whole[0][:64])
    assert torch.equal(targets, whole[1][:64])


FAILING = """
def serve(connection, name, workload, num_checked):
    assert name != "early", "no such thing"
    connection.send((num_checked + 0.5, name))
    for number in range(3):
        if not connection.recv():
            return
        if name == "late" and number == 1:
            raise SystemExit("broken in a round")
        connection.send((5.0, 5.0 + 10 * (number + 1), 11))
"""


def test_a_contender_that_fails_leaves_its_last_line_and_the_others_their_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interleaved import measure_all

    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reported = []
    measured = measure_all(
        ["early", "good", "late"],
        "W1",
        3,
        module="failing",
        num_checked=7,
        report=lambda *what: reported.append(what),
    )
    assert measured.steps == {"good": [1.0, 2.0, 3.0]}
    assert measured.calls == {"good": [4.0, 3.0, 2.0]}
    assert measured.times == {"good": [15 / 11, 25 / 11, 35 / 11]}
    assert measured.failures == {
        "early": "AssertionError: no such thing",
        "late": "broken in a round",
    }
    assert measured.losses == {"good": (7.5, "good"), "late": (7.5, "late")}
    assert [what for what in reported if what[0] == "good"] == [
        ("good", 0, 2),
        *((("good", n, 1)) for n in (1, 2, 3)),
    ]


def test_a_measurement_that_must_be_whole_says_which_contender_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from interleaved import ContenderError, measure

    (tmp_path / "failing.py").write_text(FAILING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ContenderError, match="early: AssertionError: no such thing"):
        measure(["early", "good"], "W1", 1, module="failing")


# Peers, which are not installed here: their modules are read, not imported


def test_every_peer_has_a_module_a_section_of_versions_and_a_title() -> None:
    from page import TITLES
    from peers.environments import sections

    found = {file.stem for file in PEERS}
    assert found == set(sections()) - {"loopwright"}
    assert found == set(TITLES)


@pytest.mark.parametrize("file", PEERS, ids=lambda file: file.stem)
def test_a_peer_has_both_contenders_and_nothing_of_ours(file: Path) -> None:
    tree = ast.parse(file.read_text())
    functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    assert {"off", "default"} <= functions
    assert "loopwright" not in file.read_text()


def test_every_version_of_a_peers_environment_is_pinned() -> None:
    from peers.environments import CAME_WITH_IT, sections

    for peer, wanted in sections().items():
        pinned = wanted[wanted.index(CAME_WITH_IT) + 1 :] if peer == "loopwright" else wanted
        loose = [line for line in pinned if line != CAME_WITH_IT and "==" not in line]
        assert not loose, peer


def test_torch_is_never_among_what_is_installed() -> None:
    from peers.environments import sections

    lines = [line for peer, wanted in sections().items() if peer != "loopwright" for line in wanted]
    assert not [line for line in lines if line.startswith(("torch=", "numpy=", "nvidia"))]
