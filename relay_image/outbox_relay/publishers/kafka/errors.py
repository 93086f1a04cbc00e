"""Whose fault an error of Kafka is: the event's, a topic's, the broker's, or not known."""

from typing import Final

from confluent_kafka import KafkaError

from outbox_core.model.attempt import Error, ErrorClass

OF_THE_EVENT: Final = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,  # an illegal name
        KafkaError.INVALID_RECORD,  # for example no key in a compacted topic
    )
)
"""Only what is certainly the event's own fault: it is DEAD at once. What a person may have
misconfigured (rights, formats, clocks) is retried as the retry policy allows."""

OF_THE_BROKER: Final = frozenset(
    (
        # No answer, or not in time.
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._RESOLVE,
        KafkaError._SSL,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError._QUEUE_FULL,
        # It does not know us at all; rights on a single topic are another matter.
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        # It answers, and cannot take anything now.
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.NOT_CONTROLLER,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.THROTTLING_QUOTA_EXCEEDED,
        # The broker no longer accepts our producer, which is replaced.
        KafkaError._FATAL,
        KafkaError._GAPLESS_GUARANTEE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError._DESTROY,
        KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER,
        KafkaError.UNKNOWN_PRODUCER_ID,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
    )
)

OF_THE_TOPIC: Final = frozenset(
    (
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        KafkaError.KAFKA_STORAGE_ERROR,
    )
)
"""A partition cannot take anything now; those of other topics can. The client tries again by itself
until our patience ends, so what is reported is mostly a timeout: whose fault that is,
`destinations` finds out."""

LETS_NOBODY_IN: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.UNSUPPORTED_SASL_MECHANISM,
        KafkaError.ILLEGAL_SASL_STATE,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
)
"""The broker answers, but a name, a password, a certificate or a mechanism is wrong."""

IN_DOUBT: Final = frozenset(
    (
        KafkaError._FATAL,
        KafkaError._GAPLESS_GUARANTEE,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    )
)
"""Reports that say nothing about the message: something else ended before it had its turn."""


def kind_of(code: int) -> ErrorClass:
    if code in OF_THE_EVENT:
        return ErrorClass.EVENT
    if code in OF_THE_BROKER:
        return ErrorClass.OUTAGE
    if code in OF_THE_TOPIC:
        return ErrorClass.DESTINATION
    # Unknown topics, rights on a topic, quotas, policies, or a code that we do not know. It is
    # retried, because it may be repaired, but not forever, or a mistake would go unnoticed.
    return ErrorClass.TRANSIENT


def error_of(error: KafkaError, because: str = "") -> Error:
    return Error.of(kind_of(error.code()), error.name(), error.str() + because)
