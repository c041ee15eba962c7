"""Sampling on a reduced candidate array equals libllama's full chain, token for token."""

import time
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import chain, llama
from engine.candidates import Candidates, top
from engine.dry import DrySamplers
from engine.sampler import Sampler
from engine.vocab import Vocab
from ipc.messages import SAMPLERS, Sampling


@pytest.fixture(scope="module")
def candidates(vocab: Vocab) -> Candidates:
    return Candidates(vocab.n_tokens)


def rows(n: int, n_vocab: int, seed: int) -> list[np.ndarray]:
    """Logits of the shape a model gives: a few tokens stand out."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        row = rng.normal(0, 2, n_vocab).astype(np.float32)
        row[rng.integers(0, n_vocab, 60)] += rng.gamma(2, 3, 60).astype(np.float32)
        made.append(row)
    return made


class FullChain:
    """libllama's chain over every candidate, with every listed sampler in it: the reference."""

    def __init__(self, vocab: Vocab, sampling: Sampling, seed: int) -> None:
        self.chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
        makers = chain._makers(vocab, sampling, seed)
        for name in sampling.samplers:
            llama.llama_sampler_chain_add(self.chain, makers[name]())
        llama.llama_sampler_chain_add(self.chain, llama.llama_sampler_init_dist(seed))
        self.candidates = Candidates(vocab.n_tokens)

    def run(self, prompt: np.ndarray, logits: list[np.ndarray]) -> Iterator[int]:
        for token in prompt.tolist():
            llama.llama_sampler_accept(self.chain, token)
        for row in logits:
            self.candidates.fill(row)
            self.candidates.apply(self.chain)
            token = self.candidates.selected
            llama.llama_sampler_accept(self.chain, token)
            yield token

    def close(self) -> None:
        llama.llama_sampler_free(self.chain)


SAMPLINGS = st.builds(
    Sampling,
    samplers=st.one_of(st.just(list(SAMPLERS)), st.permutations(SAMPLERS).map(list)),
    seed=st.integers(0, 2**32 - 2),
    temperature=st.sampled_from([0.0, 0.2, 0.8, 1.0, 1.7]),
    dynatemp_range=st.sampled_from([0.0, 0.5]),
    top_k=st.sampled_from([0, 1, 5, 40, 100, 400]),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
    top_n_sigma=st.sampled_from([-1.0, 1.5]),
    typical_p=st.sampled_from([1.0, 0.7]),
    xtc_probability=st.sampled_from([0.0, 0.6]),
    repeat_penalty=st.sampled_from([1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.4]),
    presence_penalty=st.sampled_from([0.0, -0.3]),
    repeat_last_n=st.sampled_from([0, 8, 64]),
    dry_multiplier=st.sampled_from([0.0, 0.8]),
    min_keep=st.sampled_from([0, 3]),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sampling=SAMPLINGS, data=st.integers(0, 1 << 30))
def test_the_reduced_chain_draws_what_the_full_chain_draws(
    vocab: Vocab, candidates: Candidates, sampling: Sampling, data: int
) -> None:
    logits = rows(4, vocab.n_tokens, data)
    prompt = np.array([int(np.argsort(logits[0])[-2]), 5, 5, 9], np.int32)
    assert sampling.seed is not None
    with closing(FullChain(vocab, sampling, sampling.seed)) as full:
        expected = list(full.run(prompt, logits))
    with closing(Sampler(vocab, sampling, candidates)) as sampler:
        sampler.prime(prompt)
        tokens = []
        for row in logits:
            tokens.append(sampler.sample(row))
            sampler.accept(tokens[-1])
    assert tokens == expected


@given(st.integers(1, 300), st.integers(0, 1 << 30))
@settings(max_examples=50, deadline=None)
def test_top_is_a_superset_of_the_k_largest(k: int, seed: int) -> None:
    logits = rows(1, 20_000, seed)[0]
    ids = top(logits, k)
    assert set(np.argsort(logits)[-k:].tolist()) <= set(ids.tolist())
    assert (np.diff(ids) > 0).all()


def test_top_of_a_typical_row_is_small() -> None:
    assert len(top(rows(1, 49_152, 3)[0], 40)) < 500


def sample_one(vocab: Vocab, candidates: Candidates, row: np.ndarray, **fields: object) -> int:
    with closing(Sampler(vocab, Sampling(**fields), candidates)) as sampler:  # type: ignore[arg-type]
        return sampler.sample(row)


def test_a_ban_removes_the_best_token(vocab: Vocab, candidates: Candidates) -> None:
    row = rows(1, vocab.n_tokens, 1)[0]
    best, second = np.argsort(row)[[-1, -2]]
    assert sample_one(vocab, candidates, row, temperature=0) == best
    assert sample_one(vocab, candidates, row, temperature=0, logit_bias=[(int(best), -np.inf)]) == second


