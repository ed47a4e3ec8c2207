"""Logging of images, histograms, texts and tables: the methods of trainers, and the way from them
to callbacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ..errors import ConfigurationError, public

if TYPE_CHECKING:
    from ..callback import Hook
    from ..metrics.media import Histogram, Images, Media, Table
    from ..metrics.progress import Progress
    from ..metrics.rows import Place
    from ..runtime import Runtime

    # what is logged, the number of its images, and a remark on its values
    Read = tuple[Images | Histogram | Table | str, int, str]


MAX_WAITING = 1000  # items that are logged before training


class LoggedRun(Protocol):
    """The part of a run that logging needs."""

    @property
    def runtime(self) -> Runtime: ...
    @property
    def hooks(self) -> Mapping[str, list[Hook]]: ...
    @property
    def media(self) -> MediaLog: ...
    @property
    def message_names(self) -> Any: ...
    def emit(self, event: str, *args: Any) -> None: ...
    def place(self) -> Place: ...
    def say(self, line: str) -> None: ...


class MediaLog:
    """The media of one run on their way to `on_media` of its callbacks.

    What is logged before training waits for its start, when the callbacks that write it are ready.
    Several items of one name and step are numbered, so that a step that is taken again replaces
    each by itself.
    """

    def __init__(self) -> None:
        self.waiting: list[Media] | None = []  # logged before training; None once it has begun
        self._is_muted = False
        self._step = -1  # of the items that were numbered last
        self._counts: dict[str, int] = {}  # of the items of that step, by name
        # step and counts, as the steps of an epoch ended
        self._before_end: tuple[int, dict[str, int]] = (-1, {})
        self._said: set[str] = set()

    def add(self, run: LoggedRun, name: str, content: Any, count: int) -> None:
        """Give an item to the callbacks, now or when training begins; `count` is the number of its
        images."""
        from ..metrics.media import Media

        update, step, epoch, samples, seconds = run.place()
        if step != self._step:
            self.renumber(step)
        position = self._counts.get(name, 0)
        self._counts[name] = position + count
        media = Media(name, content, update, step, epoch, samples, seconds, time.time(), position)
        if self.waiting is None:
            run.emit("on_media", media)
        elif len(self.waiting) < MAX_WAITING:
            self.waiting.append(media)
            self.say_once(
                run,
                "before",
                f"{name!r} was logged before training: it will be recorded when training starts.",
            )
        else:
            self.say_once(
                run,
                "full",
                f"{name!r} is dropped: {MAX_WAITING} logged items are already waiting for "
                "training to start.",
            )

    def begin(self, run: LoggedRun) -> None:
        """Training begins: give the callbacks what was logged before it."""
        waiting = self.waiting or ()
        self.waiting = None
        if waiting and self.has_listener(run, f"{waiting[0].name!r}"):
            for media in waiting:
                run.emit("on_media", media)

    def take_over(self, earlier: MediaLog) -> None:
        """Go on with what was logged before training, in a run that another one began."""
        self.waiting = list(earlier.waiting or ())

    def count_on(self, step: int, counts: Mapping[str, int]) -> None:
        """Number the items of a step from these numbers on, which were logged before a resume point
        was saved in it."""
        self._step, self._counts = step, dict(counts)

    def end_steps(self, step: int) -> None:
        """Note that an epoch's steps are over; a run resumed in its evaluation logs again what
        comes from here on."""
        self._before_end = step, dict(self._counts) if self._step == step else {}

    def counts_at(self, progress: Progress) -> dict[str, int]:
        """How many items of the current step a resumed run will not log again, by name: those
        before an evaluation, once the steps of an epoch are over."""
        step, counts = self._before_end
        if progress.in_epoch and progress.step == step:
            return counts
        return dict(self._counts) if progress.step == self._step else {}

    def renumber(self, step: int = -1) -> None:
        """Number the items of a step from zero again: it is another step, or the same one taken
        again."""
        self._step = step
        self._counts = {}

    @contextmanager
    def muted(self) -> Iterator[None]:
        """Log nothing in this block: a step is tried out and not taken."""
        before = self._is_muted
        self._is_muted = True
        try:
            yield
        finally:
            self._is_muted = before

    def is_needed(self, run: LoggedRun) -> bool:
        """Whether this process logs what a user's step is logging now."""
        return run.runtime.is_main and not self._is_muted

    def has_listener(self, run: LoggedRun, call: str) -> bool:
        """Whether a callback gets the item, or may get it once training begins; if none does, a
        line says so once."""
        if self.waiting is not None or run.hooks["on_media"]:
            return True
        self.say_once(
            run,
            "nobody",
            f"{call}: this value is not recorded anywhere. {run.message_names.record_media}",
        )
        return False

    def say_once(self, run: LoggedRun, key: str, line: str) -> None:
        """Print a line unless one with this key was printed before."""
        if key not in self._said:
            self._said.add(key)
            run.say(line)


