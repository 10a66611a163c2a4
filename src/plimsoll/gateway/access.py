"""What an agent is told so that it reaches the policy."""

from dataclasses import dataclass, field

__all__ = ["Access"]


@dataclass(frozen=True, slots=True)
class Access:
    """A session's address and key, as seen from where the agent runs."""

    root: str
    """`http://HOST:PORT/s/SESSION`: what Anthropic's clients take as their base URL."""
    key: str = field(repr=False)
    model: str
    """The name to ask for. The gateway forwards to the policy whatever name is asked for."""

    @property
    def openai(self) -> str:
        """What OpenAI's clients take as their base URL."""
        return f"{self.root}/v1"

    @property
    def anthropic(self) -> str:
        return self.root
