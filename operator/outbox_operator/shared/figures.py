"""Figures as people read them."""


def rounded(value: float) -> float:
    """Two digits."""
    return float(f"{value:.2g}")
