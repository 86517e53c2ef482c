"""Keeping a short list varied."""

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def varied(
    ordered: Sequence[T],
    kind: Callable[[T], Hashable],
    most: int,
    near: Callable[[T], bool],
) -> list[T]:
    """ordered, with those first that are near the best and among the first `most` of their kind."""
    first: list[T] = []
    later: list[T] = []
    taken: Counter[Hashable] = Counter()
    for item in ordered:
        (first if near(item) and taken[kind(item)] < most else later).append(item)
        taken[kind(item)] += 1
    return [*first, *later]
