"""Who asks: the connection that a request came by, and whether it says that it is no retry."""

import asyncio
import weakref

__all__ = ["Client"]


class Client:
    """Keeps nothing of its connection alive."""

    __slots__ = ("_transport", "delivered", "first_try")

    def __init__(self, transport: asyncio.BaseTransport | None, first_try: bool = False) -> None:
        self._transport = weakref.ref(transport) if transport is not None else None
        self.first_try = first_try
        self.delivered = False
        """Whether its answer was sent to the last byte."""

    @property
    def connected(self) -> bool:
        transport = self._transport() if self._transport is not None else None
        return transport is not None and not transport.is_closing()

    def shares_connection(self, other: "Client") -> bool:
        return self.connected and self._transport == other._transport
