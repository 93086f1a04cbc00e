"""Figures rounded for people."""


def rounded(value: float) -> float:
    """To two significant digits."""
    return float(f"{value:.2g}")
