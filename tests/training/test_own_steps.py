"""A plain `loss.backward(); optimizer.step()` in a step is an update: as the loop that one writes by
hand, bit for bit; and refused where it cannot be right."""

from __future__ import annotations

import signal
from functools import partial
from math import nan
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.optim import LBFGS, SGD, Adam
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR
from torch.utils.data import TensorDataset

from loopwright import Callback, NonFiniteLossError
from loopwright.callbacks import NonFiniteGuard
from loopwright.data.sharding import Shard
from tests.distributed.ranks import SharedRanks
from tests.distributed.scenarios import assert_same
from tests.loops import (
    assert_same_model,
    assert_same_optimizer,
    batches,
    build_linear,
    build_net,
    train_by_hand,
)
from tests.mistakes import raises
from tests.training.own_steps import Own, cross_entropy, own, sgd

CLIP = 0.3
rate = partial(OneCycleLR, max_lr=0.5, total_steps=10)


class ZeroFirst(Own):
    def train_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss


class ZeroLast(Own):
    def train_step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss


class NeverZeroed(Own):
    def train_step(self, batch):
        loss = self.loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss


class Closure(Own):
    def train_step(self, batch):
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            return loss

        return self.optimizer.step(closure)


class ClosureByName(Closure):
    def train_step(self, batch):
        step = self.optimizer.step
        self.optimizer.step = lambda closure: step(closure=closure)
        try:
            return super().train_step(batch)
        finally:
            del self.optimizer.step


class Clipping(Own):
    def train_step(self, batch):
        self.optimizer.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss


PLAIN = [ZeroFirst, ZeroLast, NeverZeroed, Closure]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("clipping", [{}, {"clip_norm": CLIP}, {"clip_value": 0.02}], ids=str)
def test_a_plain_step_is_an_update_clipped_counted_and_scheduled(points, kind, clipping):
    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    trainer = own(kind, ours, scheduler=rate, **clipping)
    trainer.train(points, 2, batch_size=8)
    train_by_hand(theirs, other, points, epochs=2, every_update=rate(other), **clipping)
    assert_same_model(ours, theirs)
    assert_same_optimizer(trainer.optimizers["optimizer"], other)
    assert trainer.run.updates.by_name["optimizer"].num_updates == trainer.progress.update == 10


@pytest.mark.parametrize("options", [{}, {"clip_norm": CLIP}, {"clip_norm": 10.0}], ids=str)
def test_gradients_that_the_user_clips_are_not_clipped_again(points, options):
    ours, theirs = build_net(), build_net()
    own(Clipping, ours, **options).train(points, 2, batch_size=8)
    train_by_hand(theirs, sgd(theirs.parameters()), points, epochs=2, clip_norm=CLIP)
    assert_same_model(ours, theirs)


def test_a_plain_step_emits_the_event_of_an_update(points):
    class Norms(Callback):
        seen: list[float]

        def on_optimizer_start(self, trainer, name):
            self.seen.append(trainer.model.weight.grad.norm().item())

    norms = Norms()
    norms.seen = []
    own(ZeroFirst, build_linear(), clip_norm=1e-3, callbacks=[norms]).train(points, 1, batch_size=8)
    assert len(norms.seen) == 5
    assert min(norms.seen) > 1e-3  # complete, and not clipped yet


# Schedulers


def with_scheduler(places: str) -> type[Own]:
    class Scheduling(Own):
        def train_step(self, batch):
            self.optimizer.zero_grad()
            loss = self.loss(batch)
            loss.backward()
            scheduler = self.schedules["scheduler"].scheduler
            for place in places:
                (scheduler if place == "s" else self.optimizer).step()
            return loss

    return Scheduling


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("places", ["os", "so"])
def test_a_scheduler_that_the_user_steps_is_not_stepped_again(points, places):
    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    trainer = own(with_scheduler(places), ours, scheduler=rate)
    trainer.train(points, 2, batch_size=8)
    if places == "os":
        train_by_hand(theirs, other, points, epochs=2, every_update=rate(other))
        assert_same_model(ours, theirs)
    assert trainer.schedules["scheduler"].scheduler.last_epoch == 10


def decay(optimizer: Any) -> ExponentialLR:
    return ExponentialLR(optimizer, 0.9)


