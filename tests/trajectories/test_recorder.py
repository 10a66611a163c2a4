"""The recorder reports the versions and blobs of a trajectory without re-reading its file."""

from recording_parts import Talk, assistant, user

from plimsoll.core.versions import Version
from plimsoll.trajectories.records import Exchange

U, A = user("hello"), assistant("answer")
FIRST, SECOND = Version(0, 1), Version(0, 2)


def runs_in_file(exchanges: list[Exchange]) -> list[tuple[Version, int]]:
    runs: list[tuple[Version, int]] = []
    for exchange in exchanges:
        versions = exchange.tokens.versions if exchange.tokens else ()
        for version, tokens in versions or ((exchange.version, exchange.answer_tokens or 0),):
            if runs and runs[-1][0] == version:
                tokens += runs.pop()[1]
            runs.append((version, tokens))
    return runs


async def test_version_runs_are_those_of_the_file(talk: Talk):
    length = talk.ask(U, answer=A, version=FIRST).answer_tokens
    assert length
    talk.ask(U, A, U, answer=A, version=FIRST)
    talk.ask(U, A, U, A, U, answer=A, version=FIRST, versions=((FIRST, 2), (SECOND, length - 2)))
    talk.ask(user("else"), answer=A, version=SECOND, tokens=None)
    trajectory = await talk.close()
    assert talk.recorder.version_runs == (
        (FIRST, 2 * length + 2),
        (SECOND, 2 * length - 2),
    )
    assert list(talk.recorder.version_runs) == runs_in_file(trajectory.exchanges)


async def test_a_session_without_answers_has_no_version_runs(talk: Talk):
    talk.recorder.trouble("upstream", "no answer", "chat")
    await talk.close()
    assert talk.recorder.version_runs == ()
    assert talk.recorder.blobs == []
