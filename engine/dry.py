"""DRY samplers. Looking for their sequence breakers in all tokens takes a while: it is done once, on another thread."""

import weakref
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait

from engine import chain, llama
from engine.vocab import Vocab
from ipc.messages import Sampling

_KEPT = 32
_CLOSE_SECONDS = 5.0


class Dry:
    """A sampler from which those of tasks are copied."""

    def __init__(self, vocab: Vocab, sampling: Sampling) -> None:
        self._sampler = chain.make_dry(vocab, sampling)
        weakref.finalize(self, llama.llama_sampler_free, self._sampler).atexit = False

    def copy(self) -> llama.Sampler:
        """A sampler of the caller's own, at its beginning."""
        return llama.llama_sampler_clone(self._sampler)


class DrySamplers:
    """Makes them and keeps the ones that were used last; belongs to the decode loop's thread."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        self._pool = ThreadPoolExecutor(1, "dry")
        self._kept: OrderedDict[tuple[object, ...], Future[Dry]] = OrderedDict()

    def submit(self, sampling: Sampling) -> "Future[Dry] | None":
        """Start making what `sampling` needs, if that is not there already; None: it needs none."""
        if sampling.mirostat or "dry" not in chain.active(sampling):
            return None
        numbers = (sampling.dry_multiplier, sampling.dry_base, sampling.dry_allowed_length, sampling.dry_penalty_last_n)
        key = (*numbers, *sampling.dry_sequence_breakers)
        if key in self._kept:
            self._kept.move_to_end(key)
        else:
            self._kept[key] = self._pool.submit(Dry, self._vocab, sampling)
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]

    def close(self) -> None:
        """End the thread before the vocabulary is freed."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait(self._kept.values(), _CLOSE_SECONDS)
