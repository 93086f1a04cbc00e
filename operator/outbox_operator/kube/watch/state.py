"""
A watch as it stands: one kind in one namespace, or in all, and whether it works.

Plain values. `watches` keeps them, `readiness` judges by them.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Watch:
    kind: str
    """Such as OutboxRelay."""
    resource: str
    """As `kubectl auth can-i` names it: `deployments.apps`."""
    namespace: str | None
    """None: all namespaces."""
    synced: bool = False
    """All was listed, and what changes is heard of."""
    trouble: str | None = None
    """Why not, as the API server put it; None: it was not refused."""
    forbidden: bool = False
    """A right is missing, and nothing else."""

    @property
    def is_known(self) -> bool:
        """It works, or it is known why it does not."""
        return self.synced or self.trouble is not None
