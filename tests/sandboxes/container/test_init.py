"""The init of containers: commands, signals and limits, tested at the level of frames."""

import os
import signal
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from init_client import (
    CREDITED,
    DATA,
    END,
    EXEC,
    KILL,
    KILL_ALL,
    OUT,
    PACK,
    STATUS,
    UNPACK,
    Init,
    fields,
    started,
)

WINDOW = 262_144
FORGE = """
import ctypes, struct
info = struct.pack("iii4xiI", 15, 0, -1, 0, 0).ljust(128, b"\\0")
syscall = {"x86_64": 129, "aarch64": 138}[__import__("os").uname().machine]
print(ctypes.CDLL(None).syscall(syscall, 1, 15, info))
"""
FORK_CHAINS = (
    "for i in 1 2 3 4 5 6 7 8; do perl -e 'for (1..1500) { fork and exit }'; done; sleep 60"
)
"""Eight chains of processes that fork faster than they can be listed. They are bounded: a busy host
reaps them late, and other tests need process ids too."""


@pytest.fixture
def init(tmp_path: Path) -> Iterator[Init]:
    with started(tmp_path) as running:
        yield running


def _memory(init: Init) -> int:
    """The resident memory of init in bytes."""
    lines = Path(f"/proc/{init.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) * 1024


def test_a_command_reports_its_exit(init: Init):
    assert init.run("echo out; echo err >&2; exit 7").words == {"exit": "7"}
    assert init.run("kill -11 $$").words == {"signal": "11"}
    done = init.run("echo out; echo err >&2")
    assert (done.out, done.err) == (b"out\n", b"err\n")


def test_argv_and_environment_are_passed_unchanged(init: Init):
    words = ["a b", "", "$HOME", "ü\nx"]
    number = init.begin("printf", "%s|", *words, env=["A=1"])
    assert init.until_end(number).out.decode() == "".join(f"{w}|" for w in words)
    assert init.run("echo $A $PATH", env=["A=x", "PATH=/usr/bin:/bin"]).out == b"x /usr/bin:/bin\n"


def test_an_unrunnable_command_has_the_exit_code_of_a_shell(init: Init):
    for argv, code in ((["no-such"], "127"), (["/etc/passwd"], "126"), (["/no/such"], "127")):
        done = init.until_end(init.begin(*argv))
        assert done.words == {"exit": code}
        assert argv[0].encode() in done.err
    done = init.until_end(init.begin("true", cwd="/no/folder"))
    assert done.words == {"exit": "126"}
    assert done.err == b"plimsoll: /no/folder: No such file or directory\n"


def test_a_too_long_argv_is_a_failed_command(init: Init):
    done = init.until_end(init.begin("echo", *(["x" * 100_000] * 80)))
    assert done.words == {"exit": "126"}
    assert b"Argument list too long" in done.err
    assert init.said("echo on") == "on\n"


def test_requests_of_any_size_are_read(init: Init):
    plain = len(fields("", "/", "root", "2", "printenv", "C", "A=", "B=", "C="))
    for size in (262_133, 262_134, 262_135, 262_136, 262_144, 300_000):
        left = size - plain - 100_000
        env = [f"A={'a' * 100_000}", f"B={'b' * (left // 2)}", f"C={'c' * (left - left // 2)}"]
        first = init.begin("true")  # so that the next one does not start at the start of the buffer
        number = init.begin("printenv", "C", env=env)
        ends = init.until_ends(first, number)
        assert ends[number].out == env[2][2:].encode() + b"\n"


def test_a_request_may_arrive_byte_by_byte(init: Init):
    payload = fields("s", "/", "root", "1", "echo on")
    for byte in struct.pack("<IBI", len(payload), EXEC, 1000) + payload:
        os.write(init.process.stdin.fileno(), bytes([byte]))  # type: ignore[union-attr]
    assert init.until_end(1000).out == b"on\n"


def test_an_invalid_request_gets_an_error(init: Init):
    for payload in (b"", b"\1", fields("s", "/"), fields("", "/", "root", "9", "true")):
        assert "error" in init.until_end(init.ask(EXEC, payload)).words
    assert "error" in init.until_end(init.ask(99)).words
    assert init.said("echo on") == "on\n"


def test_an_oversized_frame_ends_init(init: Init):
    os.write(init.process.stdin.fileno(), b"\xff\xff\xff\xff\1\0\0\0\0")  # type: ignore[union-attr]
    assert init.process.wait(30) == 3


def test_users_and_groups_come_from_the_sandbox(init: Init):
    done = init.run("id -u; id -g; id -G; echo $HOME $USER", user="nobody")
    assert done.out == b"65534\n65534\n65534 100\n/ nobody\n"
    assert init.run("id -u; id -g", user="12:34").out == b"12\n34\n"
    assert "'zz'" in init.run("true", user="zz").words["nouser"]
    assert "'zz'" in init.run("true", user="root:zz").words["nouser"]


def test_another_user_may_open_its_streams_by_name(init: Init):
    done = init.run("echo out > /dev/stdout; cat < /dev/fd/0", user="nobody", data=b"in")
    assert (done.out, done.err) == (b"out\nin", b"")


def test_input_is_acknowledged_as_it_is_consumed(init: Init):
    number = init.begin("sleep 0.5; cat >/dev/null", flags="s")
    sent = 0
    while sent < WINDOW:
        init.send(DATA, number, b"x" * 65_536)
        sent += 65_536
    kind, _, payload = init.frame()
    assert kind == CREDITED
    assert int.from_bytes(payload, "little") < WINDOW  # the size of a pipe; the rest waits
    init.send(DATA, number)
    done = init.until_end(number)
    assert done.words == {"exit": "0"}
    assert done.credit + int.from_bytes(payload, "little") == WINDOW


def test_input_beyond_the_credit_ends_only_its_command(init: Init):
    other = init.begin("sleep", "60")
    number = init.begin("sleep", "60")
    for _ in range(8):
        init.send(DATA, number, b"x" * 65_536)
    assert "input" in init.until_end(number).words["error"]
    assert init.request(STATUS)["processes"] == "2"  # the other's runner and command
    init.send(KILL, other)
    assert init.until_end(other).words == {"signal": "9"}


def test_unread_input_is_dropped_and_acknowledged(init: Init):
    script = "exec 0<&-; echo closed; until [ -e /tmp/go ]; do sleep 0.05; done"
    number = init.begin(script, flags="s")
    assert init.frame() == (OUT, number, b"closed\n")
    init.send(DATA, number, b"x" * 65_536)
    done = init.until_ends(number, init.begin("touch", "/tmp/go"))[number]
    assert (done.words, done.credit) == ({"exit": "0"}, 65_536)


def test_frames_for_unknown_numbers_are_dropped(init: Init):
    for number in (77, 0x80000001):
        init.send(DATA, number, b"x" * 65_536)
        init.send(DATA, number)
        init.send(KILL, number)
        init.send(10, number, b"\1\0\0\0")
        init.send(11, number)
    assert init.silent()
    assert init.said("echo on") == "on\n"


def test_all_processes_of_a_killed_command_are_gone_at_its_end(init: Init):
    for script in ("sleep 60 & (setsid sleep 60 &) ; sleep 60", "kill -STOP $PPID; sleep 60"):
        number = init.begin(script, flags="s")
        time.sleep(0.2)
        init.send(KILL, number)
        init.send(KILL, number)
        assert init.until_end(number).words == {"signal": "9"}
        assert init.request(STATUS)["processes"] == "0"


def test_a_fork_bomb_is_killed_completely(init: Init):
    number = init.begin(FORK_CHAINS, flags="s")
    time.sleep(0.3)
    init.send(KILL, number)
    assert init.until_end(number).words == {"signal": "9"}
    assert init.request(STATUS)["processes"] == "0"
    assert init.said("echo on") == "on\n"


def test_other_requests_are_served_during_a_kill(init: Init):
    numbers = [init.begin(FORK_CHAINS, flags="s"), init.begin("sleep 0.5; echo on", flags="s")]
    time.sleep(0.2)
    init.send(KILL, numbers[0])
    ends = init.until_ends(*numbers)
    assert ends[numbers[1]].words in ({"exit": "0"}, {"signal": "9"})
    assert init.request(KILL_ALL) == {"done": "1"}


def test_kill_all_ends_every_request(init: Init):
    numbers = [init.begin("sleep", "60") for _ in range(20)]
    numbers.append(init.ask(UNPACK, fields("/x")))
    last = init.ask(KILL_ALL)
    ends = init.until_ends(*numbers, last)
    assert all(ends[number].words == {"signal": "9"} for number in numbers)
    assert ends[last].words == {"done": "1"}
    status = init.request(STATUS)
    assert (status["processes"], status["oom_kills"]) == ("0", "")


def test_a_status_reports_the_disk(init: Init):
    status = init.request(STATUS)
    there = init.said("stat -f -c '%b %f %a %d %S' /").split()
    blocks, free, available, files, size = map(int, there)
    assert int(status["disk_size"]) == blocks * size
    # Other processes write to it, too.
    assert abs(int(status["disk_free"]) - free * size) < 1 << 30
    assert abs(int(status["disk_available"]) - available * size) < 1 << 30
    assert abs(int(status["disk_files"]) - files) < 100_000
    assert status["disk_as_root"] == "0"  # only an overlay writes as the user who mounted it


def test_a_background_process_may_print_after_the_end_of_its_command(init: Init):
    script = "(sleep 0.2; seq 50000; echo ok > /tmp/ok) & echo up"
    assert init.said(script) == "up\n"
    assert init.said("while [ ! -e /tmp/ok ]; do sleep 0.05; done; echo seen") == "seen\n"


def test_unread_output_is_not_buffered(init: Init):
    numbers = [init.begin("yes", "x" * 500) for _ in range(8)]
    numbers.append(init.ask(PACK, fields("/usr/bin")))
    time.sleep(1.5)
    assert _memory(init) < 8 << 20
    # It continues to serve: a request is answered as soon as the host reads.
    status = init.ask(STATUS)
    ends = init.until_ends(status)
    assert ends[status].words["processes"] == "17"
    assert sum(len(one.out) for one in ends.values()) < 4 << 20
    for number in numbers:
        init.send(KILL, number)
    assert all(one.words for one in init.until_ends(*numbers).values())


def test_requests_of_a_host_that_does_not_read_are_not_buffered(init: Init):
    os.set_blocking(init.process.stdin.fileno(), False)  # type: ignore[union-attr]
    sent = 0
    with pytest.raises(BlockingIOError):
        while sent < 5_000_000:
            init.ask(STATUS)
            sent += 1
    assert _memory(init) < 8 << 20


def test_output_is_fast(init: Init):
    began = time.monotonic()
    number = init.begin("head", "-c", "256M", "/dev/zero")
    total, kind = 0, OUT
    while kind != END:
        kind, _, payload = init.frame()
        total += len(payload) if kind == OUT else 0
    assert total == 256 << 20
    assert total / (time.monotonic() - began) > 10 << 20
    assert number


def test_streams_of_many_commands_do_not_mix(init: Init):
    numbers = [init.begin(f"cat; echo {n}; echo {n} >&2", flags="s") for n in range(40)]
    for number in numbers:
        init.send(DATA, number, b"in ")
        init.send(DATA, number)
    ends = init.until_ends(*numbers)
    for n, number in enumerate(numbers):
        assert (ends[number].out, ends[number].err) == (f"in {n}\n".encode(), f"{n}\n".encode())


def test_the_end_of_the_stream_kills_everything(init: Init, tmp_path: Path):
    init.said("sleep 60 >/dev/null 2>&1 & setsid sleep 61 >/dev/null 2>&1 & true")
    init.begin("yes")
    inside = Path(f"/proc/{init.pid}")
    init.process.stdin.close()  # type: ignore[union-attr]
    assert init.process.wait(30) == 0
    assert not inside.exists()


def test_an_init_with_blocked_output_sees_the_end_of_the_stream(init: Init):
    init.begin("yes")
    time.sleep(0.5)
    init.process.stdin.close()  # type: ignore[union-attr]
    assert init.process.wait(30) == 0


def test_signals_from_inside_do_not_end_init(init: Init):
    for name in ("KILL", "TERM", "INT", "STOP", "SEGV", "HUP", "CHLD", "PIPE", "USR1", "RTMIN"):
        init.run(f"kill -{name} 1; kill -{name} 1")
        assert init.said("echo on") == "on\n"


def test_a_forged_sender_does_not_end_init(init: Init):
    number = init.begin("python3", "-c", FORGE)
    assert init.until_end(number).out == b"0\n"  # it was sent
    assert init.said("echo on") == "on\n"


def test_sigterm_ends_init_at_once(init: Init):
    os.kill(init.pid, signal.SIGTERM)
    assert init.process.wait(8) == 0  # Docker sends SIGKILL after 10 s


def test_processes_in_the_sandbox_cannot_read_inits_descriptors(init: Init):
    for process in ("1", "$PPID"):  # init, and the runner, which has the report open
        at = f"/proc/{process}"
        done = init.run(f"id -u; readlink {at}/fd/3; cat {at}/mem; cat {at}/environ; ls {at}/cwd/")
        assert done.out == b"0\n"
        assert done.err.count(b"Permission denied") == 3  # readlink prints nothing


def test_a_command_inherits_only_its_three_streams(init: Init):
    numbers = [init.begin("sleep", "60") for _ in range(5)]
    assert init.said("ls /proc/self/fd | tr '\\n' ' '") == "0 1 2 3 "  # 3 is the folder's own
    assert "Seccomp" in init.said("grep -E 'SigIgn|SigBlk|NoNewPrivs|Seccomp:' /proc/self/status")
    masks = init.said("grep -E 'SigIgn|SigBlk' /proc/self/status").split()
    assert masks[1::2] == ["0000000000000000"] * 2
    assert len(numbers) == 5


def test_a_command_gets_inits_original_limit_of_open_files(tmp_path: Path):
    with started(tmp_path, wrap="prlimit --nofile=333:4444") as init:
        assert init.said("ulimit -Sn; ulimit -Hn") == "333\n4444\n"


def test_many_commands_leak_no_descriptors_and_no_memory(init: Init):
    init.said("true")
    folder = Path(f"/proc/{init.pid}/fd")
    before = len(list(folder.iterdir())), _memory(init)
    for _ in range(300):
        init.said("true")
    assert len(list(folder.iterdir())) == before[0]
    assert _memory(init) < before[1] + (1 << 20)


def test_the_oom_killer_prefers_commands_to_init(init: Init):
    assert init.said("cat /proc/self/oom_score_adj") == "500\n"
    assert Path(f"/proc/{init.pid}/oom_score_adj").read_text() != "500\n"


def test_init_refuses_to_run_unless_it_is_pid_1(tmp_path: Path, init: Init):
    number = init.begin("/.plimsoll/init")
    done = init.until_end(number)
    assert done.words == {"exit": "2"}
    assert b"pid 1" in done.err
