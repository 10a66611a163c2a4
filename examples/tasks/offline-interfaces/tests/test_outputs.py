import socket
import subprocess
import unittest
from pathlib import Path


def reachable(host, port):
    return subprocess.run(
        ["bash", "/app/reachable.sh", host, str(port)], capture_output=True, text=True, timeout=10
    )


class TestTheSandbox(unittest.TestCase):
    def test_there_is_no_interface_but_lo(self):
        self.assertEqual([name for _, name in socket.if_nameindex()], ["lo"])

    def test_no_host_can_be_reached(self):
        # An address kept for documentation: a network would wait for it, none fails at once.
        with self.assertRaises(OSError) as caught:
            socket.create_connection(("192.0.2.1", 80), timeout=1).close()
        self.assertNotIsInstance(caught.exception, TimeoutError, "packets leave the sandbox")


class TestTheWork(unittest.TestCase):
    def test_the_interfaces_are_listed(self):
        names = sorted(name for _, name in socket.if_nameindex())
        self.assertEqual(Path("/app/interfaces.txt").read_text().splitlines(), names)

    def test_an_open_port_is_reachable(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            done = reachable("127.0.0.1", server.getsockname()[1])
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_a_closed_port_is_not(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        done = reachable("127.0.0.1", port)
        self.assertEqual((done.returncode, done.stdout), (1, ""), done.stderr)

    def test_a_far_host_is_not(self):
        self.assertEqual(reachable("192.0.2.1", 80).returncode, 1)
