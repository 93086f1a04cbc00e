"""The one error of this tool: what is wrong, and what the reader can do about it."""

FULL = (
    "free some space; XDG_CACHE_HOME moves what is built to another disk, `go env -w GOCACHE=...` "
    "what Go keeps, and /var/lib/outbox-cluster, where the node lives, may be a mount of one"
)


class ClusterError(RuntimeError):
    def __init__(self, cause: str, cure: str = "") -> None:
        super().__init__(f"{cause}\n  {cure}" if cure else cause)
        self.cause = cause
        self.cure = cure


def tells_of_a_full_disk(output: str) -> bool:
    return "no space left on device" in output.lower()