class SignalAt(Callback):
    def on_update_end(self, trainer):
        if trainer.progress.update == 5:  # the last of the epoch, which is not over yet
            signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("is_resumed", [False, True])
def test_a_scheduler_of_epochs_that_the_user_steps_is_the_users(points, tmp_path, is_resumed):
    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    options = {"scheduler": decay, "run_dir": tmp_path / "run"}
    if is_resumed:
        with pytest.raises(SystemExit):
            own(with_scheduler("os"), callbacks=[SignalAt()], **options).train(
                points, 2, batch_size=8
            )
    trainer = own(with_scheduler("os"), ours, **options)
    trainer.train(points, 2, batch_size=8)
    train_by_hand(theirs, other, points, epochs=2, every_update=decay(other))
    assert_same_model(ours, theirs)
    assert trainer.schedules["scheduler"].scheduler.last_epoch == trainer.progress.update == 10


def test_a_scheduler_of_epochs_is_the_trainers_beside_plain_steps(points):
    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    own(ZeroFirst, ours, scheduler=decay).train(points, 3, batch_size=8)
    train_by_hand(theirs, other, points, epochs=3, every_epoch=decay(other))
    assert_same_model(ours, theirs)


@pytest.mark.parametrize("places", ["oo", "osos", "oos", "oso"])
def test_each_of_two_steps_is_followed_by_one_step_of_the_scheduler(points, places):
    """The last of them that the user leaves out is the trainer's."""
    trainer = own(with_scheduler(places), scheduler=partial(rate, total_steps=20))
    trainer.train(points, 1, batch_size=8)
    assert trainer.schedules["scheduler"].scheduler.last_epoch == 10
    assert trainer.run.updates.by_name["optimizer"].num_updates == 10


# Loss scaling


class Scaling(Own):
    """As the recipe of torch has it."""

    scaler: torch.amp.GradScaler
    clips = False

    def train_step(self, batch):
        self.optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = self.loss(batch)
        with torch.autocast("cpu", enabled=False):
            self.scaler.scale(loss).backward()
        if self.clips:
            self.scaler.unscale_(self.optimizer)
            clip_grad_norm_(self.model.parameters(), CLIP)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("clips", [False, True])
@pytest.mark.parametrize("is_fused", [False, True])
def test_a_loss_scaler_of_the_users_own_scales_and_leaves_out_steps(
    points, precision, clips, is_fused
):
    ours, theirs = build_net(), build_net()
    build = partial(Adam, lr=0.01, fused=is_fused)
    other = build(theirs.parameters())
    # so large that the first steps overflow
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**19) for _ in range(2)]
    trainer = Scaling(
        ours, build, progress="silent", precision=precision, clip_norm=None if clips else CLIP
    )
    trainer.scaler, trainer.clips = scalers[0], clips
    trainer.train(points, 2, batch_size=8)
    options = {"autocast": torch.float16, "scaler": scalers[1], "clip_norm": CLIP}
    train_by_hand(theirs, other, points, epochs=2, **options)
    assert_same_model(ours, theirs)
    assert scalers[0].get_scale() == scalers[1].get_scale()
    assert 0 < trainer.run.updates.by_name["optimizer"].num_updates < 10


def test_a_plain_step_of_unscaled_gradients_is_refused_with_fp16(points):
    with raises("step-without-scaling", "GradScaler", "self.update(loss)"):
        own(ZeroFirst, precision="fp16").train(points, 1, batch_size=8)


@pytest.mark.parametrize("is_caught", [False, True])
def test_autocast_is_as_before_after_a_step_that_raised(points, is_caught):
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise RuntimeError("no step")

    class Catching(ZeroFirst):
        def train_step(self, batch):
            try:
                super().train_step(batch)
            except RuntimeError:
                if not is_caught:
                    raise

    model = build_linear()
    optimizer = Failing(model.parameters(), lr=0.1)
    trainer = Catching(model, optimizer, progress="silent", precision="bf16")
    with pytest.raises(Exception, match="no optimizer was stepped" if is_caught else "no step"):
        trainer.train(points, 1, batch_size=8)
    assert not torch.is_autocast_enabled("cpu")
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    assert nesting == 1


