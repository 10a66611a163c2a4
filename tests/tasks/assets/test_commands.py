"""The error of a failed program is the line of its output with the actual error."""

import sys
from pathlib import Path

import pytest

from plimsoll.core.errors import AssetError
from plimsoll.tasks.assets.commands import run_command

NO_VERSION = """npm error code ETARGET
npm error notarget No matching version found for @openai/codex@99.99.99.
npm error notarget In most cases you are requesting a package version that doesn't exist.
"""
NO_REGISTRY = """npm error code ECONNREFUSED
npm error syscall connect
npm error errno ECONNREFUSED
npm error FetchError: request to http://127.0.0.1:9/x failed, reason: connect ECONNREFUSED
npm error     at ClientRequest.<anonymous> (index.js:130:14)
"""


@pytest.mark.parametrize(
    ("stderr", "message"),
    [
        (NO_VERSION, "notarget No matching version found for @openai/codex@99.99.99."),
        (NO_REGISTRY, "FetchError: request to http://127.0.0.1:9/x failed, reason: connect "),
        ("npm error code EUSAGE\n", "code EUSAGE"),
        ("hint: try\nfatal: repository not found\nhint: again\n", "repository not found"),
        ("ERROR: No matching distribution found for x\n", "No matching distribution found for x"),
        ("one\ntwo\n", "two"),
    ],
)
def test_the_error_is_the_line_with_the_actual_error(tmp_path: Path, stderr: str, message: str):
    code = f"import sys; sys.stderr.write({stderr!r}); sys.exit(1)"
    with pytest.raises(AssetError) as error:
        run_command([sys.executable, "-c", code], cwd=tmp_path)
    assert str(error.value).startswith(message)
