"""The one error of this tool: what is wrong, and what the reader can do about it."""


class ImageError(RuntimeError):
    def __init__(self, cause: str, cure: str = "") -> None:
        super().__init__(f"{cause}\n  {cure}" if cure else cause)
