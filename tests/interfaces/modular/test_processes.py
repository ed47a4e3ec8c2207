"""The interface on two processes: DDP and FSDP by the config alone, with the weights and metrics of
one process."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed.fsdp
import torch.distributed.tensor
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from loopwright import Mesh
from loopwright.errors import ConfigurationError
from loopwright.runtime import watchdog

from ...distributed.ranks import RESOLVER, run_ranks
from ...distributed.scenarios import assert_same, weights_of
from .programs import Config, KillAt, Killed, MyTrainer, OwnFiles, OwnLoop, build_data
from .test_gradients import Freezing, Naming, Pair, Stepping

OPTIONS: dict[str, Any] = {
    "n_epochs": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clip_val": 0.3,
}


def build_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3)).double()


def doubled(data: TensorDataset) -> TensorDataset:
    return TensorDataset(data.tensors[0].double(), data.tensors[1])


def loaders(trainer: Any) -> tuple[Any, Any]:
    """Also a validation set that does not divide evenly, with parts of its last batch for one
    process only."""
    return (
        DataLoader(doubled(build_data()), batch_size=8, shuffle=True),
        DataLoader(doubled(build_data(17)), batch_size=8),
    )


class Double(MyTrainer):
    configure_dataloaders = loaders


class DoubleOwnLoop(OwnLoop):
    configure_dataloaders = loaders


class Wrapping(Double):
    """Wraps its model itself, twice."""

    def configure_models(self) -> None:
        self.model = self.wrap_model(self.wrap_model(self.model.to(self.device)))


def fit(kind: type[Any], **options: Any) -> dict[str, Any]:
    trainer = kind(
        Config(**(OPTIONS | options)), *([build_model()] if issubclass(kind, MyTrainer) else [])
    )
    history = trainer.fit()
    models = [
        module
        for name, module in vars(trainer).items()
        if isinstance(module, nn.Module) and name != "criterion"
    ]
    return {
        "weights": weights_of(*models),
        "history": history.to_dict(),
        "steps": list(history.steps.get("loss", ())),
    }


class DoublePair(Pair):
    def configure_models(self) -> None:
        super().configure_models()
        self.generator.double()
        self.discriminator.double()

    def configure_dataloaders(self) -> Any:
        return loaders(self)[0], None

    def fake(self, real: Any) -> Any:
        """Made from the real ones: processes draw different random numbers."""
        return self.generator(real[:, :2])


class DoubleStepping(DoublePair, Stepping):
    pass


class DoubleNaming(DoublePair, Naming):
    pass


class DoubleFreezing(DoublePair, Freezing):
    pass


class DoubleJoint(DoublePair):
    """One loss for both optimizers, which are stepped at the end of the window."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        fake = self.fake(batch[0])
        self.backward(self.d_loss(batch[0], fake) + self.g_loss(fake))


RUNS: dict[str, Any] = {
    "usual": lambda **o: fit(Double, **o),
    "own loop": lambda **o: fit(DoubleOwnLoop, **o),
    "wrapping": lambda **o: fit(Wrapping, **o),
    "gan by step": lambda **o: fit(DoubleStepping, **(o | {"gradient_accumulation_steps": 1})),
    "gan by name": lambda **o: fit(DoubleNaming, **o),
    "one loss": lambda **o: fit(DoubleJoint, **o),
    "gan by freezing": lambda **o: fit(DoubleFreezing, **(o | {"gradient_accumulation_steps": 1})),
}


def all_runs(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    return {name: run(**options) for name, run in RUNS.items()}


@cache
def alone_runs() -> dict[str, Any]:
    return all_runs(0, {})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"strategy": "fsdp"},
        pytest.param({"strategy": Mesh(replicate=1, shard=2)}, marks=pytest.mark.long),
    ],
    ids=["ddp", "fsdp", "mesh"],
)
def test_two_processes_give_the_weights_and_metrics_of_one(options: dict[str, Any]) -> None:
    alone = alone_runs()
    for ours in run_ranks(all_runs, 2, options):
        assert_same(ours, alone)


def dropping(rank: int) -> str:
    watchdog.GRACE_SECONDS = 60.0  # both raise, one maybe long after the other
    with pytest.raises(ConfigurationError) as caught:
        fit(DoubleStepping, strategy="fsdp")
    return str(caught.value)


def test_a_sharded_model_with_accumulation_has_to_be_told_whose_gradients_are_whose() -> None:
    for said in run_ranks(dropping, 2):
        assert "self.backward(loss, self.g_optimizer)" in said


