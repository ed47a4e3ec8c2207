"""`Trainer.tune`: which settings are tried, in which order, and what is printed; counted and not
timed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from loopwright import ConfigurationError, Trainer
from loopwright.tuning import tune
from loopwright.tuning.tune import Tuner
from tests.distributed.ranks import run_ranks
from tests.loops import build_net
from tests.mistakes import raises
from tests.tuning.tries import CHEAP, Samples, build, cross_entropy, own_optimizer, tried

pytestmark = pytest.mark.usefixtures("few_updates")


def test_every_setting_of_a_data_set_is_tried_and_then_what_is_worth_it():
    tuning = build().tune(Samples(), batch_size=8, only=["workers", *CHEAP])
    assert tried(tuning)[:3] == ["1 worker", "2 workers", "batch size 16"]
    assert {"bf16", "2 threads"} <= set(tried(tuning))
    assert all(row.samples_per_second > 0 for row in tuning.rows)
    assert tuning.not_tried == {}
    assert tuning.present == {
        "workers": 0,
        "batch_size": 8,
        "compile": None,
        "precision": "fp32",
        "threads": 1,
    }
    assert tuning.is_complete


def test_a_try_trains_with_its_setting():
    """Of each try: threads, autocast, size of the batch."""
    seen = []

    class Looking(Trainer):
        def train_step(self, batch: Any) -> Any:
            seen.append((len(batch[0]), torch.get_num_threads(), torch.is_autocast_enabled("cpu")))
            return super().train_step(batch)

    model = build_net()
    trainer = Looking(model, own_optimizer(model), cross_entropy, progress="silent")
    trainer.tune(Samples(), batch_size=8, only=CHEAP)
    present = (8, 1, False)
    assert {present, (16, 1, False), (8, 2, False), (8, 1, True)} <= set(seen)
    assert seen[0] == present
    assert torch.get_num_threads() == 1


def test_turns_alternate_with_the_present_settings(monkeypatch):
    order = []
    measure = Tuner._measure

    def note(tuner: Tuner, arrangement: Any) -> float:
        order.append(arrangement.settings.threads)
        return measure(tuner, arrangement)

    monkeypatch.setattr(Tuner, "_measure", note)
    build().tune(Samples(), batch_size=8, only=["threads"])
    assert order == [1, 1] + [1, 2] * tune.NUM_TURNS


def test_batches_are_doubled_while_they_are_faster_up_to_the_data_set(hand_clock):
    tuning = hand_clock.trainer(per_step=1e-3, per_sample=1e-5).tune(
        Samples(64), batch_size=8, only=["batch_size"]
    )
    assert tried(tuning) == ["batch size 16", "batch size 32", "batch size 64"]
    ratios = [size / (1.0 + 0.01 * size) / (8 / 1.08) for size in (16, 32, 64)]
    assert [row.ratio for row in tuning.rows] == pytest.approx(ratios)
    assert [row.spread for row in tuning.rows] == pytest.approx([0, 0, 0], abs=1e-9)
    assert tuning.suggestion == {"batch_size": 64}


def test_what_is_worth_it_is_tried_together(hand_clock):
    """Twice the threads take half the time, in a model whose time is by step."""
    trainer = hand_clock.trainer(per_step=1e-3, per_sample=0.0, is_threaded=True)
    tuning = trainer.tune(Samples(16), batch_size=8, only=["threads", "batch_size", "precision"])
    assert tried(tuning) == ["2 threads", "batch size 16", "bf16", "2 threads, batch size 16"]
    assert [row.ratio for row in tuning.rows] == pytest.approx([2, 2, 1, 4])
    assert tuning.suggestion == {"threads": 2, "batch_size": 16}
    assert "compare the losses" in str(tuning)


def test_progress_is_shown_as_the_tries_end(capsys):
    build(progress="lines").tune(Samples(), batch_size=48, only=["threads", "batch_size"])
    first, header, present, row, blank, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("Ctrl-C stops early")
    assert header.split() == ["tried", "samples/s", "ratio", "worth", "it"]
    assert present.split()[:2] == ["current", "settings"]
    assert row.startswith("2 threads")
    assert blank == ""
    assert rest[0].startswith("Not tried: batch_size, because the data set has 48 samples")


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
