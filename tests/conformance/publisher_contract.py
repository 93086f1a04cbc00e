"""
What every publisher owes the relay, as tests that each implementation runs.

A publisher's test module subclasses `PublisherContract` and gives it a fixture `target`: the
publisher under test, and a look at what arrived behind it. What a transport cannot do is said by
the target's attributes, each of which changes as little as it must.
"""

import hashlib
import json
import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from fixtures.moments import with_moments
from outbox_core.model.attempt import MAX_ERROR_CHARS, Acked, ErrorClass, Outcome, Refused
from outbox_core.model.event import Claim
from outbox_relay.publishers.protocol import Publisher, Sample

SEQUENCE = count(1)


def make_claim(
    payload: bytes = b"{}",
    headers: Mapping[str, str | None] | Sequence[tuple[str, str | None]] | None = None,
    **fields: Any,
) -> Claim:
    """An event as the store hands it out, with every optional field absent unless given."""
    now = datetime.now(UTC)
    seq = next(SEQUENCE)
    absent = dict.fromkeys(Claim._fields)
    base = {
        "seq": seq,
        "token": 1,
        "claimed_at": now,
        "attempts": 1,
        "attempts_base": 0,
        "crashes": 0,
        "lane": seq & 63,
        "event_id": str(uuid.uuid4()),
        "event_type": "order.created",
        "payload": payload,
        "headers_json": None if headers is None else json.dumps(_storable(headers)),
        "created_at": now - timedelta(hours=1),
    }
    return Claim(**with_moments({**absent, **base, **fields}))


def _storable(headers: Mapping[str, str | None] | Sequence[tuple[str, str | None]]) -> object:
    return dict(headers) if isinstance(headers, Mapping) else [list(pair) for pair in headers]


@dataclass(frozen=True)
class Received:
    """An event as a consumer sees it."""

    payload: bytes
    key: str | None
    headers: list[tuple[str, bytes | None]]
    event_id: str


class Target(ABC):
    """One publisher and what stands behind it; several events may arrive in any order. Each test
    has a topic, a stream, a mailbox of its own, which is empty at first."""

    publisher: Publisher
    deduplicates = False
    """The broker drops the second copy of an event, and acknowledges it as the first (NATS by
    Nats-Msg-Id, SQS FIFO). So a copy is Acked, and there is one of it."""
    largest = 900_000
    """The largest payload in bytes that arrives, where the transport takes less than most."""
    carries_headers = True
    """Whether the application's headers travel with the event. Not where the message's layout has
    no place for them (format Debezium, an e-mail)."""

    def fit(self, claim: Claim) -> Claim:
        """The same event as this target takes it, where it takes not just any: with a field that it
        needs, or with a payload of a certain form, from which `received` gets the payload back. Its
        event_id stays."""
        return claim

    @abstractmethod
    def received(self, n: int) -> list[Received]:
        """Wait for n events; return all that there are."""

    @abstractmethod
    def refused_claim(self) -> Claim:
        """An event that this target can never take."""

    @abstractmethod
    def break_down(self) -> None:
        """From now on the target does not answer; the fixture repairs it."""


class PatientTarget(Target):
    """One whose answer may be to come back later."""

    @abstractmethod
    def ask_for_patience(self, seconds: int) -> None:
        """From now on it refuses everything, and asks to be left alone for so long."""


def publish(target: Target, batch: Sequence[Claim]) -> Sequence[Outcome]:
    return target.publisher.publish([target.fit(claim) for claim in batch])


def publish_one(target: Target, claim: Claim) -> Outcome:
    (outcome,) = publish(target, [claim])
    return outcome


SAMPLES: Sequence[Sample] = (
    {"event_type": "order.created", "aggregate_type": None, "tenant_id": None},
)
"""Of the events that `make_claim` makes."""


