"""The picture of a run."""

from pathlib import Path

from matplotlib.image import imread

from plimsoll.runs.status import Step
from plimsoll.training.plot import Curves, draw


def step(number: int, reward: float | None) -> Step:
    return Step(
        step=number,
        version=str(number),
        reward=reward,
        age=number % 3,
        groups=2,
        graded=8,
        withheld=0,
        seconds=1.0,
        sandbox_seconds=0.05 if number % 2 else None,
    )


def test_a_run_is_drawn_whatever_is_missing_of_it(tmp_path: Path):
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
        assert picture.std() > 0.05, "it is empty"
    assert {path.suffix for path in tmp_path.iterdir()} == {".png"}