class Sampled(Double):
    """The document's distributed loaders; notes which samples it saw."""

    def __init__(self, config: Any, model: nn.Module) -> None:
        super().__init__(config, model)
        self.seen: list[float] = []

    def configure_dataloaders(self) -> Any:
        train, val = doubled(build_data(24)), doubled(build_data(17))
        where = {"num_replicas": self.world_size, "rank": self.global_rank}
        return (
            DataLoader(train, batch_size=4, sampler=DistributedSampler(train, **where)),
            DataLoader(val, batch_size=4, sampler=DistributedSampler(val, shuffle=False, **where)),
        )

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.seen += batch[0][:, 0].tolist()
        return super().training_step(batch, batch_idx)


def sampled(rank: int) -> tuple[list[float], dict[str, Any], float]:
    trainer = Sampled(Config(n_epochs=1), build_model())
    history = trainer.fit()
    inputs, targets = doubled(build_data(17)).tensors
    with torch.no_grad():
        loss = nn.functional.cross_entropy(trainer.model(inputs), targets).item()
    return trainer.seen, history.to_dict(), loss


def test_a_distributed_sampler_is_not_applied_twice_and_validation_counts_every_sample_once() -> (
    None
):
    ended = run_ranks(sampled, 2)
    for rank, (seen, history, loss) in enumerate(ended):
        sampler = DistributedSampler(build_data(24), num_replicas=2, rank=rank)
        assert seen == doubled(build_data(24)).tensors[0][list(sampler), 0].tolist()
        # neither padded nor divided by the ranks
        assert history["val_loss"] == [pytest.approx(loss, rel=1e-12)]


def saved(rank: int, folder: Path, strategy: str) -> list[Any]:
    """The document's own files, the trainer's, and both at once, each loaded right after it was
    saved."""

    class Both(Double):
        def save_checkpoint(self, path: Any) -> None:
            super().save_checkpoint(path)
            torch.save({"rank": self.global_rank}, f"{path}.extra")

    class Own(OwnFiles):
        configure_dataloaders = loaders

    found = []
    for kind in (Own, Double, Both):
        trainer = kind(Config(strategy=strategy, n_epochs=1), build_model())
        trainer.fit()
        trainer.save_checkpoint(folder / kind.__name__)
        other = kind(Config(strategy=strategy, n_epochs=2), build_model())
        other.load_checkpoint(folder / kind.__name__)
        assert other.current_epoch == 1
        found.append((weights_of(trainer.model), weights_of(other.model)))
        other.fit()
    return found


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_checkpoints_are_written_by_all_processes_and_loaded_at_once(
    tmp_path: Path, strategy: str
) -> None:
    for found in run_ranks(saved, 2, tmp_path, strategy):
        for written, read in found:
            assert all(
                torch.equal(ours, theirs) for ours, theirs in zip(written, read, strict=True)
            )
    names = {path.name for path in tmp_path.iterdir()}
    assert "Own" in names if strategy == "ddp" else {"Own.rank0", "Own.rank1"} <= names


def resumed(rank: int, folder: Path, strategy: str) -> tuple[dict[str, Any], dict[str, Any]]:
    options: dict[str, Any] = {"strategy": strategy, "checkpoint_every_n_steps": 1}
    whole = fit(DoubleOwnLoop, **options)
    with pytest.raises(Killed):
        fit(DoubleOwnLoop, run_dir=folder / "run", callbacks=[KillAt(4)], **options)
    return whole, fit(DoubleOwnLoop, run_dir=folder / "run", **options)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_killed_run_is_resumed_exactly_by_all_processes(tmp_path: Path, strategy: str) -> None:
    for whole, again in run_ranks(resumed, 2, tmp_path, strategy):
        assert again["history"] == whole["history"]
        assert all(
            torch.equal(ours, theirs)
            for ours, theirs in zip(again["weights"], whole["weights"], strict=True)
        )


PROGRAM = """
import sys
import torch
from pathlib import Path
from tests.interfaces.modular.programs import Config, MyTrainer, OwnFiles, OwnLoop
from tests.interfaces.modular.test_document import Gan

class All(OwnLoop, OwnFiles):
    pass

folder = Path(sys.argv[1])
model = torch.nn.Linear(6, 3)
trainer = All(Config(n_epochs=2, gradient_clip_val=1.0), model)
trainer.fit()
trainer.save_checkpoint(folder / "own.pt")
again = All(Config(n_epochs=3), torch.nn.Linear(6, 3))
again.load_checkpoint(folder / "own.pt")
assert again.current_epoch == 2 and torch.equal(again.model.weight, trainer.model.weight)
gan = Gan(Config())
gan.fit()
assert (gan.is_distributed, gan.world_size) == (True, 2)
found = [trainer.history.to_dict(), trainer.model.weight, gan.generator.weight]
torch.save(found, folder / f"{trainer.global_rank}.pt")
"""


def test_the_documents_programs_run_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    root = Path(__file__).parent.parent.parent.parent
    environment = os.environ | RESOLVER | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [*command, str(tmp_path / "program.py"), str(tmp_path)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    assert torch.equal(first[2], second[2])
