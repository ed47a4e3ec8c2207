"""Images, histograms, tables and figures from what users have; what is wrong is said with what is
accepted."""

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from loopwright.metrics.media import (
    Histogram,
    Table,
    count_values,
    draw_figure,
    encode_png,
    read_image,
    read_images,
    read_table,
)

from ..mistakes import raises

NAN, INF = float("nan"), float("inf")


def pixels(value, value_range=None):
    return read_image("log_image('x')", value, value_range)[0]


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(1, 1), (5, 7), (1, 9, 3), (6, 2, 4), (33, 17, 3)])
def test_a_png_file_holds_the_same_pixels(shape):
    image = noise(*shape)
    assert np.array_equal(decoded(encode_png(image)), image)


def test_every_layout_of_a_tensor_gives_the_same_image():
    color, gray = torch.from_numpy(noise(6, 8, 3)), torch.from_numpy(noise(6, 8))
    assert np.array_equal(pixels(color), color.numpy())
    assert np.array_equal(pixels(color.permute(2, 0, 1)), color.numpy())
    assert np.array_equal(pixels(color.permute(2, 0, 1).numpy()), color.numpy())
    for layout in (gray, gray[None], gray[..., None]):
        assert np.array_equal(pixels(layout), gray.numpy())


def test_where_both_ends_could_be_channels_a_tensor_has_them_first_and_an_array_last():
    image = noise(3, 3, 3)
    assert np.array_equal(pixels(torch.from_numpy(image)), np.moveaxis(image, 0, -1))
    assert np.array_equal(pixels(image), image)


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_floats_from_zero_to_one_become_black_to_white(kind):
    image = torch.tensor([[0.0, 0.5], [1.0, 0.25]], dtype=kind, requires_grad=True)
    assert pixels(image).tolist() == [[0, 128], [255, 64]]


def test_a_range_of_values_is_scaled_and_values_outside_are_cut_off():
    assert pixels(torch.tensor([[-1.0, 0.0, 1.0, 7.0, -7.0]]), (-1.0, 1.0)).tolist() == [
        [0, 128, 255, 255, 0]
    ]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I"])
def test_a_pillow_image_of_any_mode_is_read(mode):
    image = Image.new(mode, (4, 2))
    assert pixels(image).shape[:2] == (2, 4)
    assert decoded(encode_png(pixels(image))).shape[:2] == (2, 4)


def test_nonfinite_values_are_black_and_counted():
    image, bad = read_image("x", torch.tensor([[NAN, INF, 1.0, -INF]]), None)
    assert image.tolist() == [[0, 0, 255, 0]]
    assert bad == 3


WRONG_IMAGES = [
    (torch.rand(4, 3, 8, 8), "not-an-image", "(4, 3, 8, 8)"),
    (torch.rand(2, 8, 8), "not-an-image", "(2, 8, 8)"),
    (torch.rand(8), "not-an-image", "(8,)"),
    (torch.rand(3, 0, 4), "not-an-image", "(3, 0, 4)"),
    ([torch.rand(3, 4, 4)], "not-an-image", "a list"),
    (Path("cat.png"), "not-an-image", "Path"),
    (None, "not-an-image", "a NoneType"),
    (torch.rand(4, 4) + 0j, "not-real-numbers", "(4, 4)"),
    (np.array([["a", "b"]]), "not-real-numbers", "(1, 2)"),
    (torch.rand(3, 8, 8) * 2 - 1, "image-values", "value_range=(-1, 1)"),
    (torch.linspace(-4, 9, 16).reshape(4, 4), "image-values", "from -4 to 9"),
    (torch.tensor([[0, 300]]), "image-values", "0 to 255"),
]


@pytest.mark.parametrize(("value", "code", "said"), WRONG_IMAGES)
def test_a_wrong_image_is_refused_with_what_is_accepted(value, code, said):
    with raises(code, said):
        pixels(value)


@pytest.mark.parametrize("value", [(1, 0), (0, 0), (0, INF), (NAN, 1)])
def test_a_range_that_is_none_is_refused(value):
    with raises("value-range"):
        pixels(torch.zeros(2, 2), value)


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(2, 3, 8, 8),
        torch.rand(2, 8, 8, 3),
        torch.rand(2, 8, 8),
        [torch.rand(3, 8, 8), Image.new("L", (3, 3))],
        (torch.rand(8, 8) for _ in range(2)),
        {"one": torch.rand(8, 8), "two": torch.rand(8, 8)},
    ],
    ids=["NCHW", "NHWC", "NHW", "list", "generator", "mapping"],
)
def test_several_images_are_read_one_by_one(value):
    images, _ = read_images("x", value, None, None)
    assert len(images.files) == 2
    assert images.captions == (("one", "two") if isinstance(value, dict) else ("", ""))


@pytest.mark.parametrize(
    "value",
    [
        torch.rand(3, 8, 8),
        torch.rand(8, 8),
        [],
        torch.rand(0, 3, 8, 8),
        "cats",
        Image.new("L", (3, 3)),
    ],
)
def test_wrong_images_are_refused(value):
    with raises("not-a-batch-of-images", "log_image"):
        read_images("x", value, None, None)


def test_a_histogram_counts_every_finite_value_once():
    values = torch.randn(7, 5, 3)
    histogram, _ = count_values("x", values, 16)
    expected, edges = np.histogram(values.numpy().astype(np.float64), 16)
    assert list(histogram.counts) == expected.tolist()
    assert np.allclose(histogram.edges, edges)


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(5),
        torch.tensor([5e-324, 1e-323], dtype=torch.float64),
        torch.tensor([1e300], dtype=torch.float64),
        torch.rand(4) > 0.5,
        [1, 2, 3],
        np.float32(7),
    ],
)
def test_a_histogram_of_any_range_is_finite_and_complete(values):
    histogram, _ = count_values("x", values, 8)
    assert sum(histogram.counts) == len(np.atleast_1d(values))
    assert np.isfinite(histogram.edges).all()
    assert (np.diff(histogram.edges) >= 0).all()


def test_nan_and_infinite_values_are_left_out_of_a_histogram_and_counted():
    histogram, bad = count_values("x", torch.tensor([NAN, 1.0, INF, -INF, 2.0]), 4)
    assert (sum(histogram.counts), bad) == (2, 3)
    assert count_values("x", torch.tensor([NAN]), 4) == (Histogram((0.0, 1.0), (0,)), 1)


ROWS = Table(("a", "b"), ((1, "x"), (2, None)))


def test_a_table_is_read_from_dicts_columns_and_rows():
    columns = {"a": [1, 2], "b": ["x", None]}
    rows = [{"a": 1, "b": "x"}, {"a": torch.tensor(2)}]
    assert read_table("x", rows, None) == ROWS
    assert read_table("x", columns, None) == ROWS
    assert read_table("x", [[1, "x"], (np.int64(2), None)], ["a", "b"]) == ROWS
    assert read_table("x", torch.tensor([[1, 2]]), ["a", "b"]).rows == ((1, 2),)


def test_a_figure_is_drawn():
    from matplotlib.figure import Figure

    assert decoded(draw_figure(Figure())).shape[2] == 4
