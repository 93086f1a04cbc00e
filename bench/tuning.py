"""
Tuning: the settings that a sweep tries for each peer, and which of them is the best for which work.

A sweep tries them in two ways: with a drain, and at 500 events a second. Called by `bench.peers`,
which measures; the choice is a function of what was measured. Ours is not tuned: its defaults are
what is compared.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.peers_install import DEBEZIUM, FASTSTREAM
from bench.systems.base import System
from bench.systems.debezium import HEAP, TUNED, Debezium
from bench.systems.faststream import Faststream

Peer = Literal["debezium", "faststream"]
Sweep = Literal["drain", "steady"]
Work = Literal["drain", "latency", "cpu"]

PEERS: tuple[Peer, ...] = ("debezium", "faststream")
SWEEPS: tuple[Sweep, ...] = ("drain", "steady")
SWEEP_OF: dict[Work, Sweep] = {"drain": "drain", "latency": "steady", "cpu": "steady"}
BEST_BY: dict[Work, str] = {
    "drain": "the most events per second, warm",
    "latency": "the lowest p50 times p99 at 500/s",
    "cpu": "the lowest CPU per event at 500/s with a p99 of at most 100 ms",
}
CPU_P99_MS = 100.0
"""A peer that collects events for half a second is cheap, but no longer does the same work."""
VERSIONS = {"debezium": DEBEZIUM, "faststream": FASTSTREAM[0]}
REMEMBERED = Path("build/bench-tuning.json")


@dataclass(frozen=True)
class Candidate:
    name: str
    settings: Mapping[str, Any]
    java: tuple[str, ...] = field(default=())


def _debezium(
    name: str, poll: int, batch: int, *more: Mapping[str, str], java: tuple[str, ...] = ()
) -> Candidate:
    """A queue of four batches, the ratio of its defaults."""
    settings = {
        "debezium.source.poll.interval.ms": str(poll),
        "debezium.source.max.batch.size": str(batch),
        "debezium.source.max.queue.size": str(4 * batch),
    }
    for part in more:
        settings |= part
    return Candidate(name, settings, (f"-Xmx{HEAP}", *java))


def _faststream(
    name: str,
    workers: int,
    fetch: int,
    delete: int,
    poll: float,
    kafka: Mapping[str, float] | None = None,
) -> Candidate:
    subscriber = {
        "max_workers": workers,
        "fetch_batch_size": fetch,
        "terminal_flush_batch_size": delete,
        "min_fetch_interval": poll,
        "max_fetch_interval": 1.0,
    }
    return Candidate(name, {"subscriber": subscriber, "kafka": dict(kafka or {})})


PRODUCER = "debezium.sink.kafka.producer"
LARGE = {f"{PRODUCER}.linger.ms": "10", f"{PRODUCER}.batch.size": "262144"}
COMPRESSED = {f"{PRODUCER}.compression.type": "lz4"}
AT_ONCE = {f"{PRODUCER}.linger.ms": "0"}  # the default of Kafka's producer is 5 ms
ONE_THREAD = {"debezium.source.record.processing.threads": "1"}  # by default one per core
BY_DRIVER = {"debezium.source.lsn.flush.mode": "connector_and_driver"}
LARGE_REQUESTS = {"linger_ms": 5, "max_batch_size": 262_144}
SERIAL, PARALLEL = ("-XX:+UseSerialGC",), ("-XX:+UseParallelGC",)

CANDIDATES: dict[Peer, dict[Sweep, tuple[Candidate, ...]]] = {
    # The first of each is taken where nothing was swept.
    "debezium": {
        "drain": (
            Candidate("batches of 8192", TUNED, (f"-Xmx{HEAP}",)),
            Candidate("its defaults", {}, (f"-Xmx{HEAP}",)),
            _debezium("large requests", 10, 8192, LARGE),
            _debezium("batches of 16384, large requests, lz4", 10, 16384, LARGE, COMPRESSED),
            _debezium("large requests, one thread", 10, 8192, LARGE, ONE_THREAD, java=SERIAL),
            _debezium("large requests, lsn by driver", 10, 8192, LARGE, BY_DRIVER, java=PARALLEL),
        ),
        "steady": (
            Candidate("poll 10 ms", TUNED, (f"-Xmx{HEAP}",)),
            _debezium("poll 10 ms, linger 0", 10, 8192, AT_ONCE),
            _debezium("poll 2 ms, linger 0", 2, 2048, AT_ONCE),
            _debezium("poll 50 ms, linger 0", 50, 8192, AT_ONCE),
            _debezium("poll 10 ms, one thread", 10, 8192, AT_ONCE, ONE_THREAD, java=SERIAL),
            _debezium("poll 50 ms, one thread", 50, 8192, AT_ONCE, ONE_THREAD, java=SERIAL),
        ),
    },
    "faststream": {
        "drain": (
            _faststream("32 workers, fetch 1000, delete 100", 32, 1000, 100, 0.01),
            _faststream("8 workers, fetch 1000, delete 500", 8, 1000, 500, 0.01),
            _faststream("64 workers, fetch 2000, delete 500", 64, 2000, 500, 0.01),
            _faststream("128 workers, fetch 4000, delete 1000", 128, 4000, 1000, 0.01),
            _faststream("64 workers, large requests", 64, 2000, 500, 0.01, LARGE_REQUESTS),
        ),
        "steady": (
            _faststream("32 workers, delete each, poll 10 ms", 32, 1000, 1, 0.01),
            _faststream("8 workers, delete each, poll 10 ms", 8, 1000, 1, 0.01),
            _faststream("8 workers, delete 20, poll 10 ms", 8, 1000, 20, 0.01),
            _faststream("8 workers, delete 20, poll 50 ms", 8, 1000, 20, 0.05),
            _faststream("4 workers, delete 100, poll 20 ms", 4, 1000, 100, 0.02),
        ),
    },
}


def choose(work: Work, tried: Mapping[str, Mapping[str, float]]) -> str | None:
    """The best of the candidates by what was measured of each; None if nothing was."""
    if not tried:
        return None
    if work == "drain":
        return max(tried, key=lambda name: tried[name]["warm"])
    if work == "latency":
        return min(tried, key=lambda name: tried[name]["p50 ms"] * tried[name]["p99"])
    quick = {n: row for n, row in tried.items() if row["p99"] <= CPU_P99_MS and not row["missing"]}
    if not quick:
        return min(tried, key=lambda name: tried[name]["p99"])
    return min(quick, key=lambda name: quick[name]["CPU"])


@dataclass(frozen=True)
class Choice:
    candidate: Candidate
    why: str


def best(
    peer: Peer, work: Work, tried: Mapping[str, Mapping[str, float]], last: str | None
) -> Choice:
    """By what was measured; else the last sweep's choice, else what is built in."""
    if name := choose(work, tried):
        return Choice(named(peer, work, name), f"best of {len(tried)}: {BEST_BY[work]}")
    candidate = named(peer, work, last)
    return Choice(candidate, "of the last sweep" if candidate.name == last else "built in")


