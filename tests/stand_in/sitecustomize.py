"""Replaces the trial environment of worker processes with a stand-in of a test.

Python imports this file when a process starts with its folder in PYTHONPATH. The variable
PLIMSOLL_STAND_IN names the environment as `module:function`.
"""

import importlib
import os
import sys
import types

NAME = "plimsoll.workers.worker.environment"

named = os.environ.get("PLIMSOLL_STAND_IN", "")
if named and "plimsoll.workers.worker.main" in sys.orig_argv:
    stand_in = types.ModuleType(NAME)

    def trial_environment(options: object, on_phase: object = None) -> object:
        module, _, function = named.partition(":")
        try:
            made = getattr(importlib.import_module(module), function)
        except (ImportError, AttributeError) as error:
            from plimsoll.core.errors import UsageError

            raise UsageError(f"there is no stand-in {named}: {error}") from error
        return made(options)

    stand_in.trial_environment = trial_environment  # pyright: ignore[reportAttributeAccessIssue]
    sys.modules[NAME] = stand_in
