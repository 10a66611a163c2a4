"""Commands of `plimsoll` in the process of the tests, where the package is imported already."""

import contextlib
import io
import tempfile
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from plimsoll.cli.main import main

__all__ = ["run_here"]


def run_here(folder: Path, *args: str) -> CompletedProcess[str]:
    """Run `plimsoll` in a folder."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as ended,
    ):
        patch.chdir(folder)
        patch.setenv("NO_COLOR", "1")
        patch.setattr(tempfile, "tempdir", None)  # found again by TMPDIR
        main(args)
    printed = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return CompletedProcess(args, int(ended.value.code or 0), *printed)
