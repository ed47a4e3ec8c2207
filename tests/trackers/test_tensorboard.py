"""TensorBoard: event files, read back by TensorBoard's own reader."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

from loopwright.trackers import TensorBoard

from ..forked import call_forked
from ..runs import assert_same_run
from .runs import IMAGE, KillAfter, LogMedia, build, step_losses, train


def read(folder: Path) -> EventAccumulator:
    everything = dict.fromkeys(
        ("scalars", "images", "histograms", "tensors", "compressedHistograms"), 0
    )
    found = EventAccumulator(str(folder), size_guidance=everything)
    found.Reload()
    return found


def scalars(found: EventAccumulator, name: str) -> dict[int, float]:
    events = found.Scalars(name)
    assert len({event.step for event in events}) == len(events), "a step is there twice"
    return {event.step: event.value for event in events}


def text(found: EventAccumulator, name: str) -> str:
    return found.Tensors(f"{name}/text_summary")[0].tensor_proto.string_val[0].decode()


def test_scalars_images_histograms_texts_and_the_config_are_read_back(tmp_path):
    trainer = train(build([LogMedia(), TensorBoard(tmp_path / "logs")]))
    found = read(tmp_path / "logs" / "run")
    assert scalars(found, "loss") == pytest.approx(step_losses(trainer), rel=1e-6)
    assert list(scalars(found, "eval_loss")) == [5, 10]
    assert list(scalars(found, "epoch/loss").values()) == pytest.approx(
        trainer.history["loss"], rel=1e-6
    )
    walls = [event.wall_time for event in found.Scalars("loss")]
    assert walls == sorted(walls)
    (image,) = found.Images("samples/1")
    assert (image.encoded_image_string, image.step, image.width, image.height) == (IMAGE, 3, 4, 3)
    (histogram,) = found.Histograms("weights")
    value = histogram.histogram_value
    assert (list(value.bucket_limit), list(value.bucket), value.num) == (
        [0.0, 1.0, 2.0],
        [0.0, 3.0, 4.0],
        7.0,
    )
    assert text(found, "note") == "a <b>text</b>"
    assert "| a\\|b | 1 |" in text(found, "errors")


def test_the_config_and_the_end_are_in_the_hparams_tab(tmp_path):
    train(build([TensorBoard(tmp_path)]))
    found = read(tmp_path / "run")

    def plugin_data(tag: str) -> plugin_data_pb2.HParamsPluginData:
        return plugin_data_pb2.HParamsPluginData.FromString(
            found.SummaryMetadata(tag).plugin_data.content
        )

    start = plugin_data("_hparams_/session_start_info").session_start_info
    assert start.hparams["optimizer.lr"].number_value == 0.01
    assert start.hparams["optimizer"].string_value == "torch.optim.adam.Adam"
    end = plugin_data("_hparams_/session_end_info").session_end_info
    assert end.status == api_pb2.STATUS_SUCCESS


def test_a_name_may_have_folders_and_a_resumed_run_goes_on_there(tmp_path):
    for num_epochs in (1, 2):
        tracker = TensorBoard(tmp_path / "logs", name="sweep/first")
        train(build([tracker], run_dir=tmp_path / "run"), num_epochs)
    assert list(scalars(read(tmp_path / "logs" / "sweep" / "first"), "loss")) == list(range(1, 11))
    assert [path.name for path in (tmp_path / "logs" / "sweep").iterdir()] == ["first"]


def test_after_sigkill_and_resume_each_step_is_shown_once(tmp_path):
    def program(folder: Path, *more):
        return train(
            build([LogMedia(at=6), TensorBoard(folder / "logs"), *more], run_dir=folder / "run")
        )

    killed = tmp_path / "killed"
    assert call_forked(lambda: program(killed, KillAfter(7)), tmp_path).code == -signal.SIGKILL
    assert list(scalars(read(killed / "logs" / "run"), "loss")) == [1, 2, 3, 4, 5, 6, 7]
    resumed, whole = program(killed), program(tmp_path / "whole")
    assert_same_run(resumed, whole)
    found, other = read(killed / "logs" / "run"), read(tmp_path / "whole" / "logs" / "run")
    assert len(list((killed / "logs" / "run").iterdir())) == 2
    for name in ("loss", "epoch/loss", "eval_loss"):
        assert scalars(found, name) == scalars(other, name)
    assert [image.step for image in found.Images("samples/1")] == [6]
    assert [path.name for path in (killed / "logs").iterdir()] == ["run"]
