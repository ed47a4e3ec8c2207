"""Forked gloo ranks, and a small model spread over them, for the tests of checkpoints that several processes write."""

from __future__ import annotations

import multiprocessing
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from loopwright.checkpoint import (
    AsyncWriter,
    CheckpointStore,
    Group,
    Piece,
    load_stored,
    place_like,
    read_checkpoint,
    restore_into,
    snapshot,
    write_checkpoint,
)
from loopwright.checkpoint.layout import Box

forks = multiprocessing.get_context("fork")

LAYOUTS = {"1": 1, "2": 2, "3": 3, "4": 4, "replicate x shard": 4, "shard x tensor": 4}


class Ranks:
    """Processes that run one function, each with its rank, the number of them and a pipe to the test."""

    def __init__(self, world: int, function: Callable[..., Any], *args: object) -> None:
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = forks.Pipe()
            process = forks.Process(target=_run, args=(function, rank, world, theirs, *args), daemon=True)
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def receive(self, rank: int) -> Any:
        kind, value = self.pipes[rank].recv()
        assert kind == "said", value
        return value

    def kill(self, rank: int) -> None:
        self.processes[rank].kill()
        self.processes[rank].join()

    def finish(self) -> list[Any]:
        """What the functions return, after all of them did; a failure of one is the test's."""
        results = []
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            kind, value = pipe.recv()
            assert kind == "returned", value
            results.append(value)
            process.join()
        return results


def run_ranks(world: int, function: Callable[..., Any], *args: object) -> list[Any]:
    """Run a function on gloo ranks of one group; what each returned."""
    with tempfile.TemporaryDirectory() as directory:
        return Ranks(world, in_group, f"file://{directory}/meeting", function, *args).finish()


def _run(function: Callable[..., Any], rank: int, world: int, pipe: Connection, *args: object) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send(("returned", function(rank, world, pipe, *args)))
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))


def in_group(rank: int, world: int, pipe: Connection, address: str, function: Callable[..., Any], *args: object) -> Any:
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=world)
    try:
        return function(rank, world, *args)
    finally:
        dist.barrier()
        dist.destroy_process_group()


class Net(nn.Module):
    """Sizes that no number of ranks divides, tied weights, buffers, and a parameter with a single value."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.first = nn.Linear(3, 7)
        self.second = nn.Linear(7, 3)
        self.norm = nn.BatchNorm1d(3)
        self.scale = nn.Parameter(torch.ones(1))
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.second(torch.tanh(self.first(self.embedding(tokens))))
        return self.head(self.norm(hidden) * self.scale)


def mesh_of(layout: str) -> DeviceMesh:
    if layout == "replicate x shard":
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    if layout == "shard x tensor":
        return init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
    return init_device_mesh("cpu", (LAYOUTS[layout],), mesh_dim_names=("shard",))


def build(layout: str, mesh: DeviceMesh, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    if layout == "shard x tensor":
        parallelize_module(model, mesh["tensor"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        mesh = mesh["shard"]
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One update; every rank has the same batch, so that any number of them does the same."""
    optimizer.zero_grad()
    model(torch.arange(5)).square().mean().backward()
    optimizer.step()


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    cut, copies = [Shard(0)] + [Replicate()] * (mesh.ndim - 1), [Replicate()] * mesh.ndim
    return {
        "models": {"default": model.state_dict()},
        "optimizers": {"default": optimizer.state_dict()},
        "others": {
            "columns": distribute_tensor(torch.randn(2, 5, generator=generator), mesh, [Shard(1), *cut[1:]]),
            "grid": distribute_tensor(torch.randn(5, 3, generator=generator), mesh, [Shard(i) for i in range(mesh.ndim)]),
            "complex": distribute_tensor(torch.randn(3, generator=generator, dtype=torch.complex128), mesh, cut),
            "bits": distribute_tensor(torch.arange(9).to(torch.uint32), mesh, cut),
            "scalar": distribute_tensor(torch.tensor(2.5), mesh, copies),
            "empty": distribute_tensor(torch.empty(0, 3), mesh, cut),
        },
        "rng": torch.get_rng_state(),
    }


def gathered(tree: Any) -> Any:
    """The tree with whole tensors: what torch says they are."""
    if isinstance(tree, DTensor):
        return tree.full_tensor()
    if isinstance(tree, dict):
        return {key: gathered(value) for key, value in tree.items()}
    return [gathered(value) for value in tree] if isinstance(tree, list) else tree


def save_trained(rank: int, world: int, layout: str, directory: Path) -> str:
    """Train one update and save it; the checkpoint's own rank 0 also leaves the whole state beside it."""
    mesh = mesh_of(layout)
    model, optimizer = build(layout, mesh)
    train(model, optimizer)
    state = state_of(model, optimizer, mesh)
    store = CheckpointStore(directory, writer=AsyncWriter(group=Group(rank, world)))
    store.writer.prepare(state)
    token = agreed_token(rank)
    expected = gathered(state)
    store.save("update-00000001", state, {"update": 1}, token=token)
    train(model, optimizer)  # the checkpoint is of the state before
    store.wait()
    if rank == 0:
        torch.save(expected, directory / "expected.pt")
    return token


