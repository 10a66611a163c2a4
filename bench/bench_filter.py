"""The cost of the system call filter of local sandboxes, compared with calls without it.

Each round measures every side once, in CPU time, so that a busy machine affects all alike.
"""

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from plimsoll.sandboxes.local.inside import seccomp

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv) {
    long calls = atol(argv[1]), number = argv[2][0] == 'p' ? SYS_getppid : SYS_prlimit64;
    struct timespec from, to;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
    for (long i = 0; i < calls; i++)
        syscall(number, 0, 7, 0, 0);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
    printf("%f\\n", ((to.tv_sec - from.tv_sec) * 1e9 + to.tv_nsec - from.tv_nsec) / calls);
}
"""
CALLS = {"p": "getppid: always allowed", "l": "prlimit64: the filter checks its arguments"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=1_000_000)
    options = parser.parse_args()
    program = seccomp.compile_filter(frozenset(), os.uname().machine)
    with tempfile.TemporaryDirectory() as folder:
        loop = str(Path(folder, "loop"))
        subprocess.run(
            ["cc", "-O2", "-x", "c", "-o", loop, "-"], input=SOURCE, text=True, check=True
        )
        table = Table("call", "without filter (ns)", "with filter (ns)", "difference (ns)")
        for call, title in CALLS.items():
            sides: dict[bool, list[float]] = {False: [], True: []}
            for _ in range(options.rounds):
                for filtered, figures in sides.items():
                    figures.append(_run([loop, str(options.calls), call], program, filtered))
            # The quickest round is the least disturbed one.
            without, with_filter = min(sides[False]), min(sides[True])
            table.add_row(
                title, f"{without:.1f}", f"{with_filter:.1f}", f"{with_filter - without:+.1f}"
            )
    console = Console()
    console.print(table)
    installs = [_install_seconds(program) for _ in range(options.rounds)]
    console.print(
        f"installing the filter, once per sandbox: {statistics.median(installs) * 1e6:.0f} µs"
    )


def _run(argv: list[str], program: bytes, filtered: bool) -> float:
    def install() -> None:
        if filtered:
            seccomp.install(program)

    done = subprocess.run(argv, preexec_fn=install, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _install_seconds(program: bytes) -> float:
    """The time to install the filter, in a separate process."""
    read_end, write_end = os.pipe()
    if not os.fork():
        started = time.perf_counter()
        seccomp.install(program)
        os.write(write_end, str(time.perf_counter() - started).encode())
        os._exit(0)
    os.wait()
    os.close(write_end)
    try:
        return float(os.read(read_end, 64))
    finally:
        os.close(read_end)


if __name__ == "__main__":
    main()
