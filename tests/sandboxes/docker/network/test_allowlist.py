"""The hosts that an allowlist permits, as text and as addresses."""

from ipaddress import ip_address

import pytest

from plimsoll.sandboxes.docker.network.allowlist import Allowlist, parse_host


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ("files.example", "files.example"),
        ("Files.Example", "fILES.eXAMPLE"),
        ("files.example.", "files.example"),
        ("files.example", "files.example."),
        ("*.example", "a.example"),
        ("*.example", "a.b.example"),
        ("*.example.", "a.example."),
        ("xn--bcher-kva.example", "XN--bcher-kva.example"),
        ("10.1.2.3", "10.1.2.3"),
        ("10.1.2.3", "10.1.2.3."),
        ("10.1.0.0/16", "10.1.2.3"),
        ("10.1.2.3/16", "10.1.9.9"),
        ("10.1.2.3", "::ffff:10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8::/32", "2001:DB8::1"),
        ("2001:db8::1", "2001:db8:0:0:0:0:0:1"),
        ("127.0.0.0/8", "127.0.0.1"),
        ("169.254.169.254", "169.254.169.254"),
        ("::1", "::1"),
    ],
)
def test_listed_hosts_are_allowed(listed, asked):
    assert Allowlist([listed]).allows(parse_host(asked))


@pytest.mark.parametrize(
    ("listed", "asked"),
    [
        ("files.example", "evil.example"),
        ("files.example", "files.example.evil"),
        ("files.example", "xfiles.example"),
        ("files.example", "a.files.example"),
        ("*.example", "example"),
        ("*.files.example", "xfiles.example"),
        ("*.files.example", "files.example.evil"),
        ("10.1.2.3", "10.1.2.4"),
        ("10.1.0.0/16", "10.2.0.1"),
        ("2001:db8::/32", "2001:db9::1"),
        ("0.0.0.0/0", "127.0.0.1"),
        ("0.0.0.0/0", "169.254.169.254"),
        ("0.0.0.0/0", "0.0.0.0"),
        ("0.0.0.0/0", "::ffff:127.0.0.1"),
        ("0.0.0.0/0", "2001:db8::1"),
        ("::/0", "::1"),
        ("::/0", "::"),
        ("::/0", "fe80::1"),
        ("::/0", "10.1.2.3"),
        ("localhost", "127.0.0.1"),
    ],
)
def test_unlisted_hosts_are_refused(listed, asked):
    assert not Allowlist([listed]).allows(parse_host(asked))


@pytest.mark.parametrize(
    "asked",
    [
        "",
        ".",
        "a..b",
        "0x7f.1",
        "2130706433",
        "0x7f000001",
        "0177.0.0.1",
        "127.1",
        "1.2.3.4.5",
        "files.example.0x1",
        "bücher.example",
        "files.example%2eevil",
        "files.example@evil",
        "files example",
        "files.example\tevil",
        "fe80::1%eth0",
        "::g",
        "a" * 64 + ".example",
        ".".join(["abcdefgh"] * 40),
    ],
)
def test_unusual_spellings_are_invalid(asked):
    with pytest.raises(ValueError):
        parse_host(asked)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "127.9.9.9",
        "0.0.0.0",
        "::1",
        "::",
        "fe80::1",
        "169.254.169.254",
        "::ffff:127.0.0.1",
        "100.100.100.200",
        "fd00:ec2::254",
    ],
)
def test_a_name_may_not_resolve_to_a_guarded_address_unless_listed(address):
    assert not Allowlist(["files.example"]).may_resolve_to(ip_address(address))
    assert not Allowlist(["files.example", "0.0.0.0/0", "::/0"]).may_resolve_to(ip_address(address))
    assert Allowlist(["files.example", address]).may_resolve_to(ip_address(address))


def test_a_name_may_resolve_to_any_other_address():
    assert Allowlist(["files.example"]).may_resolve_to(ip_address("10.1.2.3"))
    assert Allowlist(["files.example"]).may_resolve_to(ip_address("2001:db8::1"))