def test_a_large_bias_forces_a_token(vocab: Vocab, candidates: Candidates) -> None:
    row = rows(1, vocab.n_tokens, 1)[0]
    assert sample_one(vocab, candidates, row, temperature=1.0, logit_bias=[(1234, 100.0)]) == 1234


def test_sampling_leaves_the_logits_alone(vocab: Vocab, candidates: Candidates) -> None:
    row = rows(1, vocab.n_tokens, 1)[0]
    before = row.copy()
    sample_one(vocab, candidates, row, logit_bias=[(5, 3.0)], temperature=0.9)
    assert (row == before).all()


def test_ignore_eos_bans_every_end_token(vocab: Vocab, candidates: Candidates) -> None:
    row = np.zeros(vocab.n_tokens, np.float32)
    row[list(vocab.eog)] = 50
    row[77] = 20
    assert sample_one(vocab, candidates, row, temperature=0, ignore_eos=True) == 77


@pytest.mark.parametrize("bad", [{"repeat_penalty": 0.0}, {"frequency_penalty": float("inf")}])
def test_values_that_libllama_aborts_on_are_refused(vocab: Vocab, candidates: Candidates, bad: dict) -> None:
    with pytest.raises(ValueError, match="penalty"):
        Sampler(vocab, Sampling(**bad), candidates)


def test_xtc_drops_the_likeliest_candidates(vocab: Vocab, candidates: Candidates) -> None:
    row = np.full(vocab.n_tokens, -20.0, np.float32)
    row[[10, 20, 30]] = [10.0, 9.5, 9.0]
    sampling = Sampling(samplers=["top_k", "xtc"], seed=1, xtc_probability=1.0, xtc_threshold=0.1)
    with closing(Sampler(vocab, sampling, candidates)) as sampler:
        assert sampler.sample(row, keep_candidates=True) == 30
        assert sampler.last_candidates(1)[0][0] == 30


def test_candidates_after_sampling_are_sorted_probabilities(vocab: Vocab, candidates: Candidates) -> None:
    with closing(Sampler(vocab, Sampling(seed=1), candidates)) as sampler:
        sampler.sample(rows(1, vocab.n_tokens, 1)[0], keep_candidates=True)
        left = sampler.last_candidates(5)
    probabilities = [p for _, p in left]
    assert probabilities == sorted(probabilities, reverse=True) and 0 < sum(probabilities) <= 1.0001


def test_infill_compares_only_the_likeliest(vocab: Vocab, candidates: Candidates) -> None:
    """Comparing all tokens with each other would hold up the engine for minutes."""
    row = rows(1, vocab.n_tokens, 1)[0]
    begun = time.process_time()
    token = sample_one(vocab, candidates, row, samplers=["infill"], seed=1)
    assert time.process_time() - begun < 2
    assert token in {int(row.argmax()), *vocab.eog}


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e-45, "samplers": ["temperature"]},
        {"temperature": 1e-45, "samplers": ["temperature", "typ_p"], "typical_p": 0.5},
        {"temperature": 1e-45, "samplers": ["top_k", "temperature"], "top_k": 12},
        {"samplers": ["infill"]},  # ends where nothing is likely, even if the end is banned
    ],
    ids=str,
)
def test_a_banned_token_is_not_drawn_whatever_the_chain_says(
    vocab: Vocab, candidates: Candidates, fields: dict
) -> None:
    row = np.full(vocab.n_tokens, -np.inf, np.float32)
    row[300:310] = np.linspace(1, 1.1, 10)
    with closing(Sampler(vocab, Sampling(seed=1, **fields), candidates)) as sampler:
        assert all(300 <= sampler.sample(row) < 310 for _ in range(3))


def test_a_dry_sampler_that_was_made_elsewhere_draws_the_same(vocab: Vocab, candidates: Candidates) -> None:
    sampling = Sampling(temperature=0, dry_multiplier=30.0, dry_sequence_breakers=["\n", "."])
    words = vocab.encode(" cat dog bird cat dog").astype(np.int32)
    logits = rows(6, vocab.n_tokens, 3)
    for row in logits:
        row[words], row[words[2]] = 40, 50
    drawn = []
    with closing(DrySamplers(vocab)) as made:
        future = made.submit(sampling)
        assert future is not None and made.submit(sampling) is future
        for dry in (None, future.result(30), future.result(30)):
            with closing(Sampler(vocab, sampling, candidates, dry=dry)) as sampler:
                sampler.prime(words)
                tokens = []
                for row in logits:
                    tokens.append(sampler.sample(row))
                    sampler.accept(tokens[-1])
            drawn.append(tokens)
    assert drawn[0] == drawn[1] == drawn[2]
    assert words[2] not in drawn[0][:1]


def test_dry_samplers_are_made_only_where_they_act(vocab: Vocab) -> None:
    with closing(DrySamplers(vocab)) as made:
        assert made.submit(Sampling()) is None
        assert made.submit(Sampling(dry_multiplier=1.0, mirostat=2)) is None
        assert made.submit(Sampling(dry_multiplier=1.0, samplers=["top_k"])) is None
