"""
The state of a watch: one kind in one namespace, or in all, and whether it works.

Plain values. `watches` keeps them, `readiness` judges them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    kind: str
    """For example OutboxRelay."""
    resource: str
    """As `kubectl auth can-i` names it: `deployments.apps`."""
    namespace: str | None
    """None: all namespaces."""
    synced: bool = False
    """Everything is listed, and changes arrive."""
    trouble: str | None = None
    """Why it does not work, in the words of the API server; None: nothing has failed."""
    forbidden: bool = False
    """The only trouble is a missing right."""

    @property
    def is_known(self) -> bool:
        """It works, or it is known why not."""
        return self.synced or self.trouble is not None
