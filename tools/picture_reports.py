"""Take the pictures of reports in docs/images: demonstrations run, Chromium shows their pages.

``python -m tools.picture_reports [NAME ...]`` takes all of them, or those of some demonstrations;
``NAME=FILE`` takes that of a report that is already there.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from consilience.cli.demo import DEMOS

IMAGES = Path(__file__).resolve().parents[1] / "docs" / "images"
PROGRAM = Path(sys.executable).with_name("consilience")
WIDTH, HEIGHT = 1000, 1250
MOST_BYTES = 120_000


def picture(report: Path, image: Path) -> None:
    """Save the beginning of a report, from the answer on: the gallery says what was asked."""
    browser = shutil.which("chromium")
    if browser is None:
        raise SystemExit("no chromium on this machine: install Debian's package of that name")
    taken, shown = image.with_suffix(".png"), report.with_name("shown.html")
    style = "<style>#question, nav { display: none }</style></head>"
    shown.write_text(report.read_text("utf-8").replace("</head>", style, 1), encoding="utf-8")
    size = f"--window-size={WIDTH},{HEIGHT}"
    flags = ["--headless", "--no-sandbox", "--hide-scrollbars", "--disable-gpu", size]
    subprocess.run(
        [browser, *flags, f"--screenshot={taken}", shown.resolve().as_uri()],
        check=True,
        capture_output=True,
        timeout=120,
    )
    for quality in range(80, 20, -5):
        Image.open(taken).convert("RGB").save(image, "WEBP", quality=quality, method=6)
        if image.stat().st_size <= MOST_BYTES:
            break
    taken.unlink()


def main(arguments: list[str] | None = None) -> int:
    """Run demonstrations in a folder that goes away, and keep the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    for name in parser.parse_args(arguments).names or DEMOS:
        name, _, report = name.partition("=")
        if report:
            picture(Path(report), IMAGES / f"report-{name}.webp")
            continue
        with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
            subprocess.run([PROGRAM, "demo", name, "-q"], check=True, stdout=subprocess.DEVNULL)
            (made,) = Path().rglob("report.html")
            picture(made, IMAGES / f"report-{name}.webp")
        print(f"report-{name}.webp")
    return 0


if __name__ == "__main__":
    sys.exit(main())