def test_a_step_of_an_optimizers_subclass_is_one_step(points):
    class Mine(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)  # torch hooks into both classes
    model = build_net()
    trainer = ZeroFirst(
        model, Mine(model.parameters(), lr=0.1), progress="silent", precision="bf16"
    )
    trainer.train(points, 1, batch_size=8)
    assert trainer.run.updates.by_name["optimizer"].num_updates == 5
    nesting = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    assert nesting == 1


# Closures


@pytest.mark.parametrize("kind", [Closure, ClosureByName])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_lbfgs_is_that_of_the_loop_by_hand(points, kind, search):
    ours, theirs = build_linear(), build_linear()
    build = partial(LBFGS, lr=0.5, max_iter=4, line_search_fn=search)
    trainer = kind(ours, build, progress="silent")
    trainer.train(points, 2, batch_size=16)
    optimizer = build(theirs.parameters())
    for epoch in range(2):
        for inputs, targets in batches(points, 16, epoch):

            def closure(inputs=inputs, targets=targets) -> Tensor:
                optimizer.zero_grad()
                loss = cross_entropy(theirs(inputs), targets)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert_same_model(ours, theirs)
    assert trainer.run.updates.by_name["optimizer"].num_updates == trainer.progress.update == 6


def test_a_closure_in_bf16_is_computed_in_bf16_with_the_weights_of_the_moment(points):
    class Noting(Own):
        def train_step(self, batch):
            def closure() -> Tensor:
                self.optimizer.zero_grad()
                outputs = self.model(batch[0])
                assert outputs.dtype == torch.bfloat16
                losses.append(cross_entropy(outputs, batch[1]))
                losses[-1].backward()
                return losses[-1]

            losses: list[Tensor] = []
            self.optimizer.step(closure)
            assert len({loss.item() for loss in losses}) == len(losses) == 3

    build = partial(LBFGS, lr=1.0, max_iter=3)
    Noting(build_linear(), build, progress="silent", precision="bf16").train(
        points, 1, batch_size=16
    )


# Several optimizers


class Pair(Own):
    """A GAN: the generator's loss also reaches the discriminator."""

    d_by_update = g_by_update = False

    def train_step(self, batch):
        fake = self.g(batch[0])
        d_loss = self.d(fake.detach()).square().mean() - self.d(batch[0]).mean()
        if self.d_by_update:
            self.update(d_loss, "d_opt")
        else:
            self.d_opt.zero_grad()
            d_loss.backward()
            self.d_opt.step()
        g_loss = -self.d(fake).mean() + fake.square().mean()
        if self.g_by_update:
            self.update(g_loss, "g_opt")
        else:
            self.g_opt.zero_grad()
            g_loss.backward()
            self.g_opt.step()
        return {"d": d_loss, "g": g_loss}


class PairByUpdate(Pair):
    d_by_update = g_by_update = True


class HalfByUpdate(Pair):
    d_by_update = True


class OtherHalfByUpdate(Pair):
    g_by_update = True


def build_pair(dtype: torch.dtype = torch.float32) -> dict[str, nn.Module]:
    torch.manual_seed(3)
    d = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    return {"g": nn.Linear(6, 6).to(dtype), "d": d.to(dtype)}


def fit_pair(kind: type[Pair], points: TensorDataset, **options: Any) -> Pair:
    class Built(kind):
        def configure_optimizers(self):
            self.g_opt = Adam(self.g.parameters(), lr=0.01)
            self.d_opt = sgd(self.d.parameters())

    trainer = Built(build_pair(points.tensors[0].dtype), progress="silent", **options)
    trainer.train(points, 2, batch_size=8)
    return trainer


def pair_by_hand(points: TensorDataset, norm: float | None = None) -> dict[str, nn.Module]:
    nets = build_pair()
    g_opt, d_opt = Adam(nets["g"].parameters(), lr=0.01), sgd(nets["d"].parameters())
    for epoch in range(2):
        for inputs, _ in batches(points, 8, epoch):
            fake = nets["g"](inputs)
            d_opt.zero_grad()
            (nets["d"](fake.detach()).square().mean() - nets["d"](inputs).mean()).backward()
            if norm is not None:
                clip_grad_norm_(nets["d"].parameters(), norm)
            d_opt.step()
            g_opt.zero_grad()
            (-nets["d"](fake).mean() + fake.square().mean()).backward()
            if norm is not None:
                clip_grad_norm_(nets["g"].parameters(), norm)
            g_opt.step()
    return nets