def agreed_token(rank: int) -> str:
    from loopwright.checkpoint import new_token

    tokens = [new_token() if rank == 0 else None]
    dist.broadcast_object_list(tokens)
    return tokens[0]


def restore_trained(rank: int, world: int, layout: str, sources: list[Path]) -> list[str]:
    """Restore checkpoints into a model and an optimizer spread in this way; what is then not as it was saved."""
    mesh = mesh_of(layout)
    problems = []
    for source in sources:
        model, optimizer = build(layout, mesh, seed=1)
        tree = read_checkpoint(source / "update-00000001", lazy=True, verify=rank == 0).tree
        for key, value in model.state_dict().items():
            restore_into(value, tree["models"]["default"][key])
        load_optimizer_state(optimizer, tree["optimizers"]["default"])
        expected = torch.load(source / "expected.pt", weights_only=True)
        problems += compare(gathered(model.state_dict()), expected["models"]["default"], f"{source.name}/model")
        saved = expected["optimizers"]["default"]
        problems += compare(gathered(optimizer.state_dict()), saved, f"{source.name}/optimizer")
        train(model, optimizer)  # nothing of it is of a kind that the optimizer cannot go on with
    return problems


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    params = [param for group in optimizer.param_groups for param in group["params"]]
    state = {
        index: {key: place_like(value, params[index]) for key, value in entries.items()}
        for index, entries in saved["state"].items()
    }
    optimizer.load_state_dict({"state": state, "param_groups": load_stored(saved["param_groups"])})


def compare(own: Any, other: Any, path: str) -> list[str]:
    if isinstance(own, Tensor):
        return [] if torch.equal(own, other) and own.dtype == other.dtype else [path]
    if isinstance(own, dict):
        if set(own) != set(other):
            return [path]
        return [problem for key in own for problem in compare(own[key], other[key], f"{path}/{key}")]
    if isinstance(own, list):
        pairs = zip(own, other, strict=True)
        return [problem for i, (a, b) in enumerate(pairs) for problem in compare(a, b, f"{path}/{i}")]
    return [] if own == other else [path]


def rewind(rank: int, world: int, layout: str) -> list[str]:
    """Take a snapshot, train on, go back to it; what is then not as it was."""
    mesh = mesh_of(layout)
    model, optimizer = build(layout, mesh)
    train(model, optimizer)
    expected = gathered(model.state_dict())
    taken = snapshot(model.state_dict())
    train(model, optimizer)
    for key, value in model.state_dict().items():
        restore_into(value, taken[key])
    return compare(gathered(model.state_dict()), expected, "model")


def part(rank: int, world: int, update: int, size: int = 10_000) -> dict[str, Any]:
    """A state of which every rank has a row, without a process group: for the tests in which ranks die."""
    row = torch.full((1, size), float(update))
    return {"update": update, "weight": Piece(row, Box((rank, 0), (1, size)), (world, size), True)}


def write_until_killed(rank: int, world: int, pipe: Connection, directory: Path, token: str, absent: int) -> None:
    """Save once together, then again without one of the ranks; tells when its own part is there."""
    for update in (1, 2):
        if update == 2 and rank == absent:
            return
        store = CheckpointStore(directory, writer=AsyncWriter(group=Group(rank, world)))
        store.save(f"update-{update}", part(rank, world, update), {"update": update}, token=token)
        if update == 1 or rank != 0:
            store.wait()
    pipe.send(("said", "written"))
    signal.pause()


def write_and_die(rank: int, world: int, pipe: Connection, directory: Path, token: str, dying: int) -> str:
    """Save together with a rank that the system ends in the middle of its file; the error that this rank gets."""
    if rank == dying:
        end_at_file_size(20_000)
    group = Group(rank, world, patience=0.0 if rank == 0 else 600.0)
    if rank == 0:
        pipe.recv()  # the others are done, or gone
    try:
        write_checkpoint(directory / "update-2", part(rank, world, 2), {"update": 2}, group=group, token=token)
    except Exception as error:
        return str(error)
    return ""


def write_to_full_disk(rank: int, world: int, pipe: Connection, directory: Path, token: str, failing: int) -> str:
    """Save together with a rank that may not write so much; the error that this rank gets."""
    if rank == failing:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    store = CheckpointStore(directory, writer=AsyncWriter(group=Group(rank, world)))
    store.save("update-2", part(rank, world, 2), {"update": 2}, token=token)
    try:
        store.wait()
    except Exception as error:
        return str(error)
    return ""


def end_at_file_size(size: int) -> None:
    """Have the kernel end this process the moment one of its files grows above a size."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
