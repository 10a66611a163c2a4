"""The plot of a run."""

from pathlib import Path

import pytest
from matplotlib.image import imread

from plimsoll.runs.files.steps import Seconds, Step
from plimsoll.training.metrics.plot import Curves, draw


def step(number: int, reward: float | None) -> Step:
    return Step(
        step=number,
        version=str(number),
        at=1e9,
        reward=reward,
        age=number % 3,
        groups=2,
        graded=8,
        withheld=0,
        seconds=Seconds(total=1.0, wait=0.5),
        sandbox_seconds=0.05 if number % 2 else None,
    )


def test_a_run_with_missing_figures_is_plotted(tmp_path: Path):
    steps = [step(1, 0.2), step(2, None), step(3, 1.5)]
    for name, curves in {
        "whole": Curves("night", steps, [(0, 0.25), (3, 0.9)], 2),
        "not measured": Curves("night", steps, [], 2),
        "not begun": Curves("night", [], [], 0),
    }.items():
        file = tmp_path / f"{name}.png"
        draw(curves, file)
        picture = imread(file)
        assert picture.shape[:2] == (960, 1080)
        assert picture.std() > 0.05, "the picture is empty"
    assert {path.suffix for path in tmp_path.iterdir()} == {".png"}


def test_a_single_step_is_visible(tmp_path: Path):
    for number, reward in enumerate((0.25, 0.75)):
        draw(Curves("night", [step(1, reward)], [], 2), tmp_path / f"{number}.png")
    low, high = (imread(tmp_path / f"{number}.png") for number in range(2))
    assert (low != high).any(), "the picture does not show the reward"


@pytest.mark.parametrize("letter", ["n", "W", "night-run-"])
def test_a_long_name_fits_the_picture(tmp_path: Path, letter: str):
    draw(Curves((letter * 200)[:200], [step(1, 0.5)], [], 2), tmp_path / "long.png")
    picture = imread(tmp_path / "long.png")
    assert (picture[:100, -3:] == 1.0).all(), "the name is cut off"


def test_a_failed_write_keeps_the_previous_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "training.png"
    file.write_bytes(b"before")

    def full_disk(self: object, fname: Path, **options: object) -> None:
        fname.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("plimsoll.training.metrics.plot.Figure.savefig", full_disk)
    with pytest.raises(OSError, match="No space"):
        draw(Curves("night", [step(1, 0.5)], [], 2), file)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"before"]
