"""torchmetrics objects as they are, over evaluations and training epochs."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
    MulticlassPrecision,
)
from torchmetrics.wrappers import ClasswiseWrapper

from loopwright import Callback, Trainer
from loopwright.callbacks import EarlyStopping, TorchMetrics

from ..loops import build_net
from ..mistakes import raises
from .runs import assert_same_after_crash, build_trainer, train


def accuracy() -> MulticlassAccuracy:
    return MulticlassAccuracy(3, average="micro")


def collection(**options: Any) -> MetricCollection:
    return MetricCollection([accuracy(), MulticlassF1Score(3), MulticlassPrecision(3)], **options)


def expected(metric: Any, trainer: Trainer, points: Any) -> float:
    metric.update(trainer.predict(points), points.tensors[1])
    return metric.compute().item()


def test_a_metric_is_computed_over_the_evaluation_and_named_by_its_class(points):
    trainer = train(build_trainer([TorchMetrics(accuracy())]), points)
    assert trainer.history.last("eval_multiclass_accuracy") == expected(accuracy(), trainer, points)
    assert "multiclass_accuracy" not in trainer.history


def test_a_collection_names_its_values_itself(points):
    callback = TorchMetrics(collection(prefix="my_"))
    trainer = train(build_trainer([callback]), points)
    names = {"my_MulticlassAccuracy", "my_MulticlassF1Score", "my_MulticlassPrecision"}
    assert callback.names == names
    assert {f"eval_{name}" for name in names} <= set(trainer.history.names)
    assert trainer.history.last("eval_my_MulticlassF1Score") == expected(
        MulticlassF1Score(3), trainer, points
    )


def test_a_dict_of_values_is_logged_by_its_names_which_can_be_announced(points):
    wrapped = ClasswiseWrapper(MulticlassAccuracy(3, average=None), labels=["low", "mid", "high"])
    callback = TorchMetrics(wrapped, names=["multiclassaccuracy_low"])
    trainer = train(
        build_trainer([callback, EarlyStopping("eval_multiclassaccuracy_low")]),
        points,
        num_epochs=1,
    )
    assert "eval_multiclassaccuracy_high" in trainer.history


@pytest.mark.parametrize(
    "prepare",
    [
        lambda outputs, targets: (outputs.argmax(1) == targets).float(),
        lambda outputs, targets: ((outputs.argmax(1) == targets).float(),),
        lambda outputs, targets: {"value": (outputs.argmax(1) == targets).float()},
    ],
    ids=["a value", "a tuple", "keywords"],
)
def test_prepare_gives_the_arguments_of_update(points, prepare):
    trainer = build_trainer([TorchMetrics({"hits": MeanMetric()}, prepare=prepare)])
    assert trainer.evaluate(points, batch_size=8)["hits"] == pytest.approx(
        expected(accuracy(), trainer, points)
    )


class TrainHits(Callback):
    """Hits of the training steps, counted by hand."""

    def __init__(self) -> None:
        self.rows: list[float] = []
        self.hits = self.seen = 0

    def on_train_step_end(self, trainer: Trainer, batch: Any, result: Any) -> None:
        self.hits += int((result.outputs.argmax(1) == batch[1]).sum())
        self.seen += len(batch[1])

    def on_train_epoch_end(self, trainer: Trainer) -> None:
        self.rows.append(self.hits / self.seen)
        self.hits = self.seen = 0


@pytest.mark.parametrize("on", ["train", "both"])
def test_over_training_the_epoch_is_measured_step_by_step(points, on):
    by_hand = TrainHits()
    trainer = train(build_trainer([TorchMetrics({"acc": accuracy()}, on=on), by_hand]), points)
    assert trainer.history["acc"] == pytest.approx(by_hand.rows)
    assert ("eval_acc" in trainer.history) is (on == "both")
    if on == "both":
        assert trainer.history.last("eval_acc") == expected(accuracy(), trainer, points)


def test_collected_outputs_do_not_keep_the_graph(points):
    metric = MulticlassAUROC(3, thresholds=None)
    build_trainer([TorchMetrics(metric, on="train")]).train(points, num_updates=2, batch_size=8)
    assert metric.preds
    assert not any(preds.requires_grad for preds in metric.preds)


class EvaluateInside(Callback):
    """Evaluates other data at the end of every evaluation, and once more inside of that."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.depth = 0
        self.measured: list[float] = []

    def on_eval_end(self, trainer: Trainer, data: Any) -> None:
        if self.depth < 2:
            self.depth += 1
            self.measured.append(trainer.evaluate(self.data)["acc"])
            self.depth -= 1


