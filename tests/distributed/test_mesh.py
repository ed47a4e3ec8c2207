"""Meshes of replicas, shards and tensor-parallel layers train as one process does, and share their
checkpoints."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

from loopwright import ConfigurationError, Mesh, Trainer
from loopwright.callbacks import EMA
from tests.distributed.ranks import RunRanks, run_ranks
from tests.distributed.scenarios import assert_same, build_data, weights_of, whole
from tests.mistakes import raises

PLAN = {"blocks.*.up": ColwiseParallel(), "blocks.*.down": RowwiseParallel()}
MESHES = {
    "replicate x shard": Mesh(replicate=2, shard=2),
    "shard x tensor": Mesh(shard=2, tensor=2, plan=PLAN),
    "replicate x tensor": Mesh(replicate=2, tensor=2, plan=PLAN),
    "tensor": Mesh(tensor=2, plan=PLAN),
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6)
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 6)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Net(nn.Module):
    """Two blocks whose layers can be cut, and a head that no plan names; dropout is the same for
    parts of a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build() -> Net:
    torch.manual_seed(6)
    return Net().double()


def build_trainer(runtime: Any, **options: Any) -> tuple[Trainer, EMA]:
    model, ema = build(), EMA(0.9)
    trainer = Trainer(
        model,
        lambda params: torch.optim.AdamW(params, lr=1e-2),
        nn.MSELoss(),
        runtime=runtime,
        callbacks=[ema],
        clip_norm=0.5,
        accumulate=2,
        progress="silent",
        **options,
    )
    return trainer, ema


def results_of(trainer: Trainer, ema: EMA, history: Any) -> dict[str, Any]:
    return {
        "weights": weights_of(trainer.model),
        "names": list(trainer.model.state_dict()),
        "ema": [whole(value) for value in ema.state["model"].values()],
        "epochs": history.epochs,
        "predicted": whole(trainer.predict(build_data(5), batch_size=4)),
    }


def train(rank: int, names: list[str], folder: Path | None) -> dict[str, Any]:
    """Train on every mesh, in two calls with a checkpoint between; or, without a folder, on one
    process in one call."""
    results: dict[str, Any] = {}
    for name in names:
        trainer, ema = build_trainer("cpu" if folder is None else MESHES[name])
        try:
            history = trainer.train(
                build_data(21), num_epochs=2, eval_data=build_data(5), batch_size=8
            )
            if folder is not None:
                trainer.save(folder / name)
                trainer.export(folder / f"{name}.safetensors")
                trainer, ema = build_trainer(MESHES[name])
                trainer.load(folder / name)
            history = trainer.train(
                build_data(21), num_epochs=1, eval_data=build_data(5), batch_size=8
            )
            results[name] = results_of(trainer, ema, history)
        except Exception:
            results[name] = traceback.format_exc()
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("meshes")


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return train(0, ["one"], None)["one"]


@pytest.fixture(scope="module")
def together(shared: RunRanks, folder: Path) -> list[dict[str, Any]]:
    sizes = {name: mesh.size for name, mesh in MESHES.items()}
    four = shared(train, 4, [name for name in MESHES if sizes[name] == 4], folder)
    two = shared(train, 2, [name for name in MESHES if sizes[name] == 2], folder)
    return [ours | (two[rank] if rank < 2 else two[0]) for rank, ours in enumerate(four)]


@pytest.mark.parametrize("name", MESHES)
def test_a_mesh_trains_saves_and_goes_on_as_one_process(
    name: str, alone: dict[str, Any], together: list[dict[str, Any]]
) -> None:
    assert isinstance(alone, dict), alone
    for results in together:
        assert_same(results[name], alone)


@pytest.mark.parametrize("name", MESHES)
def test_one_process_goes_on_from_the_checkpoint_of_a_mesh(
    name: str, alone: dict[str, Any], together: list[dict[str, Any]], folder: Path
) -> None:
    trainer, ema = build_trainer("cpu")
    trainer.load(folder / name)
    history = trainer.train(build_data(21), num_epochs=1, eval_data=build_data(5), batch_size=8)
    assert_same(results_of(trainer, ema, history), alone)


@pytest.mark.parametrize("name", MESHES)
def test_exported_weights_are_whole_and_have_the_models_own_names(
    name: str, together: list[dict[str, Any]], folder: Path
) -> None:
    from safetensors.torch import load_file

    exported = load_file(folder / f"{name}.safetensors")
    trainer, _ = build_trainer("cpu")
    trainer.load(folder / name)
    assert exported.keys() == trainer.model.state_dict().keys()
    assert all(
        torch.equal(value, exported[key]) for key, value in trainer.model.state_dict().items()
    )


def drop(rank: int) -> list[Tensor]:
    model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 2)).double()
    masks: list[Tensor] = []
    model[1].register_forward_hook(lambda module, args, output: masks.append(output == 0))
    mesh = Mesh(replicate=2, tensor=2, plan={"2": ColwiseParallel(output_layouts=Replicate())})
    trainer = Trainer(model, torch.optim.Adam, nn.MSELoss(), runtime=mesh, progress="silent")
    trainer.train(build_data(32), num_updates=2, batch_size=16)
    return masks


def test_processes_with_parts_of_a_layer_drop_the_same_values() -> None:
    first, second, third, _ = run_ranks(drop, 4)
    assert all(map(torch.equal, first, second))
    assert not torch.equal(first[0], third[0])


@pytest.mark.parametrize(
    ("sizes", "code", "said"),
    [
        ({"shard": 0}, "number", "Mesh(shard=0)"),
        ({"tensor": 2}, "mesh-plan", "Mesh(tensor=2)"),
        ({"shard": 2, "plan": PLAN}, "mesh-plan", "tensor=1"),
    ],
)
def test_a_mesh_that_makes_no_sense_is_refused(sizes: dict[str, Any], code: str, said: str) -> None:
    with raises(code, said):
        Mesh(**sizes)


def test_a_mesh_of_several_is_refused_where_there_is_one_process() -> None:
    with raises("mesh-size", "for 4 processes"):
        Trainer(build(), torch.optim.Adam, nn.MSELoss(), runtime=Mesh(shard=4))


def name_no_layer(rank: int) -> str:
    mesh = Mesh(tensor=2, plan={"blocks.0.upp": ColwiseParallel()})
    trainer = Trainer(build(), torch.optim.Adam, nn.MSELoss(), runtime=mesh)
    with pytest.raises(ConfigurationError) as raised:
        trainer.setup()
    return str(raised.value)


def test_a_plan_for_a_layer_that_is_not_there_is_refused(shared: RunRanks) -> None:
    message = shared(name_no_layer, 2)[0]
    assert "names blocks.0.upp, which the model does not have: did you mean blocks.0.up" in message
