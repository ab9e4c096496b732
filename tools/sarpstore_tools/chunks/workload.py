"""Traces for simulation: requests that put documents of a Zipf-popular library before a question.

The shapes are those of the published testbed for segment-wise reuse (GPT-OSS-120B, 73,728 bytes of KV a token): a
request draws distinct documents, in draw order, and asks a question of its own; a share of the requests repeats the
ordered documents of an earlier one, chosen uniformly, and its head if there is one, with another question.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["WORKLOADS", "Request", "Trace", "Workload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a trace is drawn from. Lengths in tokens; `sigma` is that of the lengths' logarithms."""

    name: str
    documents: int
    zipf: float
    documents_each: int
    mean_tokens: float
    sigma: float
    question_tokens: int
    head_tokens: int
    repeated: float
    requests: int
    token_bytes: int

    def trace(self, seed: int, requests: int | None = None) -> Trace:
        """The same for the same seed."""
        random = np.random.default_rng(seed)
        shares = 1 / np.arange(1, self.documents + 1) ** self.zipf
        mu = np.log(self.mean_tokens) - self.sigma**2 / 2
        drawn = random.lognormal(mu, self.sigma, self.documents)
        tokens = np.maximum(1, np.round(drawn)).astype(np.int64)
        made: list[Request] = []
        for number in range(requests or self.requests):
            if made and random.random() < self.repeated:
                made.append(made[int(random.integers(len(made)))])
            else:
                chosen = random.choice(self.documents, self.documents_each, replace=False, p=shares / shares.sum())
                made.append(Request(tuple(chosen.tolist()), number))
        return Trace(self, tokens, made)


@dataclass(frozen=True, slots=True)
class Request:
    """Documents in their order, and the number of the head before them, where the workload has heads."""

    documents: tuple[int, ...]
    head: int


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests, and the length in tokens of each document."""

    workload: Workload
    tokens: npt.NDArray[np.int64]
    requests: list[Request]

    def tokens_of(self, request: Request) -> int:
        """All input tokens of a request."""
        beside = self.workload.question_tokens + self.workload.head_tokens
        return int(self.tokens[list(request.documents)].sum()) + beside


WORKLOADS = {
    "C": Workload(
        name="C",
        documents=3000,
        zipf=1.1,
        documents_each=15,
        mean_tokens=1600,
        sigma=0.6,
        question_tokens=50,
        head_tokens=0,
        repeated=0.2,
        requests=2500,
        token_bytes=73_728,
    ),
    "A": Workload(
        name="A",
        documents=8000,
        zipf=1.1,
        documents_each=6,
        mean_tokens=800,
        sigma=0.6,
        question_tokens=300,
        head_tokens=32,
        repeated=0.2,
        requests=2500,
        token_bytes=73_728,
    ),
}