@pytest.mark.parametrize("order", [1, -1])
def test_an_evaluation_inside_an_evaluation_has_metrics_of_its_own(points, order):
    other = [(points.tensors[0], (points.tensors[1] + 1) % 3)]
    inside = EvaluateInside(other)
    trainer = build_trainer([inside, TorchMetrics({"acc": accuracy()})][::order])
    outer = trainer.evaluate(points)["acc"]
    assert outer == expected(accuracy(), trainer, points)
    plain = build_trainer([TorchMetrics({"acc": accuracy()})]).evaluate(other)["acc"]
    assert inside.measured == [plain, plain]
    assert plain != outer


@pytest.mark.parametrize("after_update", [3, 5])
@pytest.mark.parametrize(
    "build",
    [accuracy, collection, lambda: MulticlassAUROC(3, thresholds=None)],
    ids=["counts", "collection", "lists"],
)
def test_a_run_that_crashed_inside_an_epoch_measures_the_same(
    tmp_path, points, build, after_update
):
    def callbacks() -> list[Callback]:
        return [TorchMetrics(build(), on="both")]

    resumed = assert_same_after_crash(tmp_path, points, callbacks, after_update, num_epochs=2)
    assert len(resumed.history.names) == 2 + 2 * len(TorchMetrics(build()).names)


def test_a_state_of_an_earlier_version_is_not_dropped_without_a_word(points, capsys):
    callback = TorchMetrics({"acc": accuracy()}, on="train")
    trainer = build_trainer([callback], progress="lines")
    trainer.train(points, num_updates=2, batch_size=8)
    callback.load_state_dict({"acc": {"state": {}, "counts": {"": 2}}})
    trainer.train(points, num_updates=1, batch_size=8)
    said = "acc cannot be read: they are measured over the rest of this epoch only."
    assert capsys.readouterr().out.count(said) == 1


class Plain:
    """A metric that is nobody's subclass."""

    def __init__(self) -> None:
        self.seen = 0

    def update(self, outputs: Any, targets: Any) -> None:
        self.seen += len(targets)

    def compute(self) -> int:
        return self.seen

    def reset(self) -> None:
        self.seen = 0


def test_anything_with_update_compute_and_reset_works(points):
    assert build_trainer([TorchMetrics(Plain())]).evaluate(points)["plain"] == 37.0
    trainer = train(
        build_trainer([TorchMetrics({"seen": Plain()}, on="train")]), points, num_epochs=2
    )
    assert trainer.history["seen"] == [37.0, 37.0]


def test_a_metric_whose_state_cannot_be_saved_is_refused_where_the_run_is_to_be_resumable(
    tmp_path, points
):
    with raises("metric-cannot-be-saved", "'seen'", "`state_dict`"):
        train(
            build_trainer([TorchMetrics({"seen": Plain()}, on="train")], run_dir=tmp_path), points
        )


class LossOnly(Trainer):
    def eval_step(self, batch: Any) -> Any:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])


def test_a_step_without_outputs_is_an_error_that_says_what_to_return(points):
    trainer = LossOnly(build_net(), callbacks=[TorchMetrics(accuracy())], progress="silent")
    with raises("no-outputs-to-measure", "StepResult(loss, outputs=outputs)"):
        trainer.evaluate(points)


@pytest.mark.parametrize("given", [nn.Linear(1, 1), {"a": 3}, "accuracy"])
def test_what_is_no_metric_is_refused(given):
    with raises("not-an-updated-metric"):
        TorchMetrics(given)
