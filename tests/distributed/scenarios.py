"""Small training runs with the same result on one process and on several: each takes a runtime,
returns numbers."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch._dynamo  # what torch imports late: once here, not in every process that is forked
import torch.distributed.fsdp
import torch.distributed.tensor
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from loopwright import DistributedRuntime, NonFiniteLossError, Schedule, StepResult, Trainer
from loopwright.callbacks import Freeze, NonFiniteGuard

Scenario = Callable[[Any], dict[str, Any]]

SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def run_all(rank: int, runtime: Any, names: list[str]) -> dict[str, Any]:
    """What each scenario gives, or the error that it raised, which is then the same on all
    ranks."""
    results: dict[str, Any] = {}
    for name in names:
        try:
            results[name] = SCENARIOS[name](runtime)
        except Exception:
            results[name] = traceback.format_exc()
    return results


def assert_same(ours: Any, theirs: Any, place: str = "") -> None:
    """Nested numbers and tensors that are equal but for the order of additions; "rounded" ones only
    nearly."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict), ours
        assert list(ours) == list(theirs), place
        for name, value in theirs.items():
            assert_same(ours[name], value, f"{place}/{name}")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), place
        for at, value in enumerate(theirs):
            assert_same(ours[at], value, f"{place}/{at}")
    elif isinstance(theirs, Tensor | float):
        tolerance = {"rtol": 1e-9, "atol": 1e-11}
        if "single precision" in place:
            tolerance = {"rtol": 1e-5, "atol": 1e-6}
        if "rounded" in place:
            tolerance = {"rtol": 0.1, "atol": 0.02}
        explain = f"{place}: {ours} instead of {theirs}"
        torch.testing.assert_close(ours, theirs, equal_nan=True, msg=explain, **tolerance)
    else:
        assert ours == theirs, place


def build_model(width: int = 9) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 2)).double()


def build_data(n: int = 37) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(x, x[:, :2].sin() + x[:, 2:4])


def whole(tensor: Any) -> Tensor:
    """A copy of the full tensor, which may be sharded."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def weights_of(*modules: nn.Module) -> list[Tensor]:
    return [whole(value) for module in modules for value in module.state_dict().values()]


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=0.1)


def fit(
    runtime: Any,
    model: nn.Module | None = None,
    *,
    data: Any = None,
    batch_size: int | None = 8,
    **options: Any,
):
    """Train for two epochs; the trainer, and the numbers that have to be the same."""
    model = model or build_model()
    kind = options.pop("kind", Trainer)
    limits = {
        name: options.pop(name)
        for name in ("num_epochs", "num_updates", "num_samples")
        if name in options
    }
    trainer = kind(model, adam(model), nn.MSELoss(), runtime=runtime, progress="silent", **options)
    history = trainer.train(
        build_data() if data is None else data,
        **(limits or {"num_epochs": 2}),
        eval_data=build_data(13),
        batch_size=batch_size,
    )
    return trainer, {
        "weights": weights_of(model),
        "epochs": history.epochs,
        "steps": list(history.steps["loss"]),
        "update": trainer.progress.update,
        "sample": trainer.progress.sample,
    }


@scenario
def supervised(runtime: Any) -> dict[str, Any]:
    return fit(runtime)[1]


@scenario
def accumulated_with_a_short_last_window(runtime: Any) -> dict[str, Any]:
    return fit(runtime, accumulate=2)[1]


@scenario
def clipped_by_the_global_norm(runtime: Any) -> dict[str, Any]:
    norms: list[Tensor] = []

    class Noting(Trainer):
        def on_update_end(self) -> None:
            norms.append(self.run.updates.by_name["optimizer"].norm.clone())

    return fit(runtime, clip_norm=0.1, accumulate=3, kind=Noting)[1] | {"norms": norms}


@scenario
def last_batch_smaller_than_the_number_of_processes(runtime: Any) -> dict[str, Any]:
    return fit(runtime, data=build_data(33))[1]


@scenario
def fewer_samples_than_processes(runtime: Any) -> dict[str, Any]:
    return fit(runtime, data=build_data(1), num_updates=3)[1]


class Ragged(Trainer):
    """A loss over tokens, of which samples have different numbers: a sum and a count."""

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        kept = targets > -0.5
        return ((outputs - targets) ** 2)[kept].sum(), kept.sum()


@scenario
def ragged_token_counts_accumulated(runtime: Any) -> dict[str, Any]:
    return fit(runtime, kind=Ragged, accumulate=3, clip_norm=0.5, data=build_data(33))[1]


class Branches(nn.Module):
    """One linear layer for samples of one kind, one for the other, and one for none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.never = (nn.Linear(6, 2).double() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        kind = x[:, :1] > 0
        out = x[:, :2] * 0.0
        if kind.any():
            out = out + torch.where(kind, self.first(x), 0.0)
        if not kind.all():
            out = out + torch.where(kind, 0.0, self.second(x))
        return out


@scenario
def parameters_used_on_some_processes_or_nowhere(runtime: Any) -> dict[str, Any]:
    x, y = build_data(24).tensors
    order = torch.argsort(x[:, 0]).tolist()
    batches = [order[at::6] for at in range(6)]
    loader = torch.utils.data.DataLoader(TensorDataset(x, y), batch_sampler=batches)
    if runtime == "fsdp":
        runtime = DistributedRuntime("fsdp", find_unused_parameters=True)
    return fit(runtime, Branches(), data=loader, batch_size=None, accumulate=2)[1]


@scenario
def layers_frozen_for_an_epoch(runtime: Any) -> dict[str, Any]:
    return fit(runtime, callbacks=[Freeze("0", until_epoch=1)], num_epochs=3)[1]


@scenario
def scheduled_every_update(runtime: Any) -> dict[str, Any]:
    factory = lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)  # noqa: E731
    trainer, result = fit(runtime, scheduler=Schedule(factory, every="update"), accumulate=2)
    return result | {
        "rate": [group["lr"] for group in trainer.optimizers["optimizer"].param_groups]
    }


