"""Results of tools as policies are told of them: as text.

Few chat templates take an image in the message of a tool. It follows in a message of the user,
after the last result of the turn, and the result says so.
"""

from collections.abc import Iterable

from plimsoll.trajectories.messages import Image, Part, Text

__all__ = ["split_result"]


def split_result(parts: Iterable[Part]) -> tuple[str, list[Part]]:
    """The text of a result, and what is to follow."""
    texts: list[str] = []
    following: list[Part] = []
    for part in parts:
        if isinstance(part, Text):
            texts.append(part.text)
            continue
        kind = "image" if isinstance(part, Image) else "attachment"
        texts.append(f"[{kind}: in the message that follows]")
        following.append(part)
    return "\n".join(text for text in texts if text), following
