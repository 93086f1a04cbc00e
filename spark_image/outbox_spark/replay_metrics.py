"""Metrics of a bulk replay: its report, for Prometheus."""

from prometheus_client import CollectorRegistry, Gauge

from outbox_core.contract.replay import ReplayReport


class ReplayMetrics:
    def __init__(self) -> None:
        self.registry = r = CollectorRegistry()
        self._matched = Gauge("outbox_replay_matched", "Events in the frozen plan", registry=r)
        self._replayed = Gauge(
            "outbox_replay_replayed", "Events given back to the relay", registry=r
        )
        self._skipped = Gauge(
            "outbox_replay_skipped", "Events skipped, by their state", ["reason"], registry=r
        )
        self._rate = Gauge("outbox_replay_rate", "Events per second, recently", registry=r)
        self._pace = Gauge("outbox_replay_pace", "Allowed events per second", registry=r)

    def show(self, report: ReplayReport) -> None:
        self._matched.set(report.matched or 0)
        self._replayed.set(report.replayed)
        for reason, count in report.skipped_because.items():
            self._skipped.labels(reason).set(count)
        self._rate.set(report.rate)
        self._pace.set(report.pace or 0)