@pytest.mark.parametrize("kind", [Pair, PairByUpdate, HalfByUpdate, OtherHalfByUpdate])
@pytest.mark.parametrize("norm", [None, 0.05])
def test_a_gan_is_that_of_the_loop_by_hand_whoever_steps(points, kind, norm):
    trainer = fit_pair(kind, points, clip_norm=norm)
    for name, net in pair_by_hand(points, norm).items():
        assert_same_model(trainer.models[name], net)
    assert [u.num_updates for u in trainer.run.updates.by_name.values()] == [10, 10]


def test_update_does_not_add_to_gradients_that_a_plain_step_of_another_optimizer_left(points):
    class Leaking(Pair):
        def train_step(self, batch):
            fake = self.g(batch[0])
            self.d(fake).mean().backward()  # not detached
            self.d_opt.step()
            self.update(self.g(batch[0]).square().mean(), "g_opt")

    class Noting(Leaking):
        def train_step(self, batch):
            before.append(self.g.weight.detach().clone())
            try:
                super().train_step(batch)
            finally:
                before.append(self.g.weight.detach().clone())

    before: list[Tensor] = []
    with raises("stray-gradients", "'g_opt'"):
        fit_pair(Noting, points)
    assert torch.equal(*before)  # refused before the update


# `update` and `step` of one optimizer


class StepAfterUpdate(Own):
    def train_step(self, batch):
        self.update(self.loss(batch))
        self.optimizer.step()


class UpdateAfterStep(ZeroFirst):
    def train_step(self, batch):
        super().train_step(batch)
        self.update(self.loss(batch))


@pytest.mark.parametrize("kind", [StepAfterUpdate, UpdateAfterStep])
def test_one_optimizer_is_stepped_in_one_way(points, kind):
    trainer = own(kind)
    with raises("step-and-update", "self.update(loss)", "'optimizer'"):
        trainer.train(points, 1, batch_size=8)
    assert trainer.run.updates.by_name["optimizer"].num_updates == 1  # refused before the second


def test_steps_may_take_turns_with_update(points):
    class Turns(Own):
        def train_step(self, batch):
            loss = self.loss(batch)
            if self.progress.step % 2:
                self.update(loss)
            else:
                loss.backward()
                self.optimizer.step()
            return loss

    ours, theirs = build_net(), build_net()
    other = sgd(theirs.parameters())
    own(Turns, ours, scheduler=rate).train(points, 2, batch_size=8)
    train_by_hand(theirs, other, points, epochs=2, every_update=rate(other))
    assert_same_model(ours, theirs)


# Values that are not finite


class Poisoned(Own):
    """The third batch has a gradient that is not finite."""

    def train_step(self, batch):
        loss = self.loss(batch) * (nan if self.progress.step == 2 else 1.0)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss


def test_a_plain_step_with_gradients_that_are_not_finite_is_not_taken(points):
    net = build_linear()
    with pytest.raises(NonFiniteLossError, match="gradient of 'weight'"):
        own(Poisoned, net).train(points, 1, batch_size=8)
    assert net.weight.isfinite().all()


def test_a_step_that_the_guard_skips_is_not_counted_and_not_scheduled(points):
    trainer = own(Poisoned, build_linear(), scheduler=rate, callbacks=[NonFiniteGuard("skip")])
    trainer.train(points, 1, batch_size=8)
    update = trainer.run.updates.by_name["optimizer"]
    assert (update.num_updates, update.epoch.stepped, update.epoch.skipped) == (4, 4, 1)
    assert trainer.schedules["scheduler"].scheduler.last_epoch == 4
    assert trainer.model.weight.isfinite().all()


# Where it cannot be right


def test_a_plain_step_in_an_accumulation_window_is_refused_before_it_is_taken(points):
    net = build_linear()
    before = net.weight.detach().clone()
    with raises("step-in-window", "accumulate", "2 batches", "self.update(loss)"):
        own(NeverZeroed, net, accumulate=2).train(points, 1, batch_size=8)
    assert torch.equal(before, net.weight)