def _log(run: LoggedRun, call: str, name: Any, read: Callable[[str], Read]) -> None:
    """Log a value that `read` returns, where something records it."""
    if not isinstance(name, str) or not name.strip():
        given = repr(name) if isinstance(name, str) else f"of type {type(name).__name__}"
        raise ConfigurationError(
            "media-name",
            f"{call}: the first argument is {given}: give a name first, such as 'samples', and "
            "then the value.",
        )
    full = f"{call}({name!r})"
    if run.media.is_needed(run) and run.media.has_listener(run, full):
        content, count, remark = read(full)
        if remark:
            run.media.say_once(run, f"values of {name}", f"{full}: {remark}")
        run.media.add(run, name, content, count)


def log_files(run: LoggedRun, name: str, paths: Sequence[Path]) -> None:
    """Log PNG files that an interface has written, with their names as captions, where something
    records them."""
    if paths and run.media.is_needed(run) and run.hooks["on_media"]:
        from ..metrics.media import Images

        content = Images(
            tuple(path.read_bytes() for path in paths), tuple(path.stem for path in paths)
        )
        run.media.add(run, name, content, len(paths))


class MediaMethods:
    """The methods of a trainer that log something else than numbers; values belong to the step that
    is under way.

    They may be called anywhere in the program: in steps, in callbacks, in evaluations, before and
    after `train`.
    """

    @property
    def _logged_run(self) -> LoggedRun:
        raise NotImplementedError

    @public
    def log_image(
        self,
        name: str,
        image: Any,
        *,
        caption: str = "",
        value_range: tuple[float, float] | None = None,
    ) -> None:
        """Log an image.

        Args:
            name: The name under which images of several steps are one series.
            image: A tensor or array of shape (C, H, W), (H, W) or (H, W, C) with 1, 3 or 4
                channels, of uint8 or of floats from 0 to 1, or a PIL image.
            caption: A text to show with it.
            value_range: The values that become black and white, such as (-1, 1); values outside are
                cut off.

        Example:
            >>> import torch
            >>> from loopwright import Callback
            >>> class Samples(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_image("noise", torch.rand(3, 8, 8), caption="uniform")
        """

        def read(call: str) -> Read:
            from ..metrics.media import as_images, check_range, read_image

            pixels, bad = read_image(call, image, check_range(call, value_range))
            return as_images([pixels], [str(caption)]), 1, _bad_pixels(bad)

        _log(self._logged_run, "log_image", name, read)

    @public
    def log_images(
        self,
        name: str,
        images: Any,
        *,
        captions: Sequence[str] | None = None,
        value_range: tuple[float, float] | None = None,
    ) -> None:
        """Log several images, which are shown side by side.

        Args:
            name: The name under which images of several steps are one series.
            images: A batch (N, C, H, W), (N, H, W, C) or (N, H, W), a list of images as `log_image`
                takes them, or a dict of images by caption.
            captions: A text for each image.
            value_range: As for `log_image`.

        Example:
            >>> import torch
            >>> from loopwright import Callback
            >>> class Triplets(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         x = torch.rand(3, 8, 8)
            ...         trainer.log_images("pairs", {"input": x, "output": 1 - x, "target": x})
        """

        def read(call: str) -> Read:
            from ..metrics.media import as_images, check_captions, check_range, read_images

            pixels, keys, bad = read_images(call, images, check_range(call, value_range))
            texts = (
                keys if captions is None and keys else check_captions(call, captions, len(pixels))
            )
            return as_images(pixels, texts), len(pixels), _bad_pixels(bad)

        _log(self._logged_run, "log_images", name, read)

    @public
    def log_histogram(
        self,
        name: str,
        values: Any = None,
        *,
        bins: int = 64,
        edges: Any = None,
        counts: Any = None,
    ) -> None:
        """Log how values are distributed; NaN and infinite ones are left out, and a line says so
        once.

        Args:
            name: The name under which histograms of several steps are one series.
            values: A tensor or array of any shape, or a list of numbers.
            bins: The number of equal intervals from the smallest to the largest value.
            edges: Of a histogram that was counted elsewhere: the edges of its intervals.
            counts: The counts between these edges.

        Example:
            >>> from loopwright import Callback
            >>> class Weights(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_histogram("weight", trainer.model.weight)
        """

        def read(call: str) -> Read:
            from ..metrics.media import count_values, read_counts

            if edges is not None or counts is not None or values is None:
                if values is not None:
                    raise ConfigurationError(
                        "histogram-values",
                        f"{call}: pass the values, or edges= and counts=, but not both.",
                    )
                return read_counts(call, edges, counts), 1, ""
            histogram, total, bad = count_values(call, values, bins)
            remark = f"{bad} of {total} values are NaN or infinite and not counted." if bad else ""
            return histogram, 1, remark

        _log(self._logged_run, "log_histogram", name, read)

    @public
    def log_text(self, name: str, text: str) -> None:
        """Log a text, such as a generated sentence.

        Args:
            name: The name under which texts of several steps are one series.
            text: The text.

        Example:
            >>> from loopwright import Callback
            >>> class Sentences(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_text("sample", "once upon a time")
        """

        def read(call: str) -> Read:
            if not isinstance(text, str):
                raise ConfigurationError(
                    "media-type",
                    f"{call}: the value is of type {type(text).__name__}: pass a str, as "
                    "str(value), or use log_table for rows and columns.",
                )
            return text, 1, ""

        _log(self._logged_run, "log_text", name, read)

    @public
    def log_table(self, name: str, rows: Any, columns: Sequence[str] | None = None) -> None:
        """Log a table.

        Args:
            name: The name under which tables of several steps are one series.
            rows: A list of dicts, a dict of columns, rows of values with `columns`, or a frame of
                pandas or polars.
            columns: The names of the columns, where the rows have none; otherwise which of them to
                log.

        Example:
            >>> from loopwright import Callback
            >>> class Errors(Callback):
            ...     def on_epoch_end(self, trainer, metrics):
            ...         trainer.log_table("errors", [["cat", 3], ["dog", 1]], columns=["class", "count"])
        """

        def read(call: str) -> Read:
            from ..metrics.media import read_table

            return read_table(call, rows, columns), 1, ""

        _log(self._logged_run, "log_table", name, read)

    @public
    def log_figure(self, name: str, figure: Any, *, caption: str = "") -> None:
        """Log a figure of matplotlib as an image; it stays open, so close it with
        `plt.close(figure)`.

        Args:
            name: The name under which figures of several steps are one series.
            figure: The figure, or its axes.
            caption: A text to show with it.

        Example:
            >>> from loopwright import Callback
            >>> class Losses(Callback):
            ...     def on_train_end(self, trainer):
            ...         trainer.log_figure("losses", trainer.history.plot())
        """

        def read(call: str) -> Read:
            from ..metrics.media import Images, draw_figure

            return Images((draw_figure(call, figure),), (str(caption),)), 1, ""

        _log(self._logged_run, "log_figure", name, read)


def _bad_pixels(count: int) -> str:
    return f"{count} of its values are NaN or infinite and shown as black." if count else ""
