"""Settings with which the rules could not keep their promises are rejected, with the reason."""

import re

import msgspec
import pytest
from driven_run import settings

from plimsoll.core.errors import UsageError
from plimsoll.ledger.settings import Settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_groups": 0}, "batch_groups is 0; it must be at least 1"),
        ({"max_running": 0}, "max_running is 0; it must be at least 1"),
        ({"depth": -1}, "depth is -1; it must be at least 0"),
        ({"max_staleness": -1}, "max_staleness is -1; it must be at least 0"),
        ({"group_size": 0}, "group_size is 0; it must be at least 1"),
        ({"requeues": -2}, "requeues is -2; it must be at least 0"),
        ({"min_graded": 0}, "min_graded is 0; it must be at least 1"),
        ({"depth": 3, "max_staleness": 2}, "max_staleness must be at least depth"),
        ({"group_size": 8, "max_running": 7}, "max_running must be at least group_size"),
        (
            {"group_policy": "min_graded", "min_graded": 2},
            "min_graded is 2, more than group_size, 1",
        ),
        (
            {"group_size": 99_999_999_999, "max_running": 99_999_999_999},
            "group_size is 99999999999; it must be at most 4096",
        ),
        (
            {"batch_groups": 99_999_999_999},
            "the rollouts that may be alive at once, is 199,999,999,998; it must be at most",
        ),
        (
            {"depth": 4096, "max_staleness": 4096, "batch_groups": 4096},
            "batch_groups is 4096, depth is 4096 and group_size is 1:",
        ),
        ({"group_policy": "maybe"}, "group_policy is 'maybe': choose complete, min_graded, void"),
    ],
)
def test_contradictory_settings_are_rejected_with_the_reason(changes, message):
    with pytest.raises(UsageError, match=re.escape(message)):
        settings(**changes)


def test_settings_at_their_bounds_are_accepted():
    settings(batch_groups=1, max_running=1, depth=0, max_staleness=0, group_size=1, requeues=0)
    settings(depth=2, max_staleness=2)
    settings(group_size=4, max_running=4, min_graded=9)  # the policy does not read it
    settings(group_size=4096, max_running=4096, batch_groups=128, depth=1)


def test_decoded_settings_are_checked():
    written = msgspec.json.encode(settings()).replace(b'"batch_groups":2', b'"batch_groups":0')
    with pytest.raises(UsageError, match="batch_groups is 0"):
        msgspec.json.decode(written, type=Settings)
