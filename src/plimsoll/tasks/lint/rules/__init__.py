"""All lint rules, in the order in which findings of one location are shown."""

from plimsoll.tasks.lint.rule import Rule
from plimsoll.tasks.lint.rules import (
    dockerfiles,
    fetches,
    grader_imports,
    grader_scripts,
    rewards,
    task_config,
)

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    fetches.FETCH_THEN_ZERO,
    fetches.CLONE_AT_BUILD,
    fetches.FETCH_WITHOUT_NETWORK,
    fetches.PIPE_TO_SHELL,
    fetches.SOURCE_OF_FETCHED_FILE,
    rewards.EXIT_CODE_THROWN_AWAY,
    rewards.REWARD_ONLY_AT_END,
    rewards.REWARD_PRE_SET,
    rewards.INVALID_REWARD,
    rewards.NEGATIVE_REWARD,
    rewards.MISSPELT_REWARD_FILE,
    rewards.NO_REWARD,
    grader_imports.GRADER_IMPORT_MISSING,
    grader_scripts.TESTS_DO_NOT_PARSE,
    grader_scripts.MISSING_TEST_SCRIPT,
    grader_scripts.MISSING_TEST_FILE,
    grader_scripts.NO_TESTS_COLLECTED,
    grader_scripts.CRLF_LINE_ENDINGS,
    grader_scripts.NO_SHEBANG,
    task_config.UNKNOWN_KEY,
    task_config.UNENFORCED_LIMIT,
    task_config.NOT_GIVEN,
    task_config.NO_ARTIFACTS,
    task_config.COMPOSE_FILE_NAME,
    dockerfiles.INVALID_DOCKERFILE,
    dockerfiles.UNPINNED_CLONE,
    dockerfiles.FUTURE_COMMITS,
    grader_scripts.SET_UP_ALWAYS_FAILS,
    grader_scripts.GRADER_SLEEPS,
)
