"""Metrics: what is counted, exactly, and in no more series than are meant."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric

from fixtures.made_settings import relay_settings, retry_policy
from fixtures.moments import with_moments
from fixtures.relays import Broker
from outbox_core.model.attempt import Acked, Error, ErrorClass, Outcome, Refused, Unsent
from outbox_core.model.event import Claim
from outbox_core.observe.health import Health
from outbox_core.observe.metrics import SECONDS_BUCKETS, Latencies, RelayMetrics
from outbox_relay.worker.breaker import Breaker
from outbox_relay.worker.context import Context
from outbox_relay.worker.pipeline import Worker
from outbox_relay.worker.polling import Crew

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MICROSECONDS = st.one_of(
    st.integers(0, 400_000_000), st.sampled_from([round(s * 1_000_000) for s in SECONDS_BUCKETS])
)


def made(registry: CollectorRegistry) -> list[Metric]:
    return list(registry.collect())


def series(metrics: RelayMetrics) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in made(metrics.registry)
        for sample in family.samples
    }


# Latencies ----------------------------------------------------------------------------------


def bucket_counts(registry: CollectorRegistry) -> dict[float, float]:
    (family,) = made(registry)
    return {float(s.labels["le"]): s.value for s in family.samples if s.name.endswith("_bucket")}


@settings(deadline=None)
@given(st.lists(st.lists(MICROSECONDS, max_size=50), max_size=5))
def test_the_histogram_is_what_counting_one_by_one_gives(batches: list[list[int]]) -> None:
    registry = CollectorRegistry()
    latencies = Latencies("x_seconds", "x", registry)
    for batch in batches:
        latencies.observe([us / 1_000_000 for us in batch])
    every = [us for batch in batches for us in batch]
    edges = [round(s * 1_000_000) for s in SECONDS_BUCKETS]
    expected = {
        s: sum(us <= edge for us in every) for s, edge in zip(SECONDS_BUCKETS, edges, strict=True)
    }
    assert bucket_counts(registry) == {**expected, float("inf"): len(every)}
    (family,) = made(registry)
    values = {s.name: s.value for s in family.samples}
    assert values["x_seconds_count"] == len(every)
    assert abs(values["x_seconds_sum"] - sum(every) / 1_000_000) < 1e-6


def test_a_latency_on_the_edge_is_within_it() -> None:
    registry = CollectorRegistry()
    Latencies("x_seconds", "x", registry).observe([timedelta(milliseconds=100).total_seconds()])
    counts = bucket_counts(registry)
    assert (counts[0.05], counts[0.1]) == (0, 1)


# Families and labels ------------------------------------------------------------------------


def test_oo_62_success_failure_retries_states_and_latency_each_have_a_family() -> None:
    families = {family.name: family.type for family in made(RelayMetrics().registry)}
    wanted = {
        "outbox_published": "counter",
        "outbox_failed": "counter",
        "outbox_retried": "counter",
        "outbox_dead": "counter",
        "outbox_backlog": "gauge",
        "outbox_commit_to_ack_seconds": "histogram",
    }
    assert wanted.items() <= families.items()


def test_every_family_is_described_and_named_as_ours() -> None:
    for family in made(RelayMetrics().registry):
        assert family.documentation
        assert re.fullmatch(r"outbox_[a-z_]+", family.name)


def test_two_sets_of_metrics_do_not_disturb_each_other() -> None:
    one, other = RelayMetrics(), RelayMetrics()
    one.published.inc()
    assert "outbox_published_total 0.0" in str_of(other)
    assert "outbox_published_total 1.0" in str_of(one)


def str_of(metrics: RelayMetrics) -> str:
    return generate_latest(metrics.registry).decode()


def claim(seq: int, **fields: Any) -> Claim:
    values: dict[str, Any] = dict.fromkeys(Claim._fields)
    values |= {
        "seq": seq, "token": 7, "claimed_at": NOW, "created_at": NOW, "attempts": 1,
        "attempts_base": 0, "crashes": 0, "lane": -1, "event_id": f"event-{seq}",
        "event_type": f"type-{seq}", "ordering_key": f"key-{seq}", "tenant_id": f"tenant-{seq}",
        "payload": b"",
    }  # fmt: skip
    return Claim(**with_moments({**values, **fields}))


def publish(metrics: RelayMetrics, batch: list[Claim], answer: Callable[[Claim], Outcome]) -> None:
    """As a worker does it, to a broker that answers like that."""
    broker = Broker()
    broker.answer = answer
    context = Context(
        settings=relay_settings(),
        relay=1,
        publisher=broker,
        policy=retry_policy(),
        crew=Crew(1, -1),
        breaker=Breaker(lambda: 0.0),
        health=Health(),
        metrics=metrics,
    )
    Worker(0, context)._publish(batch)


def test_a_thousand_types_keys_and_codes_make_no_more_series_than_one_of_each_class() -> None:
    metrics, kinds = RelayMetrics(), list(ErrorClass)

    def answer(c: Claim) -> Refused:
        return Refused(Error.of(kinds[c.seq % len(kinds)], f"CODE-{c.seq}", f"text {c.seq}"))

    publish(metrics, [claim(seq) for seq in range(len(kinds))], answer)
    few = series(metrics)
    publish(metrics, [claim(seq) for seq in range(1000)], answer)
    assert series(metrics) == few
    assert {name for _, pairs in few for name, _ in pairs} <= {
        "error_class",
        "stage",
        "state",
        "le",
    }
    classes = {value for _, pairs in few for name, value in pairs if name == "error_class"}
    assert classes == set(ErrorClass)


def test_each_outcome_is_counted_where_it_belongs() -> None:
    metrics = RelayMetrics()
    answers: dict[int, Outcome] = {
        1: Acked("t[0]@1"),
        2: Acked("t[0]@2"),
        3: Refused(Error.of(ErrorClass.TRANSIENT, "C", "text")),
        4: Refused(Error.of(ErrorClass.EVENT, "C", "text")),
        5: Unsent("stopped"),
    }
    publish(metrics, [claim(seq) for seq in answers], lambda c: answers[c.seq])
    counted = {
        name: metrics.registry.get_sample_value(f"outbox_{name}")
        for name in ("published_total", "retried_total", "dead_total", "returned_total",
                     "commit_to_ack_seconds_count")
    }  # fmt: skip
    assert counted == {
        "published_total": 2, "retried_total": 1, "dead_total": 1, "returned_total": 1,
        "commit_to_ack_seconds_count": 2,
    }  # fmt: skip
    failed = [
        metrics.registry.get_sample_value("outbox_failed_total", {"error_class": kind})
        for kind in (ErrorClass.TRANSIENT, ErrorClass.EVENT)
    ]
    assert failed == [1, 1]


def test_an_event_that_came_after_its_claim_began_was_not_there_in_negative_time() -> None:
    metrics = RelayMetrics()
    publish(metrics, [claim(1, created_at=NOW + timedelta(seconds=1))], lambda _: Acked("t[0]@1"))
    total = metrics.registry.get_sample_value("outbox_commit_to_ack_seconds_sum")
    assert total is not None
    assert total >= 0
