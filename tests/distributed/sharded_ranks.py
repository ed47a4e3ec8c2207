"""What ranks do in the tests of checkpoints that several processes write."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it; once here is quicker than once in every rank
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
    TensorShard,
    load_stored,
    new_token,
    place_like,
    read_checkpoint,
    restore_into,
    sharded,
    snapshot,
)
from loopwright.checkpoint.atomic import clean_leftovers
from loopwright.checkpoint.layout import Box

# by number of ranks
LAYOUTS = {
    1: ["1"],
    2: ["2"],
    3: ["3"],
    4: ["4", "replicate x shard", "shard x tensor"],
}


class Net(nn.Module):
    """Sizes that no number of ranks divides, tied weights, buffers, and a parameter with a single
    value."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.first = nn.Linear(3, 6)
        self.second = nn.Linear(6, 3)
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
    return init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))


def build(layout: str, mesh: DeviceMesh, seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Net()
    if layout == "shard x tensor":
        parallelize_module(
            model, mesh["tensor"], {"first": ColwiseParallel(), "second": RowwiseParallel()}
        )
        mesh = mesh["shard"]
    fully_shard(model, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One update; every rank has the same batch, so that any number of them does the same."""
    optimizer.zero_grad()
    model(torch.arange(5)).square().mean().backward()
    optimizer.step()


def state_of(
    model: nn.Module, optimizer: torch.optim.Optimizer, mesh: DeviceMesh
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(5)
    cut, copies = [Shard(0)] + [Replicate()] * (mesh.ndim - 1), [Replicate()] * mesh.ndim
    return {
        "models": {"default": model.state_dict()},
        "optimizers": {"default": optimizer.state_dict()},
        "others": {
            "columns": distribute_tensor(
                torch.randn(2, 5, generator=generator), mesh, [Shard(1), *cut[1:]]
            ),
            "grid": distribute_tensor(
                torch.randn(5, 3, generator=generator), mesh, [Shard(i) for i in range(mesh.ndim)]
            ),
            "complex": distribute_tensor(
                torch.randn(3, generator=generator, dtype=torch.complex128), mesh, cut
            ),
            "half": distribute_tensor(torch.randn(9, generator=generator).half(), mesh, cut),
            "scalar": distribute_tensor(torch.tensor(2.5), mesh, copies),
            "empty": distribute_tensor(torch.empty(0, 3), mesh, cut),
        },
        "rng": torch.get_rng_state(),
    }


def gathered(tree: Any) -> Any:
    """The tree with whole tensors: what torch says they are."""
    if isinstance(tree, DTensor):
        return tree.full_tensor().clone()
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: gathered(value) for key, value in tree.items()}
    return [gathered(value) for value in tree] if isinstance(tree, list) else tree


def save_all(rank: int, layouts: list[str], root: Path) -> None:
    dist.init_process_group("gloo")
    for layout in layouts:
        save_trained(rank, layout, root / layout)


def save_trained(rank: int, layout: str, directory: Path) -> None:
    """Train one update and save it; rank 0 also leaves the whole state beside the checkpoint."""
    mesh = mesh_of(layout)
    model, optimizer = build(layout, mesh)
    train(model, optimizer)
    state = state_of(model, optimizer, mesh)
    store = CheckpointStore(directory, writer=AsyncWriter(group=Group(rank, dist.get_world_size())))
    store.writer.prepare(state)
    token = agreed_token(rank)
    expected = gathered(state)
    store.save("update-00000001", state, {"update": 1}, token=token)
    train(model, optimizer)  # the checkpoint is of the state before
    store.writer.wait()
    if rank == 0:
        torch.save(expected, directory / "expected.pt")


def agreed_token(rank: int) -> str:
    tokens = [new_token() if rank == 0 else None]
    dist.broadcast_object_list(tokens)
    return tokens[0]


def restore_all(rank: int, layouts: list[str], sources: list[Path]) -> list[str]:
    dist.init_process_group("gloo")
    return [
        f"{layout}: {problem}"
        for layout in layouts
        for problem in restore_trained(rank, layout, sources)
    ]


def restore_trained(rank: int, layout: str, sources: list[Path]) -> list[str]:
    """Restore checkpoints into a model and an optimizer sharded in this way; returns the
    differences."""
    mesh = mesh_of(layout)
    problems = []
    for source in sources:
        model, optimizer = build(layout, mesh, seed=1)
        tree = read_checkpoint(source / "update-00000001", lazy=True, verify=rank == 0).tree
        for key, value in model.state_dict().items():
            restore_into(value, tree["models"]["default"][key])
        load_optimizer_state(optimizer, tree["optimizers"]["default"])
        expected = torch.load(source / "expected.pt", weights_only=True)
        problems += compare(
            gathered(model.state_dict()), expected["models"]["default"], f"{source.name}/model"
        )
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
        return [
            problem for key in own for problem in compare(own[key], other[key], f"{path}/{key}")
        ]
    if isinstance(own, list):
        pairs = zip(own, other, strict=True)
        return [
            problem for i, (a, b) in enumerate(pairs) for problem in compare(a, b, f"{path}/{i}")
        ]
    return [] if own == other else [path]


def rewind(rank: int, layout: str) -> list[str]:
    """Take a snapshot, train on, go back to it; what is then not as it was."""
    dist.init_process_group("gloo")
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
    """A state of which every rank has a row, without a process group: for the tests in which ranks
    die."""
    row = torch.full((1, size), float(update))
    return {
        "update": update,
        "weight": TensorShard(row, Box((rank, 0), (1, size)), (world, size), True),
    }


def store_of(rank: int, world: int, directory: Path) -> CheckpointStore:
    return CheckpointStore(directory / "points", writer=AsyncWriter(group=Group(rank, world)))


def save_part(store: CheckpointStore, update: int, token: str) -> str:
    """Save together; the error that this rank gets, empty where there is none."""
    group = store.writer.group
    state = part(group.rank, group.world, update)
    try:
        store.save(f"update-{update}", state, {"update": update}, wait=True, token=token)
    except Exception as error:
        return str(error)
    return ""


def shared_text(path: Path, text: str | None = None) -> str:
    """Say something to the other ranks, or wait for what one of them says."""
    if text is not None:
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(text)
        unfinished.rename(path)
    while not path.exists():
        os.sched_yield()
    return path.read_text()


def die_together(rank: int, directory: Path) -> list[str]:
    """Save once; then rank 2 is killed before its part, and rank 0 while it waits; rank 1 cleans in
    between."""
    token = shared_text(directory / "token", new_token() if rank == 0 else None)
    assert save_part(store_of(rank, 3, directory), 1, token) == ""
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        store = store_of(rank, 3, directory)
        store.save("update-2", part(rank, 3, 2), {"update": 2}, token=token)
        shared_text(directory / "cleaned")
        os.kill(os.getpid(), signal.SIGKILL)
    assert save_part(store_of(rank, 3, directory), 2, token) == ""
    shared_text(directory / "points" / f".update-2.group-{token}-1" / "shard-0.json")
    cleaned = clean_leftovers(directory / "points")
    shared_text(directory / "cleaned", "yes")
    return cleaned


def die_while_writing(rank: int, directory: Path) -> str:
    """Save twice together; the second time the system ends rank 1 in the middle of its file."""
    token = shared_text(directory / "token", new_token() if rank == 0 else None)
    assert save_part(store_of(rank, 2, directory), 1, token) == ""
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    sharded.PATIENCE_SECONDS = 0.5
    return save_part(store_of(rank, 2, directory), 2, token)


def fail_while_writing(rank: int, directory: Path) -> tuple[str, str]:
    """Save together with a rank that may not write so much, then again when it may; the errors that
    this rank gets."""
    token = shared_text(directory / "token", new_token() if rank == 0 else None)
    store = store_of(rank, 2, directory)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    first = save_part(store, 1, token)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    return first, save_part(store, 1, token)
