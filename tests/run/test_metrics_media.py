"""Images, histograms, texts, tables and events in the metrics store: kept with their step, replaced
with it."""

import math

from loopwright.metrics.media import Histogram, Images, Media, Table
from loopwright.run import MetricsView


def test_events_of_what_is_done_again_are_removed_and_history_stays(store):
    kinds = (
        "started",
        "evaluation",
        "checkpoint",
        "best",
        "rewind",
        "micro_batches",
        "signal",
        "resumed",
    )
    for step in (5, 15):
        for kind in kinds:
            store.add_event(
                kind, f"at {step}", place=(step, step, 0, step, 0.5), detail={"step": step}
            )
    store.add_log_line("INFO", "hello")
    store.truncate(step=10, epoch=0)
    events = MetricsView(store.path).events()
    assert [event.kind for event in events if event.step == 5] == list(kinds)
    assert [event.kind for event in events if event.step == 15] == [*kinds[:1], *kinds[4:]]
    assert events[0].detail == {"step": 5}
    assert [line.text for line in MetricsView(store.path).log_lines()] == ["hello"]


def test_details_and_tables_are_strict_json_for_sql(store):
    store.add_event("best", detail={"loss": math.nan, "all": [math.inf, -math.inf, 1.5]})
    store.add_media(media("table", Table(("a",), ((math.nan,), (None,))), 1))
    store.flush()
    view = MetricsView(store.path)
    assert view.events()[0].detail == {"loss": "nan", "all": ["inf", "-inf", 1.5]}
    assert view.query("SELECT detail ->> 'loss', json_valid(detail) FROM events").rows == [
        ("nan", 1)
    ]
    assert view.media()[0].content == {"columns": ["a"], "rows": [["nan"], [None]]}


def media(name, content, step):
    return Media(name, content, step, step, 0, step, 0.5, 1e9)


def test_media_come_back_and_images_are_files(store, tmp_path):
    contents = {
        "images": Images((b"first", b"second", b"first"), ("a", "", "c")),
        "weights": Histogram((0.0, 0.5, 1.0), (3, 4)),
        "note": "some <text>",
        "table": Table(("a", "b"), ((1, "x"), (None, True))),
    }
    for name, content in contents.items():
        store.add_media(media(name, content, 3))
    store.flush()
    view = MetricsView(store.path)
    images = view.media("images")
    assert [(tmp_path / item.file).read_bytes() for item in images] == [
        b"first",
        b"second",
        b"first",
    ]
    assert [(item.position, item.caption, item.step) for item in images] == [
        (0, "a", 3),
        (1, "", 3),
        (2, "c", 3),
    ]
    assert view.media("weights")[0].content == {"edges": [0.0, 0.5, 1.0], "counts": [3, 4]}
    assert view.media("note")[0].content == "some <text>"
    assert view.media("table")[0].content == {
        "columns": ["a", "b"],
        "rows": [[1, "x"], [None, True]],
    }
    assert view.media_item(images[1].id) == images[1]


def test_media_of_a_step_that_is_trained_again_are_replaced_with_their_files(store, tmp_path):
    for step in (1, 2):
        store.add_media(media("images", Images((b"same", b"%d" % step), ("", "")), step))
    store.truncate(step=1, epoch=0)
    kept = {item.file for item in MetricsView(store.path).media()}
    assert {f"media/{path.name}" for path in (tmp_path / "media").iterdir()} == kept
    assert len(kept) == 2
    store.add_media(media("images", Images((b"new",), ("",)), 1))
    store.flush()
    (item,) = MetricsView(store.path).media()
    assert [path.read_bytes() for path in (tmp_path / "media").iterdir()] == [b"new"]
    assert (tmp_path / item.file).is_file()


def test_several_items_of_one_name_and_step_are_kept_until_the_step_is_taken_again(store):
    place = (3, 3, 0, 3, 0.5, 1e9)
    for number in range(3):
        store.add_media(
            Media("images", Images((b"%d" % number, b"x"), ("", "")), *place, position=2 * number)
        )
    store.flush()
    view = MetricsView(store.path)
    assert [item.position for item in view.media()] == [0, 1, 2, 3, 4, 5]
    store.add_media(Media("images", Images((b"again",), ("",)), *place))
    store.flush()
    assert [item.position for item in view.media()] == [0]
