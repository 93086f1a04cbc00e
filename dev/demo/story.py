"""
What the demo shows. Each step explains what it does, does it, and checks the result.

Called by `__main__` on a `stage` that is set up. What is checked is asked of the cluster again, not
taken from what was shown.
"""

import json
from collections.abc import Callable
from typing import Any

from .stage import APPS, CHART, MANIFESTS, ROOT, Stage, Wish
from .terminal import DemoError, Terminal

RELEASE = "outbox-operator"
RELAY = "orders"
RELAY_PODS = f"app.kubernetes.io/instance={RELAY},app.kubernetes.io/component=relay"
POISON = "order.paid/twice"
"""An event type of which no topic can be made: Kafka allows no slash."""


class Story:
    def __init__(self, wish: Wish, stage: Stage, terminal: Terminal) -> None:
        self._wish = wish
        self._stage = stage
        self._terminal = terminal
        self._kubectl = f"kubectl -n {wish.namespace}"

    def tell(self) -> None:
        steps: tuple[Callable[[], None], ...] = (
            self._start_servers,
            self._install_operator,
            self._prepare_database,
            self._create_relay,
            self._place_orders,
            self._kill_a_pod,
            self._count,
            self._poison,
            self._fix,
            self._replay,
        )
        for step in steps:
            step()

    # The stage is filled ------------------------------------------------------------------------

    def _start_servers(self) -> None:
        self._terminal.step(
            "PostgreSQL and Kafka",
            "One pod each, in a namespace that lets no pod have more rights than it needs.",
        )
        namespace = self._wish.namespace
        if self._terminal.ask(f"kubectl get namespace {namespace} --ignore-not-found"):
            self._terminal.say("What an earlier demo left there goes first.")
            self._terminal.show(f"kubectl delete namespace {namespace}")
        self._terminal.show(f"kubectl create namespace {namespace}")
        self._terminal.show(
            f"kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=restricted"
        )
        self._show(f"apply -f {self._wish.written / 'backends.yaml'}")

    def _install_operator(self) -> None:
        self._terminal.step(
            "The operator, by its chart",
            "It brings the kinds OutboxRelay and OutboxReplay, and manages them.",
        )
        options = [
            f"--namespace {self._wish.system} --create-namespace",
            f"--values {self._wish.written / 'values.yaml'} --wait --timeout 90s",
        ]
        if not self._wish.crds:
            options.append("--set crds.enabled=false")
        elif self._stage.take_ownership:
            options.append("--take-ownership --force-conflicts")
        command = f"helm upgrade --install {RELEASE} {CHART} {' '.join(options)}"
        self._terminal.show(f"{command} --hide-notes")
        for server in ("postgres", "kafka"):
            self._show(f"rollout status deployment/{server} --timeout=90s")

    def _prepare_database(self) -> None:
        self._terminal.step(
            "A shop and its billing",
            f"The shop writes orders, billing gets their events and writes invoices: see {APPS}.",
        )
        self._show(
            "exec -i deployment/postgres -- psql -q -v ON_ERROR_STOP=1 -U postgres shop",
            MANIFESTS / "database.sql",
        )
        self._show(f"create configmap apps --from-file={APPS}")
        self._show(f"apply -f {self._wish.written / 'billing.yaml'}")

    def _create_relay(self) -> None:
        self._terminal.step(
            "An OutboxRelay",
            "Which database, which events, which Kafka. The operator makes pods of it; the first",
            "creates the outbox in the database.",
        )
        dsn = "postgresql://relay:only-for-this-demo@postgres/shop"
        self._show(f"create secret generic orders-db --from-literal=dsn={dsn}")
        self._terminal.show(f"cat {MANIFESTS / 'relay.yaml'}")
        self._show(f"apply -f {MANIFESTS / 'relay.yaml'}")
        self._show(f"wait --for=condition=Ready obr/{RELAY} --timeout=90s")
        self._wait_for_pods()
        self._show("get outboxrelays")

    # What it is for -----------------------------------------------------------------------------

    def _place_orders(self) -> None:
        self._terminal.step(
            "Orders, and their events",
            "Each order and its event are one transaction. A declined payment rolls it back: no",
            "order, and no event. Of every event billing makes an invoice.",
        )
        self._wait(
            lambda: "listening" in self._ask("logs deployment/billing"), 60, "billing listens"
        )
        self._show(f"apply -f {self._wish.written / 'shop.yaml'}")
        enough = self._wish.orders // 2
        self._wait(lambda: self._account()["invoices"] >= enough, 90, f"{enough} invoices")
        self._show("logs deployment/shop --tail=2")
        self._show("logs deployment/billing --tail=2")
        self._show("get outboxrelays")

    def _kill_a_pod(self) -> None:
        self._terminal.step(
            "A relay's pod is killed under load",
            "The shop notices nothing. The other pod publishes what this one had claimed when the",
            "lease has expired, and Kubernetes starts a third.",
        )
        self._wait_for_pods()
        self._show(f"get pods -l {RELAY_PODS}")
        victim = self._relay_pods()[0]
        before = self._account()["orders"]
        self._show(f"delete {victim} --grace-period=0 --force")
        enough = before + self._wish.orders // 2
        self._wait(lambda: self._account()["orders"] >= enough, 90, f"{enough} orders are placed")
        self._wait_for_pods()
        self._show(f"get pods -l {RELAY_PODS}")
        if victim in self._relay_pods():
            raise DemoError(f"{victim} was killed, and is still there")

    def _count(self) -> None:
        self._terminal.step(
            "Nothing is lost, and the order is kept",
            "The shop stops, so that it can be counted: every order that was committed has its",
            "invoice, and nothing else has one.",
        )
        self._show("scale deployment/shop --replicas=0")
        self._show("wait --for=delete pod -l app=shop --timeout=60s")
        # Longer than a lease: if it is not there by then, it is lost.
        self._wait(lambda: self._account()["lost"] == 0, 60, "every order has its invoice")
        self._show("exec deployment/postgres -- psql -U postgres shop -c 'TABLE account'")
        account = self._account()
        wrong = {n: account[n] for n in ("lost", "invented", "disordered") if account[n]}
        if wrong or account["orders"] != account["invoices"]:
            raise DemoError(f"orders and invoices do not match: {account}")
        if account["orders"] < self._wish.orders:
            raise DemoError(f"{account['orders']} orders are fewer than {self._wish.orders}")
        self._terminal.say(
            f"{account['orders']} orders, {account['invoices']} invoices, 0 lost, 0 out of order."
        )

    def _poison(self) -> None:
        self._terminal.step(
            "A poison event",
            f"The topic is the event's type, and Kafka allows no topic to be called {POISON}.",
            "The event is DEAD at once, no other waits for it, and the resource's status shows it.",
        )
        emit = f"SELECT outbox.emit('{POISON}', '{{}}'::jsonb)"
        self._show(f'exec deployment/postgres -- psql -U postgres shop -c "{emit}"')
        self._show(f"wait --for=condition=BacklogHealthy=false obr/{RELAY} --timeout=60s")
        self._show("get outboxrelays")
        path = '{.status.conditions[?(@.type=="BacklogHealthy")].message}{"\\n"}'
        message = self._show(f"get obr {RELAY} -o jsonpath='{path}'")
        self._wait(lambda: bool(self._dead_letter_events()), 30, "an Event reports dead letters")
        self._show(f"events --for outboxrelay/{RELAY} --types=Warning")
        self._show(f"exec deployment/{RELAY}-relay -- outbox-relay dead")
        status = self._relay()["status"]
        if status["backlog"]["dead"] != 1 or POISON not in message:
            raise DemoError(f"the status does not show the dead event: {status}")
        if not any(POISON in event["message"] for event in self._dead_letter_events()):
            raise DemoError(f"no Event names the cause: {self._dead_letter_events()}")

    def _fix(self) -> None:
        self._terminal.step(
            "Fix the cause, then do a dry run",
            "From now on all events go to one topic. What would a replay bring back? An",
            "OutboxReplay with dryRun shows it in its status, and changes nothing.",
        )
        topic = '{"spec": {"publisher": {"kafka": {"topic": "order.placed"}}}}'
        self._show(f"patch obr {RELAY} --type merge -p '{topic}'")
        self._show(f"create -f {MANIFESTS / 'replay-look.yaml'}")
        self._show("wait --for=condition=Complete obrp/look --timeout=60s")
        self._show("get outboxreplay look -o jsonpath-as-json={.status.preview}")
        status = self._status("obrp/look")
        if status["matched"] != 1 or status.get("replayed") or self._dead() != 1:
            raise DemoError(f"a dry run of one dead event shows something else: {status}")

    def _replay(self) -> None:
        self._terminal.step(
            "A replay",
            "The same without dryRun: Spark's driver plans it in the database and gives the events",
            "back to the relay, which publishes them. Millions take the same way, on executors.",
        )
        self._show(f"rollout status deployment/{RELAY}-relay --timeout=60s")
        self._show(f"create -f {MANIFESTS / 'replay.yaml'}")
        self._show("wait --for=condition=Complete obrp/again --timeout=90s")
        self._show("get outboxreplays")
        self._wait(lambda: self._dead() == 0, 30, "no event is dead any more")
        self._show("get outboxrelays")
        published = (
            "exec deployment/postgres -- psql -U postgres shop -Atc "
            f"\"SELECT state FROM outbox.events WHERE event_type = '{POISON}'\""
        )
        self._wait(lambda: self._ask(published).strip() == "PUBLISHED", 30, "it is published")

    # Asking -------------------------------------------------------------------------------------

    def _show(self, arguments: str, given: Any = None) -> str:
        return self._terminal.show(f"{self._kubectl} {arguments}", given and ROOT / given)

    def _ask(self, arguments: str) -> str:
        return self._terminal.ask(f"{self._kubectl} {arguments}")

    def _wait(self, seen: Callable[[], bool], within: float, what: str) -> None:
        self._terminal.wait(seen, within, what)

    def _account(self) -> dict[str, int]:
        query = "exec deployment/postgres -- psql -U postgres shop --csv -c 'TABLE account'"
        names, figures = self._ask(query).splitlines()
        return dict(zip(names.split(","), map(int, figures.split(",")), strict=True))

    def _status(self, resource: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask(f"get {resource} -o json"))["status"]
        return found

    def _dead(self) -> int:
        return int(self._status(f"obr/{RELAY}")["backlog"]["dead"])

    def _relay(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._ask(f"get obr {RELAY} -o json"))
        return found

    def _wait_for_pods(self) -> None:
        replicas = self._relay()["spec"]["replicas"]

        def ready() -> bool:
            status = self._relay().get("status", {})
            return bool(
                status.get("readyReplicas") == replicas and len(self._relay_pods()) == replicas
            )

        self._wait(ready, 60, f"{replicas} ready pods of relay {RELAY}")

    def _relay_pods(self) -> list[str]:
        return self._ask(f"get pods -l {RELAY_PODS} -o name").split()

    def _dead_letter_events(self) -> list[dict[str, Any]]:
        about = f"involvedObject.name={RELAY},reason=DeadLetters"
        found: list[dict[str, Any]] = json.loads(
            self._ask(f"get events --field-selector {about} -o json")
        )["items"]
        return found
