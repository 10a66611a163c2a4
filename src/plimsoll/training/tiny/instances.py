"""Four kinds of tasks, made of words and numbers: write a file, find a line in a log, edit a
config, fix a failing test.

An instance has the instruction, the files, the commands of the solution, and the resulting file.
All of it follows from the random numbers that it is drawn with. No two sets of instances have an
instruction or a command in common.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from random import Random

__all__ = ["KINDS", "DemoTasks", "Instance", "demo_tasks", "draw_instances", "other_instances"]

NOUNS = (
    "anchor", "beacon", "berth", "boat", "bow", "bridge", "buoy", "cabin", "cable", "canal",
    "cargo", "chain", "chart", "coast", "crane", "crew", "deck", "dock", "ferry", "flag",
    "fog", "gale", "gull", "harbor", "hull", "island", "keel", "lamp", "lantern", "lock",
    "mast", "oar", "pier", "pilot", "pump", "quay", "reef", "rope", "rudder", "sail",
    "shell", "shore", "storm", "tide", "tug", "wave", "wharf", "winch",
)  # fmt: skip
ADJECTIVES = (
    "blue", "bright", "broad", "calm", "cold", "dark", "deep", "early", "green", "heavy",
    "late", "light", "long", "old", "quiet", "red", "short", "small", "warm", "white",
)  # fmt: skip
SETTINGS = (
    "angle", "color", "depth", "height", "level", "limit", "mode", "port", "rate", "speed",
    "steps", "width",
)  # fmt: skip
NUMBERS = range(10, 40)
OPERATORS = {"sum": "+", "difference": "-", "product": "*"}


@dataclass(frozen=True, slots=True)
class Instance:
    """One task, before it is written to a folder."""

    kind: str
    name: str
    """The name of its folder."""
    instruction: str
    files: dict[str, str]
    """The content of the working folder."""
    commands: tuple[str, ...]
    """The solution: one answer each; the last one does the work."""
    target: str
    """The file that the last command makes or changes; all others stay unchanged."""
    result: str
    """The content of `target` after the last command."""
    test: str | None = None
    """A test file that must pass, whatever is in `target`; without it, `target` must have exactly
    this `result`."""

    @property
    def texts(self) -> frozenset[str]:
        """The texts that distinguish it from other instances."""
        return frozenset((self.name, self.instruction, *self.commands))


def write_file(random: Random) -> Instance:
    """Write a line of text to a new file."""
    name, noun = random.sample(NOUNS, 2)
    text = f"{random.choice(ADJECTIVES)} {noun} {random.choice(NUMBERS)}"
    return Instance(
        kind="write",
        name=f"write-{name}",
        instruction=f"Write the line `{text}` to `{name}.txt`.",
        files={},
        commands=(f"echo {text} > {name}.txt",),
        target=f"{name}.txt",
        result=f"{text}\n",
    )


def find_line(random: Random) -> Instance:
    """Copy a line of a log to a file."""
    name, target, *subjects = random.sample(NOUNS, 8)
    lines = [
        f"{hour:02}:{random.randrange(60):02} {subject} {random.choice(ADJECTIVES)}\n"
        for hour, subject in enumerate(subjects, start=6)
    ]
    subject, line = random.choice([*zip(subjects, lines, strict=True)])
    return Instance(
        kind="find",
        name=f"find-{name}",
        instruction=f"Put the line about `{subject}` of `{name}.log` into `{target}.txt`.",
        files={f"{name}.log": "".join(lines)},
        commands=(f"grep {subject} {name}.log > {target}.txt",),
        target=f"{target}.txt",
        result=line,
    )


def edit_config(random: Random) -> Instance:
    """Change a value in a config."""
    name = random.choice(NOUNS)
    values = {key: random.choice(NUMBERS) for key in random.sample(SETTINGS, 4)}
    key = random.choice(tuple(values))
    value = random.choice([number for number in NUMBERS if number != values[key]])
    return Instance(
        kind="edit",
        name=f"edit-{name}",
        instruction=f"Set `{key}` to `{value}` in `{name}.conf`.",
        files={f"{name}.conf": config(values)},
        commands=(f"sed -i 's/^{key} .*/{key} = {value}/' {name}.conf",),
        target=f"{name}.conf",
        result=config({**values, key: value}),
    )


def config(values: dict[str, int]) -> str:
    return "".join(f"{key} = {value}\n" for key, value in values.items())


def fix_test(random: Random) -> Instance:
    """Fix a function that contradicts its docstring; the agent must read it first."""
    name = random.choice(NOUNS)
    word, wrong = random.sample(tuple(OPERATORS), 2)
    # Operands for which all operators give different results.
    first, second = random.randrange(5, 10), random.randrange(3, 5)
    expected = {"sum": first + second, "difference": first - second, "product": first * second}
    return Instance(
        kind="fix",
        name=f"fix-{name}",
        instruction=f"`test_{name}.py` fails. Mend `{name}.py`.",
        files={
            f"{name}.py": function(name, word, OPERATORS[wrong]),
            f"test_{name}.py": f"from {name} import {name}\n\n"
            f"assert {name}({first}, {second}) == {expected[word]}\n"
            f'print("ok: {name}({first}, {second}) is {expected[word]}")\n',
        },
        commands=(
            f"cat {name}.py",
            f"sed -i 's/return .*/return a {OPERATORS[word]} b/' {name}.py",
        ),
        target=f"{name}.py",
        result=function(name, word, OPERATORS[word]),
        test=f"test_{name}.py",
    )


def function(name: str, word: str, operator: str) -> str:
    return f'def {name}(a, b):\n    """The {word} of a and b."""\n    return a {operator} b\n'


KINDS: dict[str, Callable[[Random], Instance]] = {
    "write": write_file,
    "find": find_line,
    "edit": edit_config,
    "fix": fix_test,
}


def draw_instances(
    random: Random, number: int, *, without: Collection[str] = ()
) -> Iterator[Instance]:
    """Draw instances, cycling through the kinds; none has a text of `without`."""
    makers = tuple(KINDS.values())
    for index in range(number):
        make = makers[index % len(makers)]
        instance = make(random)
        while not instance.texts.isdisjoint(without):
            instance = make(random)
        yield instance


SEED = 53
TRAINING, HELD_OUT = 20, 16


@dataclass(frozen=True, slots=True)
class DemoTasks:
    """The tasks of the demo."""

    training: tuple[Instance, ...]
    held_out: tuple[Instance, ...]

    @property
    def texts(self) -> frozenset[str]:
        """The texts that no other instance may have."""
        tasks = (*self.training, *self.held_out)
        return frozenset(text for task in tasks for text in (task.instruction, *task.commands))


def demo_tasks() -> DemoTasks:
    random = Random(SEED)
    taken: set[str] = set()
    chosen: list[Instance] = []
    while len(chosen) < TRAINING + HELD_OUT:
        # Four at a time, one of each kind, so that each set has the same number of each.
        for instance in draw_instances(random, 4, without=taken):
            taken |= instance.texts
            chosen.append(instance)
    return DemoTasks(tuple(chosen[:TRAINING]), tuple(chosen[TRAINING:]))


def other_instances(random: Random, number: int) -> Iterator[Instance]:
    """Instances outside the demo: the training data of the tiny policy."""
    return draw_instances(random, number, without=demo_tasks().texts)
