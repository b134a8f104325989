"""Sets of ordinals as a store keeps them: a bitmap, lowest ordinal in the lowest bit of the first byte."""

from collections.abc import Iterable


def pack(ordinals: Iterable[int]) -> bytes:
    """The bitmap of a set of ordinals; empty for the empty set. ValueError for a negative ordinal."""
    bits = 0
    for ordinal in ordinals:
        bits |= 1 << ordinal
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def unpack(bitmap: bytes) -> list[int]:
    """The ordinals of a bitmap, rising."""
    found = []
    for place, byte in enumerate(bitmap):
        base = place * 8
        while byte:
            low = byte & -byte
            found.append(base + low.bit_length() - 1)
            byte ^= low
    return found