def test_a_plain_step_on_a_micro_batch_is_refused(points):
    class TooLarge(NeverZeroed):
        def loss(self, batch):
            if len(batch[0]) > 4:
                raise torch.OutOfMemoryError
            return super().loss(batch)

    with raises("step-of-micro-batch", "memory ran out"):
        own(TooLarge).train(points, 1, batch_size=8)


class InEvaluation(ZeroFirst):
    def eval_step(self, batch):
        with torch.enable_grad():
            return self.train_step(batch)


@pytest.mark.parametrize("call", ["train", "evaluate"])
def test_a_plain_step_in_an_evaluation_is_refused(points, call):
    net = build_linear()
    trainer = own(InEvaluation, net)
    with raises("update-in-evaluation", "eval_step"):
        if call == "train":
            trainer.train(points, 1, points, batch_size=8)
        before = net.weight.detach().clone()
        trainer.evaluate(points, batch_size=8)
    if call == "evaluate":
        assert torch.equal(before, net.weight)


class EveryOther(Pair):
    """Steps the generator with the sum over two batches."""

    def train_step(self, batch):
        self.d(batch[0]).mean().backward()
        self.d_opt.step()
        (self.g(batch[0]).square().mean() / 2).backward()
        if self.progress.step % 2:
            self.g_opt.step()


def test_gradients_may_be_left_to_a_later_step_only_where_nothing_is_to_be_resumed(
    points, tmp_path
):
    fit_pair(EveryOther, points)
    with raises("gradients-of-earlier-steps", "'g_opt'", "accumulate"):
        fit_pair(EveryOther, points, run_dir=tmp_path / "run")


@pytest.mark.parametrize("set_to_none", [True, False])
def test_unused_gradients_of_an_earlier_step_are_no_obstacle(points, tmp_path, set_to_none):
    class Rarely(Pair):
        def train_step(self, batch):
            fake = self.g(batch[0])
            self.d_opt.zero_grad()
            self.d(fake).mean().backward()  # not detached, so that it reaches the generator
            self.d_opt.step()
            if self.progress.step % 2:
                self.g_opt.zero_grad(set_to_none)
                self.g(batch[0]).square().mean().backward()
                self.g_opt.step()

    fit_pair(Rarely, points, run_dir=tmp_path / "run")


def test_a_run_of_plain_steps_is_resumed_exactly(points, tmp_path: Path):
    whole = build_net()
    own(ZeroLast, whole, scheduler=rate).train(points, 2, batch_size=8)
    for max_time in (1e-9, None):  # the first call ends after one update
        trainer = own(ZeroLast, scheduler=rate, run_dir=tmp_path / "run")
        trainer.train(points, 2, batch_size=8, max_time=max_time)
    assert trainer.progress.update == 10
    assert_same_model(whole, trainer.model)


def test_an_optimizer_is_the_users_again_after_training(points):
    net = build_net()
    trainer = own(ZeroFirst, net, clip_norm=1e-9)
    trainer.train(points, 1, batch_size=8)
    before = net[0].weight.detach().clone()
    cross_entropy(net(points.tensors[0]), points.tensors[1]).backward()
    trainer.optimizer.step()
    assert (before - net[0].weight).abs().max() > 1e-4


# Several processes


def ddp_by_hand(rank: int, kind: type[Own], points: TensorDataset) -> nn.Module:
    """The loop around torch's DDP; batches that the processes share evenly."""
    model = DistributedDataParallel(build_linear())
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = rate(optimizer)
    for epoch in range(2):
        for whole in batches(points, 8, epoch):
            inputs, targets = (tensor[slice(*Shard(rank, 2).part(0, 8))] for tensor in whole)
            optimizer.zero_grad()
            cross_entropy(model(inputs), targets).backward()
            if kind is not NeverZeroed:
                clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            scheduler.step()
    return model.module


def on_processes(rank: int, points: TensorDataset) -> None:
    for kind, options in [
        (NeverZeroed, {}),
        (ZeroFirst, {"clip_norm": CLIP}),
        (Clipping, {}),
        (Closure, {"clip_norm": CLIP}),
    ]:
        net = build_linear()
        optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
        trainer = kind(net, optimizer, scheduler=rate, runtime="ddp", progress="silent", **options)
        trainer.train(points, 2, batch_size=8)
        assert_same_model(net, ddp_by_hand(rank, kind, points))


