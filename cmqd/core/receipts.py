"""Receipt handles: the lease number behind a keyed permutation of the 64-bit integers.

The permutation hides how many receives a broker has served and makes a handle of one broker meaningless to another;
it is not what keeps a handle valid (that is the queue's table of leases). Two rounds of an affine map modulo 2**64 with
an odd factor and a right xor-shift, both of which are bijections (the mixing steps of the SplitMix and Murmur
finalizers): https://xoshiro.di.unimi.it/splitmix64.c
"""

from typing import TypeAlias

MASK = (1 << 64) - 1

HandleKey: TypeAlias = tuple[int, int, int, int]
"""Two factors (made odd) and two summands, each of 64 random bits."""


class ReceiptHandles:
    """The permutation of one broker."""

    __slots__ = ("_a", "_a_inverse", "_b", "_c", "_c_inverse", "_d")

    def __init__(self, key: HandleKey) -> None:
        self._a = (key[0] | 1) & MASK
        self._b = key[1] & MASK
        self._c = (key[2] | 1) & MASK
        self._d = key[3] & MASK
        self._a_inverse = pow(self._a, -1, 1 << 64)
        self._c_inverse = pow(self._c, -1, 1 << 64)

    def handle(self, lease: int) -> int:
        """The handle of a lease."""
        x = (lease * self._a + self._b) & MASK
        x = ((x ^ (x >> 32)) * self._c + self._d) & MASK
        return x ^ (x >> 32)

    def handles(self, first_lease: int, count: int) -> list[int]:
        """The handles of ``count`` leases from ``first_lease`` on (the hot path's :meth:`handle`)."""
        a, b, c, d = self._a, self._b, self._c, self._d
        made: list[int] = []
        for lease in range(first_lease, first_lease + count):
            x = (lease * a + b) & MASK
            x = ((x ^ (x >> 32)) * c + d) & MASK
            made.append(x ^ (x >> 32))
        return made

    def lease(self, handle: int) -> int:
        """The lease that a handle stands for; any 64-bit integer stands for some number."""
        x = ((handle ^ (handle >> 32)) - self._d) * self._c_inverse & MASK
        return ((x ^ (x >> 32)) - self._b) * self._a_inverse & MASK
