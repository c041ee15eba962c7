"""What each sampling field of a request does to made-up logits; the formulas are those of spec/generation.md §2."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from api.schema import Schema
from engine.candidates import Candidates
from engine.sampler import Sampler
from engine.vocab import Vocab
from ipc.config import Config
from tests.acts import acts

P = {1000: 0.5, 2000: 0.3, 3000: 0.15, 4000: 0.05}  # probabilities by token
A, B, C, D = P
FOUR = {"temperature": 1.0, "top_k": 4, "top_p": 1.0, "min_p": 0.0}


class Lab:
    """Samplers as requests describe them, on rows in which only a few tokens are likely."""

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self.schema = Schema(Config(), vocab)
        self.candidates = Candidates(vocab.n_tokens)

    def row(self, logits: dict[int, float], rest: float = -30.0) -> np.ndarray:
        row = np.full(self.vocab.n_tokens, rest, np.float32)
        row[list(logits)] = list(logits.values())
        return row

    @contextmanager
    def sampler(self, body: dict[str, Any], prompt: list[int]) -> Iterator[Sampler]:
        sampling = self.schema.read({"seed": 1, **FOUR, **body}).task.sampling
        with closing(Sampler(self.vocab, sampling, self.candidates)) as sampler:
            sampler.prime(np.array(prompt, np.int32))
            yield sampler

    def left(self, body: dict[str, Any], *, shift: float = 0.0, prompt: list[int] | None = None) -> dict[int, float]:
        """Probabilities of the tokens that the chain leaves, for logits ln P + `shift`."""
        with self.sampler(body, prompt or []) as sampler:
            sampler.sample(self.row({token: math.log(p) + shift for token, p in P.items()}), keep_candidates=True)
            return {token: p for token, p in sampler.last_candidates(self.vocab.n_tokens) if p > 1e-9}

    def drawn(self, body: dict[str, Any], n: int = 30) -> list[int]:
        """Tokens drawn one after the other."""
        row = self.row({token: math.log(p) for token, p in P.items()})
        tokens = []
        with self.sampler(body, []) as sampler:
            for _ in range(n):
                tokens.append(sampler.sample(row))
                sampler.accept(tokens[-1])
        return tokens


@pytest.fixture(scope="module")
def lab(vocab: Vocab) -> Lab:
    return Lab(vocab)


def normalized(weights: dict[int, float]) -> Any:
    total = sum(weights.values())
    return pytest.approx({token: weight / total for token, weight in weights.items()}, abs=1e-4)


@acts("top_k", "top_p", "min_p", "typical_p", "top_n_sigma")
@pytest.mark.parametrize(
    ("body", "tokens"),
    [
        ({"top_k": 2}, {A, B}),
        ({"top_k": 1}, {A}),
        ({"top_p": 0.6}, {A, B}),
        ({"top_p": 0.9}, {A, B, C}),
        ({"min_p": 0.4}, {A, B}),
        ({"min_p": 0.2}, {A, B, C}),
        ({"typical_p": 0.25}, {B}),  # -ln 0.3 is nearest to the entropy, 1.14
        ({"typical_p": 0.7}, {A, B}),
        ({"top_k": 0, "top_n_sigma": 20}, {A, B, C, D}),
        ({"samplers": ["top_k", "top_n_sigma"], "top_n_sigma": 1}, {A, B}),  # one deviation of ln P is 0.86
    ],
)
def test_what_is_unlikely_is_cut_off(lab: Lab, body: dict[str, Any], tokens: set[int]) -> None:
    order = {"samplers": ["top_k", "top_n_sigma", "typ_p", "top_p", "min_p"], **body}
    assert set(lab.left(order)) == tokens


@acts("min_keep")
@pytest.mark.parametrize("name", ["top_p", "min_p"])
def test_min_keep_saves_tokens_from_being_cut(lab: Lab, name: str) -> None:
    body = {name: 0.01 if name == "top_p" else 1.0}
    assert set(lab.left(body)) == {A}
    assert set(lab.left({**body, "min_keep": 3})) == {A, B, C}


@acts("xtc_probability", "xtc_threshold")
def test_xtc_removes_all_likely_tokens_but_the_last(lab: Lab) -> None:
    assert set(lab.left({"xtc_probability": 1, "xtc_threshold": 0.1})) == {C, D}
    assert set(lab.left({"xtc_probability": 1, "xtc_threshold": 0.25})) == {B, C, D}
    assert set(lab.left({"xtc_probability": 1, "xtc_threshold": 0.6})) == set(P)
    drawn = lab.drawn({"xtc_probability": 0.5, "xtc_threshold": 0.25}, 60)
    assert 5 < drawn.count(A) < 25  # XTC acts on about half the draws; without it A would be drawn 30 times


@acts("temperature")
def test_temperature_sharpens_and_flattens(lab: Lab) -> None:
    for t in (0.5, 2.0):
        assert lab.left({"temperature": t}) == normalized({token: p ** (1 / t) for token, p in P.items()})
    assert set(lab.drawn({"temperature": 0})) == {A}


@acts("dynatemp_range", "dynatemp_exponent")
@pytest.mark.parametrize("exponent", [1.0, 3.0])
def test_dynamic_temperature_follows_the_entropy(lab: Lab, exponent: float) -> None:
    entropy = -sum(p * math.log(p) for p in P.values()) / math.log(4)
    t = 0.5 + 1.0 * entropy**exponent
    expected = normalized({token: p ** (1 / t) for token, p in P.items()})
    assert lab.left({"dynatemp_range": 0.5, "dynatemp_exponent": exponent}) == expected


PENALISED = [
    ({"repeat_penalty": 2.0}, [A], {A: lambda logit: logit / 2}),
    ({"frequency_penalty": 0.5}, [A, A, B], {A: lambda logit: logit - 1.0, B: lambda logit: logit - 0.5}),
    ({"presence_penalty": 0.7}, [A, A, B], {A: lambda logit: logit - 0.7, B: lambda logit: logit - 0.7}),
    ({"presence_penalty": 0.7, "repeat_last_n": 1}, [A, A, B], {B: lambda logit: logit - 0.7}),
    ({"presence_penalty": 0.7, "repeat_last_n": 0}, [A, A, B], {}),
]


@acts("repeat_penalty", "frequency_penalty", "presence_penalty", "repeat_last_n")
@pytest.mark.parametrize(("body", "prompt", "changes"), PENALISED)
def test_penalties_lower_seen_tokens(lab: Lab, body: dict[str, Any], prompt: list[int], changes: Any) -> None:
    logits = {token: math.log(p) + 5 for token, p in P.items()}
    punished = {token: changes.get(token, float)(logit) for token, logit in logits.items()}
    expected = normalized({token: math.exp(logit) for token, logit in punished.items()})
    assert lab.left(body, shift=5, prompt=prompt) == expected


REPEATED = [
    ({}, 1.75),  # "B C" came before and was followed by A: base^(2 - allowed length 1)
    ({"dry_base": 3.0}, 3.0),
    ({"dry_base": 0.5}, 1.75),  # below 1: the server's
    ({"dry_multiplier": 2.0}, 3.5),
    ({"dry_allowed_length": 2}, 1.0),
    ({"dry_allowed_length": 3}, 0.0),
    ({"dry_penalty_last_n": 4}, 1.75**0),  # of "C A B C" only the last repeats
    ({"dry_penalty_last_n": 3}, 0.0),
]


@acts("dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n")
@pytest.mark.parametrize(("body", "penalty"), REPEATED)
def test_dry_lowers_what_would_continue_a_repetition(lab: Lab, body: dict[str, Any], penalty: float) -> None:
    body = {"dry_multiplier": 1.0, "dry_allowed_length": 1, **body}
    left = lab.left(body, prompt=[B, C, A, B, C])
    assert left == normalized({**P, A: P[A] * math.exp(-penalty)})


@acts("dry_sequence_breakers")
def test_dry_sees_no_repetition_across_a_breaker(lab: Lab) -> None:
    text = lab.vocab.piece(C).decode()
    left = lab.left({"dry_multiplier": 1.0, "dry_sequence_breakers": [text]}, prompt=[B, C, A, B, C])
    assert left == normalized(P)


@acts("mirostat", "mirostat_tau", "mirostat_eta")
def test_mirostat_holds_the_surprise(lab: Lab) -> None:
    base = {"mirostat": 2, "mirostat_tau": 1.0, "top_k": 1}  # the listed samplers do not count
    assert set(lab.drawn({**base, "mirostat_eta": 0.0})) == {A, B}  # surprise at most 2 tau: p at least a quarter
    assert set(lab.drawn({**base, "mirostat_tau": 0.1, "mirostat_eta": 0.0})) == {A}
    assert set(lab.drawn({**base, "mirostat_eta": 3.0})) > {A, B}  # learns from what was drawn
    assert set(lab.drawn({"mirostat": 1, "mirostat_tau": 0.01, "mirostat_eta": 0.0})) == {A}
    assert set(lab.drawn({"mirostat": 1, "mirostat_tau": 8.0, "mirostat_eta": 0.1, "top_k": 1})) > {A, B}


def adapted(target: float) -> dict[int, float]:
    """Weights of adaptive-p around a target."""
    distances = {token: abs(p - target) / 0.3 for token, p in P.items()}
    return {token: math.exp(5 - 10 * d * d / (1 + d)) for token, d in distances.items()}


@acts("adaptive_target", "adaptive_decay")
@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_adaptive_p_prefers_tokens_near_its_target(lab: Lab, decay: float) -> None:
    body = {"samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.2, "adaptive_decay": decay}
    assert lab.left(body) == normalized(adapted(0.2))
    assert lab.left({**body, "adaptive_target": -1}) == normalized(P)
    row = lab.row({token: math.log(p) for token, p in P.items()})
    with lab.sampler(body, []) as sampler:
        first = sampler.sample(row)
        sampler.accept(first)
        sampler.sample(row, keep_candidates=True)
        total = 1 / (1 - decay)
        mean = (P[first] + decay * 0.2 * total) / (1 + decay * total)
        assert dict(sampler.last_candidates(4)) == normalized(adapted(min(max(0.4 - mean, 0), 1)))


@acts("seed")
def test_a_seed_repeats_its_draws(lab: Lab) -> None:
    first, again, other = (lab.drawn({"seed": seed}) for seed in (7, 7, 8))
    assert first == again != other
    assert lab.drawn({"seed": -1}) != lab.drawn({"seed": -1})  # random ones


@acts("samplers")
def test_samplers_act_in_their_order_and_only_those_named(lab: Lab) -> None:
    body = {"temperature": 0.5, "top_p": 0.6}
    assert set(lab.left({**body, "samplers": ["top_k", "temperature", "top_p"]})) == {A}
    assert set(lab.left({**body, "samplers": "kpt"})) == {A, B}
    assert lab.left({**body, "samplers": ["top_k"]}) == normalized(P)
    assert set(lab.left({"samplers": ["top_k", "infill"]})) <= {A, B}  # infill drops p < 0.2


@acts("logit_bias")
def test_a_bias_changes_odds_or_bans(lab: Lab) -> None:
    assert lab.left({"logit_bias": [[B, 1.0]]}) == normalized({**P, B: P[B] * math.e})
    assert set(lab.left({"logit_bias": {str(A): False}})) == set(P) - {A}
    text = lab.vocab.piece(C).decode()
    assert lab.left({"logit_bias": {text: -0.5, "no such token at all": 1}})[C] < P[C]


@acts("ignore_eos")
def test_the_end_can_be_ignored(lab: Lab, vocab: Vocab) -> None:
    row = lab.row({**dict.fromkeys(vocab.eog, 9.0), A: 1.0})
    for ignore in (False, True):
        with lab.sampler({"temperature": 0, "ignore_eos": ignore}, []) as sampler:
            assert (sampler.sample(row) == A) is ignore
