"""`Trainer.tune`: which settings are tried, in which order, and what is printed; counted and not
timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from loopwright import ConfigurationError, Trainer
from loopwright.tuning import tune
from loopwright.tuning.tune import Tuner
from tests.distributed.ranks import run_ranks
from tests.loops import build_net
from tests.mistakes import raises
from tests.tuning.tries import CHEAP, Pictures, Samples, build, cross_entropy, own_optimizer, tried

pytestmark = pytest.mark.usefixtures("few_updates")


def test_every_setting_of_a_data_set_is_tried_and_then_what_is_worth_it():
    tuning = build().tune(Samples(), batch_size=8, only=["workers", *CHEAP])
    assert tried(tuning)[:3] == ["1 worker", "2 workers", "batch size 16"]
    assert {"bf16", "2 threads", "fused optimizer"} <= set(tried(tuning))
    assert all(row.samples_per_second > 0 for row in tuning.rows if row.verdict != "failed")
    assert set(tuning.not_tried) == {"channels_last", "pin_memory"}
    assert tuning.present == {
        "workers": 0,
        "batch_size": 8,
        "compile": None,
        "precision": "fp32",
        "threads": 1,
        "channels_last": False,
        "fused": False,
        "pin_memory": False,
    }
    assert tuning.is_complete


def test_a_try_trains_with_its_setting():
    """Of each try: threads, autocast, memory format, implementation of the optimizer, size of the
    batch."""
    seen = []

    class Looking(Trainer):
        def train_step(self, batch: Any) -> Any:
            group, weight = self.optimizers["optimizer"].param_groups[0], self.model.conv.weight
            is_last = (
                weight.is_contiguous(memory_format=torch.channels_last)
                and not weight.is_contiguous()
            )
            is_bf16, threads = torch.is_autocast_enabled("cpu"), torch.get_num_threads()
            seen.append((len(batch[0]), threads, is_bf16, is_last, bool(group["fused"])))
            return super().train_step(batch)

    model = Pictures()
    data = TensorDataset(torch.randn(64, 3, 5, 5), torch.zeros(64).long())
    trainer = Looking(model, own_optimizer(model), cross_entropy, progress="silent")
    before = model.conv.weight.stride()
    trainer.tune(
        data, batch_size=8, only=["batch_size", "threads", "precision", "channels_last", "fused"]
    )
    present = (8, 1, False, False, False)
    assert {
        present,
        (16, 1, False, False, False),
        (8, 2, False, False, False),
        (8, 1, True, False, False),
        (8, 1, False, True, False),
        (8, 1, False, False, True),
    } <= set(seen)
    assert seen[0] == present
    assert torch.get_num_threads() == 1
    assert model.conv.weight.stride() == before


def test_turns_alternate_with_the_present_settings(monkeypatch):
    order = []
    measure = Tuner._measure

    def note(tuner: Tuner, arrangement: Any) -> float:
        order.append(arrangement.settings.fused)
        return measure(tuner, arrangement)

    monkeypatch.setattr(Tuner, "_measure", note)
    build().tune(Samples(), batch_size=8, only=["fused"])
    assert order == [False] * (1 + tune.MIN_TURNS) + [False, True] * tune.MIN_TURNS


def test_batches_are_doubled_while_they_are_faster_up_to_the_data_set(hand_clock):
    tuning = hand_clock.trainer(per_step=1e-3, per_sample=1e-5).tune(
        Samples(64), batch_size=8, only=["batch_size"]
    )
    assert tried(tuning) == ["batch size 16", "batch size 32", "batch size 64"]
    ratios = [size / (1.0 + 0.01 * size) / (8 / 1.08) for size in (16, 32, 64)]
    assert [row.ratio for row in tuning.rows] == pytest.approx(ratios)
    assert [row.spread for row in tuning.rows] == pytest.approx([0, 0, 0], abs=1e-9)
    assert tuning.suggestion == {"batch_size": 64}


def test_what_is_worth_it_is_tried_together_and_apart_from_what_changes_the_numbers(hand_clock):
    """Twice the threads take half the time, in a model whose time is by step."""
    trainer = hand_clock.trainer(per_step=1e-3, per_sample=0.0, is_threaded=True)
    tuning = trainer.tune(Samples(16), batch_size=8, only=["threads", "batch_size", "fused"])
    assert tried(tuning) == [
        "2 threads",
        "batch size 16",
        "fused optimizer",
        "2 threads, batch size 16",
    ]
    assert [row.ratio for row in tuning.rows] == pytest.approx([2, 2, 1, 4])
    assert tuning.suggestion == {"threads": 2, "batch_size": 16}
    assert dict(tuning.best_of_same_numbers.settings) == {"threads": 2}
    text = str(tuning)
    assert text.index("torch.set_num_threads(2)") < text.index(
        "Faster still, 4.00 ± 0.00 times as fast, but"
    )


def test_the_time_of_all_tries_is_bounded(hand_clock):
    """A model so slow that the second try begins after the bound that was said."""
    trainer = hand_clock.trainer(per_step=1000.0, per_sample=0.0)
    tuning = trainer.tune(Samples(), batch_size=8, only=["fused", "precision"])
    assert tried(tuning) == ["fused optimizer"]
    assert tuning.not_tried == {"precision": "the time was up"}
    assert not tuning.is_complete


def test_progress_is_shown_as_the_tries_end(capsys):
    build(progress="lines").tune(Samples(), batch_size=8, only=["fused", "channels_last"])
    first, header, present, row, blank, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith(
        "Trying 1 setting on cpu with 2 cores: about 8 s; at most 30 s. Ctrl-C stops early"
    )
    assert header.split() == ["tried", "samples/s", "ratio", "worth", "it"]
    assert present.split()[:2] == ["current", "settings"]
    assert row.startswith("fused optimizer")
    assert blank == ""
    assert rest[0] == "Current settings: 0 workers, batch size 8, not compiled, fp32, 1 thread."
    assert rest[1].startswith(
        "Not tried: channels-last, because the model has no four-dimensional weights"
    )


def test_mistakes():
    trainer = build()
    with raises("unknown-setting", "does not know"):
        trainer.tune(Samples(), only=["worker"])
    with raises("number", "seconds"):
        trainer.tune(Samples(), seconds=0)
    with raises("one-use-iterator", "can be read only once"):
        trainer.tune(batch for batch in [(torch.zeros(4, 6), torch.zeros(4).long())])


def tune_on_a_rank(rank: int) -> str:
    with pytest.raises(ConfigurationError) as caught:
        build(runtime="ddp").tune(Samples())
    return str(caught.value)


def test_on_several_processes_it_is_refused():
    text = run_ranks(tune_on_a_rank, 2)[0]
    assert "tune was called on 2 processes" in text


def test_a_step_that_stays_eager_beside_other_settings_is_not_part_of_the_row(monkeypatch):
    class Own(Trainer):
        def train_step(self, batch: Any) -> Any:
            return super().train_step(batch)

    model, compare = build_net(), Tuner._compare
    monkeypatch.setattr(
        Tuner, "_compare", lambda self, settings: compare(self, {**settings, "compile": "step"})
    )
    (row,) = (
        Own(model, own_optimizer(model), cross_entropy, progress="silent")
        .tune(Samples(), only=["fused"])
        .rows
    )
    assert row.settings == {"fused": True}
    assert row.note.startswith(
        "same numbers, to rounding; not compiled: `train_step` is overridden"
    )