@pytest.fixture(scope="module")
def two():
    ranks = SharedRanks(2)
    yield ranks
    ranks.close()


def test_plain_steps_on_two_processes_are_those_of_torchs_ddp(points, two):
    even = TensorDataset(*(tensor[:32] for tensor in points.tensors))
    two(on_processes, even)


def in_double(points: TensorDataset, number: int = 37) -> TensorDataset:
    inputs, targets = points.tensors
    return TensorDataset(inputs[:number].double(), targets[:number])


def fit_weighted(rank: int, points: TensorDataset, runtime: Any) -> list[Any]:
    """With batches whose last one has a single sample."""
    found: list[Any] = []
    for kind in (NeverZeroed, Clipping, Closure):
        net = build_linear().double()
        trainer = own(kind, net, clip_norm=CLIP, runtime=runtime)
        trainer.train(points, 2, batch_size=9)
        found.append(net.weight.detach())
    net = build_linear().double()
    build = partial(LBFGS, lr=0.5, max_iter=4, line_search_fn="strong_wolfe")
    Closure(net, build, progress="silent", runtime=runtime).train(points, 2, batch_size=9)
    found.append(net.weight.detach())
    pair = fit_pair(Pair, points, runtime=runtime)
    found.append([p.detach() for net in pair.models.values() for p in net.parameters()])
    return found


def test_processes_with_more_or_fewer_samples_train_as_one_process(points, two):
    alone = fit_weighted(0, in_double(points), "cpu")
    for ours in two(fit_weighted, in_double(points), "ddp"):
        assert_same(ours, alone)


def fit_scaled(rank: int, points: TensorDataset, runtime: Any) -> list[Any]:
    net = build_linear()
    trainer = own(Scaling, net, runtime=runtime)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**19)
    trainer.train(points, 2, batch_size=8)
    return [trainer.scaler.get_scale(), net.weight.detach()]


def test_loss_scalers_of_all_processes_leave_out_the_same_steps(points, two):
    first, second = two(fit_scaled, points, "ddp")
    assert first[0] == second[0] < 2.0**19
    assert torch.equal(first[1], second[1])


def skip_together(rank: int, points: TensorDataset) -> tuple[int, Tensor]:
    class OnOne(Own):
        """A gradient of one process is not finite."""

        def train_step(self, batch):
            loss = self.loss(batch) * (nan if self.progress.step == 2 and rank else 1.0)
            loss.backward()
            self.optimizer.step()
            return loss

    net = build_linear()
    trainer = own(OnOne, net, runtime="ddp", callbacks=[NonFiniteGuard("skip")])
    trainer.train(points, 1, batch_size=8)
    return trainer.run.updates.by_name["optimizer"].num_updates, net.weight.detach()


def test_a_gradient_that_is_not_finite_on_one_process_is_used_by_none(points, two):
    (number, first), (_, second) = two(skip_together, points)
    assert number == 4
    assert torch.equal(first, second)
    assert first.isfinite().all()


def fit_sharded(rank: int, points: TensorDataset, runtime: Any) -> list[Any]:
    found: list[Any] = []
    for kind in (NeverZeroed, Clipping, Closure):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).double()
        trainer = kind(net, sgd, clip_norm=CLIP, runtime=runtime, progress="silent")
        trainer.train(points, 2, batch_size=8)
        found.append([_full(p) for p in trainer.model.parameters()])
    return found


def _full(param: Any) -> Tensor:
    whole: Tensor = param.detach()
    return whole.full_tensor() if hasattr(whole, "full_tensor") else whole


def refuse_uneven(rank: int, points: TensorDataset) -> None:
    with raises("uneven-sharded-batch", "drop_last"):
        own(NeverZeroed, build_linear(), runtime="fsdp").train(points, 1, batch_size=8)


def test_plain_steps_of_a_sharded_model_are_those_of_one_process(points, two):
    even = in_double(points, 32)
    alone = fit_sharded(0, even, "cpu")
    for ours in two(fit_sharded, even, "fsdp"):
        assert_same(ours, alone)
    two(refuse_uneven, points)
