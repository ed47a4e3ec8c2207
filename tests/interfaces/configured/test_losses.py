"""What `loss_compute` may return, and what becomes of it."""

import pytest
import torch
from torch import nn

from loopwright.interfaces.configured import BaseTrainer, TrainerResult
from loopwright.interfaces.configured.core import result_of

from ...mistakes import raises
from .parts import CustomTrainer, Seen, build_trainer

one, two = torch.tensor(1.0), torch.tensor(2.5)


def test_a_dict_gives_named_losses_and_their_sum():
    result = result_of({"mse": one, "mae": two})
    assert result.total_loss.item() == 3.5
    assert result.losses_to_log == {"mse": one, "mae": two}
    assert result.additional_outputs is None


def test_a_tensor_is_the_loss():
    result = result_of(two)
    assert result.total_loss is two
    assert result.losses_to_log == {"loss": two}


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_list_or_tuple_of_any_length_gives_numbered_losses(kind, count):
    result = result_of(kind([one, two, one][:count]))
    assert list(result.losses_to_log) == ["loss_0", "loss_1", "loss_2"][:count]
    assert result.total_loss.item() == [1.0, 3.5, 4.5][count - 1]


def test_a_pair_of_losses_does_not_lose_the_second():
    assert result_of((one, two)).total_loss.item() == 3.5


@pytest.mark.parametrize(
    ("losses", "names"),
    [({"mse": one}, ["mse"]), (one, ["loss"]), ([one], ["loss_0"]), ((one, two), None)],
)
def test_additional_outputs_may_come_with_losses_of_every_form(losses, names):
    result = result_of((losses, {"logits": two}))
    assert list(result.losses_to_log) == (names or ["loss_0", "loss_1"])
    assert result.additional_outputs == {"logits": two}


def test_additional_outputs_may_be_none():
    assert result_of((one, None)) == TrainerResult(one, {"loss": one}, None)


@pytest.mark.parametrize("nothing", [{}, [], (), None, ({}, {"logits": one}), ([], None)])
def test_nothing_computed_is_an_error(nothing):
    with raises("no-losses"):
        result_of(nothing)


@pytest.mark.parametrize("wrong", [1.0, "loss", {"mse": 1.0}, [one, None], (one, 2.0)])
def test_what_is_no_loss_is_refused_with_what_is_accepted(wrong):
    with raises("loss-no-tensor"):
        result_of(wrong)


def test_the_document_calls_no_losses_a_value_error_while_training():
    class Silent(BaseTrainer):
        def loss_compute(self, forward_output, targets):
            return {}

    with pytest.raises(ValueError, match="No losses computed"):
        build_trainer(Silent).train()


def test_named_losses_and_their_sum_are_in_the_history():
    history = build_trainer(max_epochs=2).train()
    assert set(history.names) == {"loss", "mse", "mae"}
    for row in history.epochs:
        assert row["loss"] == pytest.approx(row["mse"] + row["mae"])


def test_a_loss_that_is_called_loss_is_not_taken_for_the_sum():
    class Named(CustomTrainer):
        def loss_compute(self, forward_output, targets):
            losses = super().loss_compute(forward_output, targets)
            return {"loss": losses["mse"], "other": losses["mae"]}

    row = build_trainer(Named).train().epochs[0]
    assert row["loss"] == pytest.approx(row["loss/loss"] + row["other"])
    assert row["loss"] == build_trainer().train().epochs[0]["loss"]


def test_additional_outputs_reach_the_callbacks():
    class Telling(CustomTrainer):
        def loss_compute(self, forward_output, targets):
            return super().loss_compute(forward_output, targets), {"prediction": forward_output}

    seen = Seen()
    build_trainer(Telling, callbacks=[seen]).train()
    assert [result.outputs["prediction"].shape for result in seen.results] == [(8,)] * 8


def test_an_own_train_step_gives_the_loss_that_is_optimised():
    class Doubling(CustomTrainer):
        def train_step(self, batch, model):
            output = model(coordinates=batch["coordinates"], features=batch["features"])
            loss = 2 * nn.functional.mse_loss(output, batch["labels"])
            return TrainerResult(total_loss=loss, losses_to_log={"twice": loss})

    row = build_trainer(Doubling).train().epochs[0]
    assert row["twice"] == row["loss"]


def test_an_own_train_step_that_updates_itself_is_not_updated_again():
    class Updating(CustomTrainer):
        def train_step(self, batch, model):
            result = super().train_step(batch, model)
            self.update(result.total_loss)
            return result

    own, default = build_trainer(Updating), build_trainer()
    own.train()
    default.train()
    for param, other in zip(own.model.parameters(), default.model.parameters(), strict=True):
        assert torch.equal(param, other)
