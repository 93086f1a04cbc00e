"""A new kind of publisher needs its models, and no code in spec: shown by one that nobody has."""

from typing import Any

import pytest
from pydantic import ValidationError

from outbox_core.contract.publishers.common import PublisherKind, Tls
from outbox_core.contract.publishers.kafka import KafkaSettings
from outbox_core.contract.publishers.union import PublisherSettings, PublisherUnion
from outbox_core.contract.settings import Behaviour
from outbox_core.contract.values import SecretRef, Settings
from outbox_operator.relay.spec.publishers.common import ServiceAccountToken, TlsRefs
from outbox_operator.relay.spec.publishers.union import PublisherSpec, rules_of_behaviour
from outbox_operator.relay.spec.secret_refs import translate
from outbox_operator.shared.objects import SecretKeyRef

# What relay.yaml has ---------------------------------------------------------------------------


class Login(Settings):
    name: str = "nobody"
    token: SecretRef | None = None


class Signing(Settings):
    secrets: tuple[SecretRef, ...] = ()


class Loft(Settings):
    url: str
    login: Login | None = None


class PigeonBase(PublisherKind):
    why_unordered = "pigeons overtake each other"
    on_a_leash: bool = False

    @property
    def holds_order(self) -> bool:
        return self.on_a_leash


class PigeonSettings(PigeonBase):
    food: SecretRef | None = None
    tls: Tls | None = None
    signing: Signing | None = None
    login: Login | None = None
    lofts: tuple[Loft, ...] = ()


# What an OutboxRelay has -----------------------------------------------------------------------


class LoginRefs(Settings):
    name: str = "nobody"
    token_secret_ref: SecretKeyRef | None = None
    service_account_token: ServiceAccountToken | None = None


class SigningRefs(Settings):
    secret_refs: tuple[SecretKeyRef, ...] = ()


class LoftRefs(Settings):
    url: str
    login: LoginRefs | None = None


class Pigeon(PigeonBase):
    food_secret_ref: SecretKeyRef | None = None
    tls: TlsRefs | None = None
    signing: SigningRefs | None = None
    login: LoginRefs | None = None
    lofts: tuple[LoftRefs, ...] = ()


class Birds(PublisherUnion):
    pigeon: Pigeon | None = None
    raven: Pigeon | None = None


def ref(key: str) -> SecretKeyRef:
    return SecretKeyRef(name="aviary", key=key)


def test_every_reference_becomes_a_file_that_the_pod_must_have() -> None:
    pigeon = Pigeon(
        food_secret_ref=ref("corn"),
        tls=TlsRefs(ca_secret_ref=ref("ca")),
        signing=SigningRefs(secret_refs=(ref("new"), ref("old"))),
        login=LoginRefs(name="me", service_account_token=ServiceAccountToken(audience="lofts")),
        lofts=(
            LoftRefs(url="a"),
            LoftRefs(url="b", login=LoginRefs(token_secret_ref=ref("token"))),
        ),
    )
    made = translate(pigeon, PigeonSettings, "pigeon")
    assert made.secrets == {
        "pigeon-food": ref("corn"),
        "pigeon-tls-ca": ref("ca"),
        "pigeon-signing-secret-0": ref("new"),
        "pigeon-signing-secret-1": ref("old"),
        "pigeon-lofts-1-login-token": ref("token"),
    }
    assert made.tokens == {
        "pigeon-login-service-account-token": ServiceAccountToken(audience="lofts")
    }
    at = "/etc/outbox/secrets/pigeon"
    assert made.written == {
        "deliveryTimeout": "30s",
        "maxMessageBytes": 1_000_000,
        "onALeash": False,
        "food": {"file": f"{at}-food"},
        "tls": {"caFile": f"{at}-tls-ca"},
        "signing": {
            "secrets": [{"file": f"{at}-signing-secret-0"}, {"file": f"{at}-signing-secret-1"}]
        },
        "login": {"name": "me", "token": {"file": f"{at}-login-service-account-token"}},
        "lofts": [
            {"url": "a"},
            {
                "url": "b",
                "login": {"name": "nobody", "token": {"file": f"{at}-lofts-1-login-token"}},
            },
        ],
    }
    PigeonSettings.model_validate(made.written)


@pytest.mark.parametrize("given", [Pigeon(), Pigeon(tls=TlsRefs())])
def test_where_there_is_no_secret_there_is_no_file(given: Pigeon) -> None:
    made = translate(given, PigeonSettings, "pigeon")
    assert (made.secrets, made.tokens) == ({}, {})
    read = PigeonSettings.model_validate(made.written)
    assert (read.tls is None) == (given.tls is None)


@pytest.mark.parametrize(
    "given", [{}, {"pigeon": Pigeon(), "raven": Pigeon()}], ids=["none", "both"]
)
def test_there_is_exactly_one_kind_and_the_refusal_names_them_all(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="name exactly one publisher: pigeon, raven"):
        Birds(**given)


def test_the_chosen_kind_is_known_by_its_name() -> None:
    birds = Birds(raven=Pigeon(max_message_bytes=2000))
    assert birds.kind == "raven"
    assert birds.chosen is birds.raven
    assert birds.timeout == Pigeon().delivery_timeout


def test_resource_and_file_have_the_same_kinds() -> None:
    assert PublisherSpec.kinds() == PublisherSettings.kinds()


class Flight(Behaviour):
    birds: Birds

    @property
    def publisher_union(self) -> Birds:
        return self.birds


def test_order_is_refused_where_the_kind_cannot_hold_it_with_the_reason() -> None:
    with pytest.raises(ValidationError, match="Key is not possible with raven: pigeons overtake"):
        Flight(birds=Birds(raven=Pigeon()), ordering="Key")
    Flight(birds=Birds(raven=Pigeon()), ordering="None")
    Flight(birds=Birds(raven=Pigeon(on_a_leash=True)), ordering="Key")
    assert KafkaSettings(bootstrap_servers="x:1").holds_order


def test_the_api_server_refuses_it_likewise() -> None:
    leash = {"raven": "self.publisher.raven.onALeash"}
    found = {rule.cel: rule.message for rule in rules_of_behaviour(Birds, leash)}
    assert len(found) == 6  # lease, drainTimeout and order, of each
    for kind, held in (("pigeon", ""), ("raven", " || self.publisher.raven.onALeash")):
        cel = f"self.ordering != 'Key' || !has(self.publisher.{kind}){held}"
        why = "pigeons overtake each other; use ordering: None"
        assert found[cel] == f"ordering: Key is not possible with {kind}: {why}"
