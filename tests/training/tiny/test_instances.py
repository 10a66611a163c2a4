"""The demo's tasks equal the generator's output, and sets share no task."""

from pathlib import Path
from random import Random

from plimsoll.training.tiny.instances import (
    ADJECTIVES,
    KINDS,
    NOUNS,
    SETTINGS,
    demo_tasks,
    draw_instances,
    other_instances,
)
from plimsoll.training.tiny.task_folders import write_demo

DEMO = Path(__file__).parents[3] / "examples" / "demo"
TASKS = demo_tasks()


def files_in(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".plimsoll" not in path.parts
    }


def test_the_folders_of_the_demo_match_the_generator(tmp_path):
    write_demo(tmp_path)
    made = files_in(tmp_path)
    committed = files_in(DEMO)
    by_hand = {path for path in committed if path.startswith("tasks/needs-internet/")}
    assert by_hand
    assert made == {path: data for path, data in committed.items() if path not in by_hand}


def test_each_set_has_equally_many_tasks_of_each_kind():
    for tasks, each in ((TASKS.training, 5), (TASKS.held_out, 4)):
        kinds = [task.kind for task in tasks]
        assert {kind: kinds.count(kind) for kind in KINDS} == dict.fromkeys(KINDS, each)


def test_no_two_tasks_of_the_demo_share_an_instruction_or_a_solution():
    tasks = [*TASKS.training, *TASKS.held_out]
    for content in (
        {task.name for task in tasks},
        {task.instruction for task in tasks},
        {task.commands for task in tasks},
        {task.commands[-1] for task in tasks},
    ):
        assert len(content) == len(tasks)


def test_the_pretraining_data_has_no_task_of_the_demo():
    demo = [*TASKS.training, *TASKS.held_out]
    texts = {text for task in demo for text in (task.instruction, *task.commands)}
    for other in other_instances(Random(0), 20_000):
        assert texts.isdisjoint((other.instruction, *other.commands))


def test_the_searched_line_is_the_only_one_with_its_word():
    words = {*NOUNS, *ADJECTIVES, *SETTINGS}
    assert not [(a, b) for a in NOUNS for b in words if a != b and a in b]


def test_the_same_seed_draws_the_same_instances():
    assert list(draw_instances(Random(3), 40)) == list(draw_instances(Random(3), 40))
    assert list(draw_instances(Random(3), 40)) != list(draw_instances(Random(4), 40))
