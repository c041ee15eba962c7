"""LoRA adapters at run time: which are loaded, with what scales, and which the next decode uses (spec/engine.md §9)."""

from collections.abc import Sequence as Seq
from itertools import count
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.lora import Adapter
from engine.regime import Key, Regime
from ipc.messages import LoraScale, LoraState


class AdapterError(ValueError):
    """An adapter does not exist or cannot be used as asked."""


class Applies(Protocol):
    """The part of `engine.context.Context` that is used here."""

    def set_lora(self, adapters: Seq[tuple[Adapter, float]]) -> None: ...


class Adapters:
    """Ids count up and are never used again, so that a cache computed under a dropped adapter matches nobody."""

    def __init__(self, context: Applies) -> None:
        self._context = context
        self._loaded: dict[int, Adapter] = {}
        self._scales: dict[int, float] = {}
        self._paths: dict[int, str] = {}  # of dropped ones too
        self._ids = count()
        self._in_use: Key = ()

    def add(self, adapter: Adapter, scale: float) -> int:
        """Take a loaded adapter; returns its id."""
        number = next(self._ids)
        self._loaded[number], self._scales[number] = adapter, scale
        self._paths[number] = adapter.path
        return number

    def drop(self, number: int) -> None:
        """Unload an adapter. The caller makes sure that no sequence runs with it."""
        self._check(number)
        if any(used == number for used, _ in self._in_use):
            self.use(())
        del self._scales[number]
        self._loaded.pop(number).close()

    @property
    def ids(self) -> list[int]:
        """The adapters that are loaded."""
        return list(self._loaded)

    def path(self, number: int) -> str:
        """The file of an adapter that is, or was, loaded."""
        return self._paths[number]

    def set_scales(self, scales: list[LoraScale]) -> None:
        """Set the server-wide scales; adapters that are not listed get 0."""
        for entry in scales:
            self._check(entry.id)
        wanted = {entry.id: entry.scale for entry in scales}
        self._scales = {number: wanted.get(number, 0.0) for number in self._loaded}

    def states(self) -> list[LoraState]:
        """What `/lora-adapters` shows."""
        return [
            LoraState(
                number,
                adapter.path,
                self._scales[number],
                adapter.meta.get("adapter.lora.task_name", ""),
                adapter.meta.get("adapter.lora.prompt_prefix", ""),
                adapter.invocation_tokens,
            )
            for number, adapter in self._loaded.items()
        ]

    def resolve(self, scales: list[LoraScale] | None, prompt: npt.NDArray[np.int32]) -> Regime:
        """Adapters of a request (None: the server-wide scales) and the prompt position from which they apply.

        An aLoRA acts from its last invocation on, and not at all in a prompt without one. Raises AdapterError.
        """
        wanted = self._scales if scales is None else {entry.id: entry.scale for entry in scales}
        for number in wanted:
            self._check(number)
        key = tuple(sorted((number, scale) for number, scale in wanted.items() if scale))
        activated = [number for number, _ in key if self._loaded[number].invocation_tokens]
        if not activated:
            return key, 0
        if len(activated) > 1:
            raise AdapterError("Cannot run multiple aLoRAs in a single request")
        start = last_occurrence(prompt, self._loaded[activated[0]].invocation_tokens)
        if start is None:
            return tuple(entry for entry in key if entry[0] != activated[0]), 0
        return key, max(0, start - 1)

    def use(self, key: Key) -> None:
        """Make the next decode run with `key`."""
        if key != self._in_use:
            self._context.set_lora([(self._loaded[number], scale) for number, scale in key])
            self._in_use = key

    def _check(self, number: int) -> None:
        if number not in self._loaded:
            raise AdapterError(f"there is no LoRA adapter {number}")


def last_occurrence(tokens: npt.NDArray[np.int32], pattern: list[int]) -> int | None:
    """Where `pattern` last begins in `tokens`, None when it does not."""
    if len(tokens) < len(pattern):
        return None
    windows = np.lib.stride_tricks.sliding_window_view(tokens, len(pattern))
    found = np.flatnonzero((windows == np.array(pattern, np.int32)).all(axis=1))
    return int(found[-1]) if len(found) else None
