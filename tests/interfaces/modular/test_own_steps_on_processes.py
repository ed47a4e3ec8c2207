"""Steps and loops replaced whole, on two processes: the weights of one process, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright import ConfigurationError
from loopwright.runtime import watchdog

from ...distributed.ranks import run_ranks
from ...distributed.scenarios import assert_same as assert_close
from ...distributed.scenarios import weights_of
from . import idioms
from .idioms import CLIP, Idiom
from .programs import Config, MyTrainer
from .test_own_steps_of_pairs import OwnPair
from .test_processes import DoublePair, build_model, loaders


class DoubleData:
    configure_dataloaders = loaders


RANKS = [
    idioms.OwnStep,
    idioms.Returning,
    idioms.LoopOwnStep,
    idioms.LoopReturning,
    idioms.OwnSchedule,
]
PLAIN = [idioms.OwnBackward]  # FSDP2 averages these without weights


def fit_double(kind: type[Idiom], **options: Any) -> dict[str, Any]:
    double = type(kind.__name__, (DoubleData, kind), {})
    trainer = double(Config(n_epochs=2, **options), build_model())
    return {"history": trainer.fit().to_dict(), "weights": weights_of(trainer.model)}


class DoubleOwnPair(DoublePair, OwnPair):
    """A GAN with steps of its own, on processes that see different samples; zeroes more than it has
    to."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx)
        self.g_optimizer.zero_grad()
        self.d_optimizer.zero_grad()


def all_idioms(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    kinds = RANKS if options else RANKS + PLAIN
    found = {kind.__name__: fit_double(kind, gradient_clip_val=CLIP, **options) for kind in kinds}
    pair = DoubleOwnPair(Config(n_epochs=2, gradient_clip_val=0.05, **options))
    pair.fit()
    found["pair"] = weights_of(pair.generator, pair.discriminator)
    found["accumulating"] = fit_double(idioms.Returning, gradient_accumulation_steps=2, **options)
    return found


@pytest.mark.parametrize("options", [{}, {"strategy": "fsdp"}], ids=["ddp", "fsdp"])
def test_idioms_give_the_weights_of_one_process_on_two(options: dict[str, Any]) -> None:
    alone = all_idioms(0, {})
    for ours in run_ranks(all_idioms, 2, options):
        assert_close(ours, {name: alone[name] for name in ours})


REFUSED_ON_RANKS = [idioms.ClippingAlone, idioms.OwnClipping]


def refused(rank: int) -> list[str]:
    watchdog.GRACE_SECONDS = 60.0  # both raise, one maybe long after the other
    codes = []
    for kind in REFUSED_ON_RANKS:
        with pytest.raises(ConfigurationError) as caught:
            fit_double(kind)
        codes.append(caught.value.code)
    return codes


def test_clipping_the_gradients_of_a_part_of_the_batch_is_refused() -> None:
    for codes in run_ranks(refused, 2):
        assert codes == ["gradients-changed"] * len(REFUSED_ON_RANKS)


class OwnValidation(MyTrainer):
    """Counts by hand, and returns what it counted; logs something after its batches."""

    configure_dataloaders = loaders

    def validation_loop(self) -> Any:
        correct = total = 0
        for inputs, targets in self.val_loader:
            correct += int((self.model(inputs).argmax(1) == targets).sum())
            total += len(targets)
        self.log_metrics({"logged_accuracy": correct / max(total, 1)})
        return {"accuracy": correct / max(total, 1), "val/ones": 1.0}


def validated(rank: int) -> dict[str, list[float]]:
    return OwnValidation(Config(n_epochs=2), build_model()).fit().to_dict()


def test_what_a_validation_loop_returns_is_that_of_all_processes() -> None:
    alone = validated(0)
    assert alone["val_accuracy"] == alone["val_logged_accuracy"]
    for ours in run_ranks(validated, 2):
        assert (
            ours["val_accuracy"]
            == ours["val_logged_accuracy"]
            == pytest.approx(alone["val_accuracy"], rel=1e-12)
        )
        assert ours["val/ones"] == [1.0, 1.0]