def named(peer: Peer, work: Work, name: str | None) -> Candidate:
    """The candidate of this name; the first if it has none such."""
    candidates = CANDIDATES[peer][SWEEP_OF[work]]
    return next((c for c in candidates if c.name == name), candidates[0])


def system(peer: Peer, candidate: Candidate) -> System:
    if peer == "debezium":
        return Debezium(candidate.settings, candidate.java)
    return Faststream(candidate.settings)


def remember(chosen: Mapping[Peer, Mapping[Work, Choice]], path: Path = REMEMBERED) -> None:
    """For runs without a sweep."""
    known = _read(path)
    known |= {
        peer: {"version": VERSIONS[peer], **{w: c.candidate.name for w, c in works.items()}}
        for peer, works in chosen.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(known, indent=2) + "\n")


def remembered(path: Path = REMEMBERED) -> dict[Peer, dict[Work, str]]:
    """Names of candidates; of peers whose version was another, nothing."""
    known = _read(path)
    return {
        peer: {work: found[work] for work in SWEEP_OF if work in found}
        for peer in PEERS
        if (found := known.get(peer, {})).get("version") == VERSIONS[peer]
    }


def describe(choice: Choice) -> dict[str, object]:
    """For the record."""
    candidate = choice.candidate
    java: dict[str, object] = {"java": list(candidate.java)} if candidate.java else {}
    settings = dict(candidate.settings)
    return {"name": candidate.name, "why": choice.why, "settings": settings, **java}


def lines(chosen: Mapping[Peer, Mapping[Work, Choice]]) -> Iterable[str]:
    """For people: what each peer runs with, and why."""
    for peer, works in chosen.items():
        for work, choice in works.items():
            candidate = choice.candidate
            yield f"{peer}, {work}: {candidate.name} ({choice.why})"
            for name, value in candidate.settings.items():
                yield f"    {name} = {json.dumps(value)}"
            if candidate.java:
                yield f"    java {' '.join(candidate.java)}"


def _read(path: Path) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = json.loads(path.read_text()) if path.exists() else {}
    return found
