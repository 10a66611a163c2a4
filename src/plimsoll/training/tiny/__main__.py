"""Makes the tiny policy and the tasks of the demo again."""

import argparse
from pathlib import Path

from plimsoll.training.tiny import folder
from plimsoll.training.tiny.recipe import make
from plimsoll.training.tiny.task_folders import write_demo

parser = argparse.ArgumentParser(prog="python -m plimsoll.training.tiny", description=__doc__)
parser.add_argument("folder", type=Path, nargs="?", default=folder(), help="for the policy")
parser.add_argument("--tasks", type=Path, metavar="FOLDER", help="write the demo's tasks instead")
given = parser.parse_args()
if given.tasks is not None:
    write_demo(given.tasks)
else:
    make(given.folder, say=print)
