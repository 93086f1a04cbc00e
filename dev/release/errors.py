"""What stands in the way of a release, with the cure."""


class ReleaseError(Exception):
    def __init__(self, what: str, cure: str) -> None:
        super().__init__(f"{what}\n  -> {cure}")
