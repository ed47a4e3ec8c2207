"""A run with a `Profile` is the same run, and nothing of the profile stays behind."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from torch import nn

from loopwright import Callback, Trainer
from loopwright.callbacks import EMA, Profile, TrainTime

from ..loops import build_net

cross_entropy = nn.functional.cross_entropy
sgd = partial(torch.optim.SGD, lr=0.1)


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    return [
        value.clone() for model in trainer.models.values() for value in model.state_dict().values()
    ]


class TwoOptimizers(Trainer):
    def configure_optimizers(self):
        self.first = torch.optim.AdamW(self.model[0].parameters(), lr=0.01)
        self.second = torch.optim.SGD(self.model[4].parameters(), lr=0.1)

    def train_step(self, batch):
        x, y = batch
        loss = cross_entropy(self.model(x), y)
        self.update(loss, ["first", "second"])
        other = self.model(x).square().mean()
        self.update(other, "first")
        return {"loss": loss, "other": other}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (Trainer, {"accumulate": 2, "clip_norm": 0.1}),
        (Trainer, {"precision": "bf16"}),
        (Trainer, {"callbacks": [EMA(0.9), TrainTime()]}),
        (TwoOptimizers, {}),
    ],
    ids=["accumulated and clipped", "bf16", "averaged and timed", "two optimizers"],
)
def test_results_are_the_same_to_the_last_bit(points, kind, options):
    def train(*callbacks):
        more = {"optimizer": sgd} if kind is Trainer else {}
        given = [*options.get("callbacks", ()), *callbacks]
        trainer = kind(
            build_net(),
            loss_fn=cross_entropy,
            **{**options, **more, "callbacks": given},
            progress="silent",
        )
        return trainer, trainer.train(points, 3, points, batch_size=8)

    (plain, history), (timed, with_profile) = train(), train(Profile(warmup=1))
    assert all(torch.equal(a, b) for a, b in zip(weights_of(plain), weights_of(timed), strict=True))
    assert list(history.steps["loss"]) == list(with_profile.steps["loss"])
    assert history["eval_loss"] == with_profile["eval_loss"]


def traces(trainer: Trainer) -> dict[str, object]:
    """Everything that a profile puts something in the place of."""
    run = trainer.run
    owners = [
        trainer,
        run,
        trainer.runtime,
        *run.updates.every(),
        *filter(None, (run.data.train_stream, run.data.eval_stream)),
    ]
    hooks = {name: list(found) for name, found in run.hooks.items()}
    optimizers = [
        len(o._optimizer_step_pre_hooks) + len(o._optimizer_step_post_hooks)
        for o in trainer.optimizers.values()
    ]
    modules = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in trainer.modules.values()]
    return {
        "methods": [
            sorted(name for name, value in vars(owner).items() if callable(value))
            for owner in owners
        ],
        "hooks": [len(found) for found in hooks.values()],
        "timed": [hook for found in hooks.values() for hook in found if hasattr(hook, "untimed")],
        "torch": (torch.autograd.backward, optimizers, modules),
        "joint": len(run.updates.on_joint),
    }


class Failing(Callback):
    def __init__(self, event: str):
        self.event = event

    def fail(self, event: str):
        if event == self.event:
            raise RuntimeError("as asked")

    def on_train_start(self, trainer):
        self.fail("on_train_start")

    def on_train_step_end(self, trainer, batch, result):
        self.fail("on_train_step_end")

    def on_optimizer_start(self, trainer, optimizer):
        self.fail("on_optimizer_start")

    def on_eval_step_end(self, trainer, batch, result):
        self.fail("on_eval_step_end")

    def on_train_end(self, trainer):
        self.fail("on_train_end")


@pytest.mark.parametrize(
    "event",
    [
        "none",
        "on_train_start",
        "on_train_step_end",
        "on_optimizer_start",
        "on_eval_step_end",
        "on_train_end",
    ],
)
def test_nothing_stays_wrapped_after_a_run_or_an_exception_in_it(points, event):
    def train(*callbacks):
        trainer = Trainer(
            build_net(),
            sgd,
            cross_entropy,
            callbacks=[*callbacks, Failing(event)],
            progress="silent",
        )
        fails = nullcontext() if event == "none" else pytest.raises(RuntimeError, match="as asked")
        with fails:
            trainer.train(points, 1, points)
        return traces(trainer)

    plain, timed = train(), train(Profile(warmup=0))
    for found in (plain, timed):
        found["hooks"] = None  # the one more callback has hooks of its own
    assert timed == plain
    assert timed["timed"] == []


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize("how", ["in place", "wrapped"])
def test_a_compiled_model_is_compiled_once_and_its_time_is_forward(points, how):
    import torch._dynamo

    def train(*callbacks):
        torch._dynamo.reset()
        graphs = []

        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward

        torch.manual_seed(0)
        net = Doubled(6, 3)
        if how == "in place":
            net.compile(backend=backend)
        model = net if how == "in place" else torch.compile(net, backend=backend)
        Trainer(model, sgd, cross_entropy, callbacks=callbacks, progress="silent").train(
            points, batch_size=37
        )
        return len(graphs), net.weight

    profile = Profile(warmup=0)
    (graphs, weight), (timed_graphs, timed_weight) = train(), train(profile)
    assert (graphs, timed_graphs) == (1, 1)
    assert torch.equal(weight, timed_weight)
    assert profile.report.parts["forward"] > profile.report.parts.get("train_step", 0)
