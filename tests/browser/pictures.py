"""Screenshots for README and docs: written where LOOPWRIGHT_SCREENSHOTS names a folder
(docs/images), else not."""

from __future__ import annotations

import io
import os
from pathlib import Path

from playwright.sync_api import Page

LARGEST = 150_000


def save_picture(page: Page, name: str) -> None:
    """Save what the page shows now; files of the repository are to be small."""
    folder = os.environ.get("LOOPWRIGHT_SCREENSHOTS")
    if not folder:
        return
    from PIL import Image

    # where tests write
    page.evaluate("""() => { document.querySelector(".folder").textContent = "runs"; }""")
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    path = Path(folder, f"{name}.png")
    image.quantize(256, kmeans=2, dither=Image.Dither.NONE).save(path, optimize=True)
    assert path.stat().st_size < LARGEST, f"{path} has {path.stat().st_size} bytes"