@scenario
def limited_by_samples(runtime: Any) -> dict[str, Any]:
    return fit(runtime, num_samples=45, accumulate=2)[1]


@scenario
def bf16(runtime: Any) -> dict[str, Any]:
    """Autocast rounds each process's part alike, so only the sums of gradients may differ."""
    model = build_model().float()
    data = TensorDataset(*(tensor.float() for tensor in build_data(16).tensors))
    trainer = Trainer(
        model,
        torch.optim.SGD(model.parameters(), 0.1),
        nn.MSELoss(),
        runtime=runtime,
        precision="bf16",
        progress="silent",
    )
    trainer.train(data, num_updates=4, batch_size=8)
    return {"rounded": weights_of(model)}


def fit_together(
    runtime: Any, data: Any = None, kind: type[Trainer] = Trainer, **options: Any
) -> dict[str, Any]:
    """One model, one loss, and an optimizer for each of its layers."""
    model = build_model()
    optimizers = {
        "last": torch.optim.Adam(model[2].parameters(), lr=0.01),
        "first": torch.optim.SGD(model[0].parameters(), 0.1, momentum=0.9),
    }
    trainer = kind(model, optimizers, nn.MSELoss(), runtime=runtime, progress="silent", **options)
    trainer.train(build_data() if data is None else data, num_epochs=2, batch_size=8)
    updates = {name: update.num_updates for name, update in trainer.run.updates.by_name.items()}
    return {
        "weights": weights_of(model),
        "updates": updates,
        "grads": [p.grad is None for p in model.parameters()],
    }


@scenario
def several_optimizers_together(runtime: Any) -> dict[str, Any]:
    return fit_together(runtime, accumulate=2, clip_norm=0.1)


@scenario
def several_optimizers_together_for_counted_sums(runtime: Any) -> dict[str, Any]:
    class Counted(Trainer):
        def train_step(self, batch: list[Tensor]) -> None:
            weights = (batch[0][:, 0] > 0).double()
            losses = ((self.model(batch[0]) - batch[1]) ** 2).mean(1) * weights
            self.update(losses.sum(), ["first", "last"], count=weights.sum())

    return fit_together(runtime, kind=Counted, accumulate=2)


