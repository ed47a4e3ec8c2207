"""The page is written from stored results, and says what failed, what differs and which targets
there are."""

from pathlib import Path

import pytest

from .conftest import BENCHMARKS

PAGE = BENCHMARKS.parent / "docs" / "benchmarks.md"
TEXT = """# A page
before
<!-- measured: peers -->
old
<!-- end -->
between
<!-- measured: growth -->
old
<!-- end -->
<!-- measured: targets -->
old
<!-- end -->
after
"""
W1 = {
    "times": {
        "naive": [1e-4, 2e-4, 4e-4],
        "tight": [5e-5, 1e-4, 2e-4],
        "ours_own_optimizer": [8e-5, 1.6e-4, 4e-4],
        "native_plain": [1e-4, 1e-4, 1e-4],
        "interface_simple": [1.1e-4, 1.1e-4, 1.1e-4],
        "lightning:off": [2e-4, 4e-4, 8e-4],
        "lightning:default": [3e-4, 6e-4, 12e-4],
        "keras:default": [2e-4, 4e-4, 8e-4],
    },
    "calls": {"ours_own_optimizer": 0.0123, "lightning:default": 0.2},
    "losses": {
        "naive": [1.5, None],
        "tight": [1.5000001, None],
        "lightning:off": [1.6, None],
        "keras:default": [1.52, "another Adam"],
    },
    "failures": {"keras:off": "RuntimeError: no"},
}
RESULTS = {
    "machine": {
        "processor": "A processor",
        "cores": 2,
        "system": "Linux",
        "python": "3.11",
        "torch": "2.13",
        "date": "2026-01-02",
    },
    "rounds": 3,
    "checked": {"W1": 50},
    "minutes": 4.2,
    "load": 1.04,
    "environments": {
        "loopwright": {"version": "0.1", "packages": 12, "megabytes": 19.6, "import": 0.07},
        "lightning": {"version": "2.6", "packages": 16, "megabytes": 25.2, "import": 2.0},
        "keras": {"version": "3.15", "packages": 11, "megabytes": 37.0, "import": 2.2},
        "fastai": {"failed": "no wheel"},
    },
    "workloads": {"W1": W1},
}
GROWTH = {
    "steps": {
        "step": [50_000, 100_000],
        "microseconds": [200.0, 201.0],
        "megabytes": [400.0, 401.0],
        "starts": {"10000": 20.0, "1000000": 21.0},
        "store_megabytes": 50.0,
    },
    "seek": {"samples": [0, 1000], "TensorDataset": [1.0, 1.5], "Python data set": [2.0, 2.5]},
    "parameters": {
        "number": [10, 100],
        "loopwright": [100.0, 1000.0],
        "hand-written, fused": [90.0, 900.0],
    },
}


def test_the_page_has_ratios_with_their_middle_half_and_what_failed() -> None:
    from page import written

    page = written(TEXT, RESULTS, None)
    assert "| tight loop | 0.50 (0.50–0.50) |" in page
    assert "| **Loopwright**, own optimizer object | – | 0.80 (0.80–1.00) |" in page
    assert "| Lightning 2.6 | 2.00 (2.00–2.00) | 3.00 (3.00–3.00) |" in page
    assert "| Keras on torch 3.15 | failed: RuntimeError: no | 2.00 (2.00–2.00) |" in page
    assert "| fastai | not installable here: no wheel |" in page
    assert page.index("Keras on torch 3.15") < page.index("Lightning 2.6")  # the faster one first
    assert "| simple | 1.10 (1.10–1.10) | 1.15 |" in page
    assert "| **Loopwright** | 0.07 | 12 | 20 | 12 |" in page
    assert "| Keras on torch 3.15 | 2.20 | 11 | 37 | – |" in page


def test_the_page_says_whose_losses_are_the_same_and_why_others_are_not() -> None:
    from page import written

    page = written(TEXT, RESULTS, None)
    assert "| `tight` | same |" in page
    assert "| `lightning:off` | 1e-01 |" in page
    assert "| `keras:default` | 2e-02: another Adam |" in page


def test_text_around_the_measured_parts_stays_and_what_was_not_measured_too() -> None:
    from page import written

    page = written(TEXT, RESULTS, None)
    assert page.startswith(
        "# A page\nbefore\n<!-- measured: peers -->\n2026-01-02: A processor, 2 cores"
    )
    assert "<!-- end -->\nbetween\n<!-- measured: growth -->\nold\n<!-- end -->" in page
    assert page.endswith("<!-- end -->\nafter\n")
    assert written(page, RESULTS, None) == page


def test_growth_is_a_sentence_with_figures_under_each_plot() -> None:
    from page import written

    page = written(TEXT, None, GROWTH)
    assert "200 µs in the first half of 100,000 steps, 201 µs in the second" in page
    assert "With the 1,000,000 points that it stored (50 MB)" in page
    assert "TensorDataset 1.0 to 1.5 ms; Python data set 2.0 to 2.5 ms" in page
    assert "loopwright 100 µs with 10 and 1,000 µs with 100; hand-written, fused 90 µs" in page


def test_a_page_without_a_marker_is_refused() -> None:
    from page import written

    with pytest.raises(ValueError, match="has no <!-- measured: peers -->"):
        written(TEXT.replace("<!-- measured: peers -->", ""), RESULTS, None)


def test_plots_are_drawn_and_the_same_each_time(tmp_path: Path) -> None:
    from plots import draw

    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
        draw(RESULTS, GROWTH, folder)
    names = sorted(file.name for file in folders[0].iterdir())
    assert names == ["bench-parameters.svg", "bench-peers.svg", "bench-seek.svg", "bench-steps.svg"]
    for name in names:
        assert (folders[0] / name).read_bytes() == (folders[1] / name).read_bytes()


def test_the_targets_of_the_code_are_those_of_the_page() -> None:
    from page import replaced, targets_part

    text = PAGE.read_text()
    assert replaced(text, "targets", targets_part()) == text, (
        "run `python benchmarks/table.py --page-only`"
    )


def test_every_plot_of_the_page_is_there() -> None:
    import re

    for name in re.findall(r"\]\((images/[\w.-]+)\)", PAGE.read_text()):
        assert (PAGE.parent / name).exists(), name


@pytest.mark.parametrize(
    ("found", "target", "verdict"),
    [
        ((0.79, 0.7, 0.9), 0.80, "met"),
        ((0.84, 0.83, 0.9), 0.80, "met within noise"),
        ((0.9, 0.79, 1.0), 0.80, "met within noise"),
        ((0.9, 0.88, 1.0), 0.80, "MISSED"),
    ],
)
def test_a_quick_verdict_does_not_call_noise_a_miss(found, target: float, verdict: str) -> None:
    from interleaved import Ratio
    from quick import judged

    assert judged(Ratio(*found), target) == verdict
