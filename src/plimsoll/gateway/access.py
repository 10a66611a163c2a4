"""Access: the address, key and model name that an agent is given to reach the policy."""

from dataclasses import dataclass, field

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    """The address and key of a session, as seen from the agent's sandbox."""

    root: str
    """`http://HOST:PORT/s/SESSION`, the base URL for Anthropic's clients."""
    key: str = field(repr=False)
    model: str
    """The model name to request. The gateway forwards every name to the same policy."""

    @property
    def openai(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.root}/v1"

    @property
    def anthropic(self) -> str:
        return self.root