@scenario
def several_optimizers_skip_a_bad_sample_together(runtime: Any) -> dict[str, Any]:
    guard = NonFiniteGuard("skip")
    return fit_together(runtime, poisoned(), callbacks=[guard]) | {"skipped": guard.num_skipped}


class Gan(Trainer):
    """Two networks, two optimizers, two updates a step."""

    def configure_models(self) -> None:
        torch.manual_seed(11)
        self.generator = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6)).double()
        self.critic = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1)).double()

    def configure_optimizers(self) -> None:
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=0.01)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.1)

    def train_step(self, batch: list[Tensor]) -> StepResult:
        real = batch[0]
        fake = self.generator(real[:, :3])
        critic_loss = self.critic(fake.detach()).mean() - self.critic(real).mean()
        self.update(critic_loss, self.critic_optimizer)
        generator_loss = -self.critic(fake).mean()
        self.update(generator_loss, self.generator_optimizer)
        return StepResult(metrics={"critic": critic_loss, "generator": generator_loss})


@scenario
def gan(runtime: Any) -> dict[str, Any]:
    trainer = Gan(runtime=runtime, progress="silent", accumulate=2, clip_norm=0.3)
    history = trainer.train(build_data(), num_epochs=2, batch_size=8)
    return {
        "weights": weights_of(trainer.generator, trainer.critic),
        "grads": [param.grad is None for param in trainer.parameters()],
        "steps": [list(history.steps[name]) for name in ("critic", "generator")],
    }


def poisoned(n: int = 37, at: int = 5) -> TensorDataset:
    x, y = build_data(n).tensors
    return TensorDataset(x, y.index_fill(0, torch.tensor([at]), float("nan")))


@scenario
def bad_sample_skipped(runtime: Any) -> dict[str, Any]:
    guard = NonFiniteGuard("skip")
    trainer, result = fit(runtime, data=poisoned(), callbacks=[guard], accumulate=2)
    # the others' parts of that batch are numbers
    result["steps"] = [value == value for value in result["steps"]]
    result["epochs"] = [row["eval_loss"] for row in result["epochs"]]
    return result | {
        "skipped": guard.num_skipped,
        "own": trainer.run.updates.by_name["optimizer"].num_updates,
    }


@scenario
def bad_sample_raises(runtime: Any) -> dict[str, Any]:
    try:
        fit(runtime, data=poisoned())
    except NonFiniteLossError as error:
        return {"update": str(error).partition(" in update ")[2][:10]}
    return {"update": "it raised nothing"}


class NaNBehind(torch.autograd.Function):
    """The identity, with gradients that are NaN for some rows."""

    @staticmethod
    def forward(ctx: Any, outputs: Tensor, is_bad: Tensor) -> Tensor:
        ctx.save_for_backward(is_bad)
        return outputs.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.masked_fill(ctx.saved_tensors[0], float("nan")), None


class OneBadGradient(Trainer):
    """The gradient of one sample is NaN, its loss is not; on several processes, one of them has
    that sample."""

    def compute_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        is_bad = (targets - self.bad).abs().sum(1, keepdim=True) < 1e-12
        return (NaNBehind.apply(outputs, is_bad) - targets).square().mean()


def fit_bad_gradient(runtime: Any, **options: Any) -> OneBadGradient:
    model = build_model()
    trainer = OneBadGradient(
        model, torch.optim.SGD(model.parameters(), 0.1), runtime=runtime, **options
    )
    trainer.bad = build_data().tensors[1][5]
    return trainer


@scenario
def bad_gradient_raises(runtime: Any) -> dict[str, Any]:
    trainer = fit_bad_gradient(runtime, progress="silent")
    try:
        trainer.train(build_data(), num_epochs=1, batch_size=8)
    except NonFiniteLossError as error:
        return {
            "update": str(error).partition(" in update ")[2][:10],
            "weights": weights_of(trainer.model),
        }
    return {"update": "it raised nothing"}


@scenario
def bad_gradient_skipped(runtime: Any) -> dict[str, Any]:
    trainer = fit_bad_gradient(runtime, progress="silent", callbacks=[NonFiniteGuard("skip")])
    history = trainer.train(build_data(), num_epochs=2, batch_size=8)
    return {"skipped": history["skipped_updates"], "weights": weights_of(trainer.model)}