class PublisherContract:
    def test_tc_05_each_event_gets_one_outcome_in_the_order_of_the_batch(
        self, target: Target
    ) -> None:
        batch = [make_claim(str(n).encode()) for n in range(20)]
        outcomes = publish(target, batch)
        assert len(outcomes) == 20
        assert all(isinstance(outcome, Acked) for outcome in outcomes)
        assert sorted(r.payload for r in target.received(20)) == sorted(c.payload for c in batch)

    def test_tc_05_an_empty_batch_has_no_outcomes(self, target: Target) -> None:
        assert list(target.publisher.publish([])) == []

    def test_tc_05_success_names_where_the_event_went(self, target: Target) -> None:
        outcome = publish_one(target, make_claim())
        assert isinstance(outcome, Acked)
        assert outcome.result

    def test_tc_15_only_the_targets_report_makes_it_a_success(self, target: Target) -> None:
        target.break_down()
        outcome = publish_one(target, make_claim())
        assert isinstance(outcome, Refused)
        assert outcome.error.kind is ErrorClass.OUTAGE

    def test_tc_16_success_needs_no_consumer(self, target: Target) -> None:
        assert isinstance(publish_one(target, make_claim()), Acked)  # nobody has read anything yet

    def test_oo_19_one_call_sends_each_event_once(self, target: Target) -> None:
        claim = make_claim()
        publish_one(target, claim)
        assert [r.event_id for r in target.received(1)] == [claim.event_id]
        assert isinstance(publish_one(target, claim), Acked)
        if target.deduplicates:
            last = make_claim()  # what arrives after the copy, so that the copy had its chance
            publish_one(target, last)
            found = sorted(r.event_id for r in target.received(2))
            assert found == sorted([claim.event_id, last.event_id])
        else:
            assert [r.event_id for r in target.received(2)] == [claim.event_id] * 2

    @pytest.mark.parametrize(
        "payload",
        [
            b'{"total": 12}',
            b"",
            b"\x00\x00\x00\x00\x07\x02Avro",
            b"{not json",
            b"\xff\xfe\x80 no utf-8",
            b"\x00" * 100,
            os.urandom(Target.largest),
        ],
        ids=["json", "empty", "avro", "broken json", "broken utf-8", "nul", "largest"],
    )
    def test_em_08_em_09_ek_17_any_payload_arrives_byte_for_byte(
        self, target: Target, payload: bytes
    ) -> None:
        payload = payload[: target.largest]
        assert isinstance(publish_one(target, make_claim(payload)), Acked)
        (received,) = target.received(1)
        assert received.payload == payload

    def test_oo_22_the_payload_has_the_same_hash_on_both_sides(self, target: Target) -> None:
        batch = [make_claim(os.urandom(n * 37)) for n in range(50)]
        publish(target, batch)
        sent = {hashlib.sha256(c.payload).digest() for c in batch}
        assert {hashlib.sha256(r.payload).digest() for r in target.received(50)} == sent

    def test_em_24_every_header_is_published(self, target: Target) -> None:
        publish_one(target, make_claim(headers={"region": "eu", "priority": "high"}))
        (received,) = target.received(1)
        assert (("region", b"eu") in received.headers) == target.carries_headers
        assert (("priority", b"high") in received.headers) == target.carries_headers

    def test_ce_25_the_idempotency_key_travels_along(self, target: Target) -> None:
        publish_one(target, make_claim(idempotency_key="order:42:created"))
        (received,) = target.received(1)
        values = [value for _, value in received.headers]
        assert b"order:42:created" in values or not target.carries_headers

    def test_em_26_a_consumer_can_choose_by_header(self, target: Target) -> None:
        publish(target, [make_claim(headers={"region": region}) for region in ("eu", "us", "eu")])
        chosen = [r for r in target.received(3) if ("region", b"eu") in r.headers]
        assert len(chosen) == (2 if target.carries_headers else 0)

    @pytest.mark.parametrize("headers", [None, {}, []], ids=["null", "object", "array"])
    def test_em_27_events_without_headers_are_published(
        self, target: Target, headers: dict[str, str | None] | list[tuple[str, str]] | None
    ) -> None:
        assert isinstance(publish_one(target, make_claim(headers=headers)), Acked)

    def test_em_51_oo_26_a_consumer_can_tell_a_duplicate_by_the_event_id(
        self, target: Target
    ) -> None:
        claim = make_claim()
        for attempts in (1, 2):
            assert isinstance(publish_one(target, claim._replace(attempts=attempts)), Acked)
        copies = 1 if target.deduplicates else 2
        assert [r.event_id for r in target.received(copies)] == [claim.event_id] * copies

    def test_oo_33_what_can_never_work_is_told_from_what_may(self, target: Target) -> None:
        (outcome,) = target.publisher.publish([target.refused_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.kind is ErrorClass.EVENT

    def test_tc_05_a_poisoned_event_does_not_fail_its_neighbours(self, target: Target) -> None:
        batch = [target.fit(make_claim(str(n).encode())) for n in range(9)]
        batch.insert(4, target.refused_claim())
        outcomes = list(target.publisher.publish(batch))
        poisoned = outcomes.pop(4)
        assert isinstance(poisoned, Refused)
        assert all(isinstance(outcome, Acked) for outcome in outcomes)
        assert len(target.received(9)) == 9

    def test_oo_27_an_error_has_a_code_and_a_bounded_text(self, target: Target) -> None:
        (outcome,) = target.publisher.publish([target.refused_claim()])
        assert isinstance(outcome, Refused)
        assert outcome.error.code
        assert 0 < len(outcome.error.text) <= MAX_ERROR_CHARS

    def test_oo_28_32_threads_get_one_result_for_each_event_of_theirs(self, target: Target) -> None:
        batches = [[make_claim(f"{t}-{n}".encode()) for n in range(25)] for t in range(32)]
        results: list[Sequence[Outcome]] = [[]] * 32
        start = threading.Barrier(32)

        def publish_mine(t: int) -> None:
            start.wait()
            results[t] = publish(target, batches[t])

        threads = [threading.Thread(target=publish_mine, args=(t,)) for t in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [len(outcomes) for outcomes in results] == [25] * 32
        assert all(isinstance(o, Acked) for outcomes in results for o in outcomes)
        sent = sorted(claim.event_id for batch in batches for claim in batch)
        assert sorted(r.event_id for r in target.received(800)) == sent

    def test_a_target_that_answers_passes_the_probe(self, target: Target) -> None:
        target.publisher.probe()

    def test_a_target_that_answers_passes_the_check_and_nothing_arrives_by_it(
        self, target: Target
    ) -> None:
        levels = [result.level for result in target.publisher.check(SAMPLES)]
        assert "ok" in levels
        assert "fail" not in levels
        assert target.received(0) == []

    def test_a_target_that_does_not_answer_fails_the_check_and_raises_nothing(
        self, target: Target
    ) -> None:
        target.break_down()
        failed = [result for result in target.publisher.check(SAMPLES) if result.level == "fail"]
        assert all(result.text for result in failed)
        assert failed

    def test_nothing_is_published_after_close(self, target: Target) -> None:
        target.publisher.close(timedelta(seconds=1))
        assert not isinstance(publish_one(target, make_claim()), Acked)


class PatienceContract:
    """Also, of a kind that knows Retry-After or the like."""

    def test_a_target_that_asks_for_patience_says_for_how_long(self, target: PatientTarget) -> None:
        target.ask_for_patience(37)
        outcome = publish_one(target, make_claim())
        assert isinstance(outcome, Refused)
        assert 36 <= outcome.after <= 37
        assert outcome.error.kind in (ErrorClass.TRANSIENT, ErrorClass.DESTINATION)
