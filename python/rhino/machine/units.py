"""Seconds and bytes as people write them."""

from __future__ import annotations


def seconds(value_s: float) -> str:
    """Seconds with three digits: "1.76 ms"."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if value_s >= scale:
            return f"{three_digits(value_s / scale)} {unit}"
    return "0 s" if value_s == 0 else f"{three_digits(value_s / 1e-9)} ns"


def nbytes(value_bytes: float) -> str:
    """Bytes with three digits and a binary unit: "1.16 MiB"."""
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if value_bytes >= 1 << shift:
            return f"{three_digits(value_bytes / (1 << shift))} {unit}"
    return f"{int(value_bytes)} B"


def three_digits(value: float) -> str:
    """A number from 1 up with three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def counted(number: int, what: str) -> str:
    """ "1 stage", "4 stages"."""
    return f"{number} {what}{'s' if number != 1 else ''}"
