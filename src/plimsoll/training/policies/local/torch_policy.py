"""The policy served by the trainer's own process: any causal language model of a folder."""

import asyncio
import secrets
from collections.abc import Mapping
from contextlib import AsyncExitStack, nullcontext
from ipaddress import ip_address
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from torch import Tensor
from transformers import PreTrainedModel

from plimsoll.core.errors import PolicyError, UsageError
from plimsoll.core.versions import FIRST_VERSION, Version
from plimsoll.gateway.chat_server.server import ChatServer, listen
from plimsoll.training.models import is_out_of_memory, load_model, load_tokenizer, too_large
from plimsoll.training.policies.local.completions import LocalCompletions
from plimsoll.training.policies.local.decoding_batch import DecodingBatch
from plimsoll.training.policies.local.generator import Generator
from plimsoll.training.policies.local.prompts import Prompts
from plimsoll.training.policies.local.sampling import GenerationParams, read_defaults
from plimsoll.training.policies.protocol import Pausing, Weights

__all__ = ["TorchPolicy"]


class TorchPolicy:
    """Generates with its own copy of the weights, in its own thread, behind an HTTP server.

    `updating` decides about answers in flight when weights are published: `interrupt` continues
    them with the new weights from the next token, `drain` lets them finish first.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        seed: int = 0,
        updating: Literal["interrupt", "drain"] = "interrupt",
        host: str = "127.0.0.1",
        max_batch: int = 64,
    ) -> None:
        self.pausing: Pausing = nullcontext
        self._path = path
        self._device = device
        self._dtype = dtype
        self._seed = seed
        self._updating: Literal["interrupt", "drain"] = updating
        self._host = _reachable(host)
        self._max_batch = max_batch
        self._key = secrets.token_hex(16)
        self._url = ""
        self._sampling = GenerationParams()
        self._shapes: Mapping[str, tuple[int, ...]] = {}
        self._needed: frozenset[str] = frozenset()
        self._generator: Generator | None = None
        self._stack = AsyncExitStack()

    @property
    def urls(self) -> tuple[str, ...]:
        return (self._url,) if self._url else ()

    @property
    def key(self) -> str | None:
        return self._key

    @property
    def model(self) -> str | None:
        return self._path.name

    @property
    def sampling(self) -> GenerationParams:
        """The sampling defaults of the model, known once it is served."""
        return self._sampling

    async def publish(self, weights: Weights | None, version: Version) -> None:
        if self._generator is None:
            raise PolicyError("the policy is not being served")
        if weights is not None:
            self._check(weights.tensors)
        with self.pausing():
            await self._generator.publish(None if weights is None else weights.tensors, version)

    async def __aenter__(self) -> Self:
        completions = await asyncio.to_thread(self._load)
        async with AsyncExitStack() as stack:
            stack.callback(completions.close)
            generator = completions.generator
            generator.start()
            stack.push_async_callback(generator.stop)
            server = ChatServer(completions, self._key)
            port = await stack.enter_async_context(listen(server.handle, self._host))
            self._generator = generator
            host = f"[{self._host}]" if ":" in self._host else self._host
            self._url = f"http://{host}:{port}/v1"
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del exc_type, exc, traceback
        self._generator, self._url = None, ""
        await self._stack.aclose()

    def _load(self) -> LocalCompletions:
        tokenizer = load_tokenizer(self._path)
        model = load_model(self._path, device=self._device, dtype=self._dtype)
        model.requires_grad_(False)
        defaults = read_defaults(model, tokenizer)
        self._sampling = defaults.sampling
        self._note_shapes(model)
        batch = self._make_batch(model, defaults.ends)
        generator = Generator(batch, seed=self._seed, updating=self._updating)
        prompts = Prompts(tokenizer, defaults.ends)
        return LocalCompletions(self._path.name, generator, prompts, defaults)

    def _make_batch(self, model: PreTrainedModel, ends: frozenset[int]) -> DecodingBatch:
        """Make the batch, which tries the model: a loaded model may not fit when it computes."""
        try:
            return DecodingBatch(model, FIRST_VERSION, ends=ends, max_rows=self._max_batch)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise too_large(self._path) from error

    def _note_shapes(self, model: PreTrainedModel) -> None:
        self._shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        # Tied weights have two names and need to be published only once.
        self._needed = frozenset(name for name, _ in model.named_parameters())

    def _check(self, tensors: Mapping[str, Tensor]) -> None:
        """Check all tensors before any is copied: weights are published whole or not at all."""
        missing = sorted(self._needed - tensors.keys())
        unknown = sorted(tensors.keys() - self._shapes.keys())
        if missing or unknown:
            why = f"{missing[0]} is missing" if missing else f"the model has no {unknown[0]}"
            raise PolicyError(f"the weights do not fit the model in {self._path}: {why}")
        for name, tensor in tensors.items():
            if tuple(tensor.shape) != self._shapes[name]:
                raise PolicyError(
                    f"the weights do not fit the model in {self._path}: {name} has the shape "
                    f"{tuple(tensor.shape)}, not {self._shapes[name]}"
                )


def _reachable(host: str) -> str:
    """Check that workers can connect to an address."""
    try:
        everywhere = ip_address(host).is_unspecified
    except ValueError:  # a name
        everywhere = False
    if everywhere:
        raise UsageError(
            f"[training] listen = {host!r} is not an address that workers can connect to: set the"
            " address of this host"
        )
    return host
