"""Receipt handles: the lease number behind a keyed permutation of the 64-bit integers.

The permutation hides the number of receives that a broker has served, and a handle of one broker means nothing to a
different broker. The permutation does not keep a handle valid: the queue's table of leases does.

     lease   | block (56 bits)                    | place (8 bits)             |
     handle  | permuted block (56 bits)           | place ^ top of that        |

Leases of a receive usually share a block, so a single permutation serves a whole batch and more.
The block goes through two rounds of an affine map modulo 2**56 with an odd factor and a right xor-shift. Both steps are
bijections (the mixing steps of the SplitMix and Murmur finalizers): https://xoshiro.di.unimi.it/splitmix64.c
"""

from collections.abc import Iterable
from typing import TypeAlias

_BLOCK_BITS = 56
_MASK = (1 << _BLOCK_BITS) - 1
_SHIFT = 28
_TOP = 48
"""Shift that leaves the uppermost 8 bits of a block."""

HandleKey: TypeAlias = tuple[int, int, int, int]
"""Two factors (made odd) and two summands, all of 64 random bits, of which 56 are used."""


class ReceiptHandles:
    """The permutation of a broker; the last block in each direction is cached, since recent leases share a block."""

    def __init__(self, key: HandleKey) -> None:
        self.use_key(key)

    def use_key(self, key: HandleKey) -> None:
        """Take another key: handles that were made before are invalid."""
        self._a = (key[0] | 1) & _MASK
        self._b = key[1] & _MASK
        self._c = (key[2] | 1) & _MASK
        self._d = key[3] & _MASK
        self._a_inverse = pow(self._a, -1, 1 << _BLOCK_BITS)
        self._c_inverse = pow(self._c, -1, 1 << _BLOCK_BITS)
        self._to = self._permute(0)
        """(block, its permuted block shifted to its bits, mask for its places)"""
        self._from = self._restore(0)
        """(permuted block, its block shifted to its bits, mask for its places)"""

    def _permute(self, block: int) -> tuple[int, int, int]:
        x = (block * self._a + self._b) & _MASK
        x = ((x ^ (x >> _SHIFT)) * self._c + self._d) & _MASK
        x ^= x >> _SHIFT
        self._to = (block, x << 8, x >> _TOP)
        return self._to

    def _restore(self, permuted: int) -> tuple[int, int, int]:
        x = ((permuted ^ (permuted >> _SHIFT)) - self._d) * self._c_inverse & _MASK
        x = ((x ^ (x >> _SHIFT)) - self._b) * self._a_inverse & _MASK
        self._from = (permuted, x << 8, permuted >> _TOP)
        return self._from

    def handles(self, first_lease: int, count: int) -> list[int]:
        """Return the handles of ``count`` leases from ``first_lease`` on."""
        known, base, mix = self._to
        made: list[int] = []
        for lease in range(first_lease, first_lease + count):
            if lease >> 8 != known:
                known, base, mix = self._permute(lease >> 8)
            made.append(base | ((lease & 255) ^ mix))
        return made

    def leases(self, handles: Iterable[int]) -> list[int]:
        """Return the leases of handles; a number beyond 64 bits has no lease (-1), any other number has a lease."""
        known, base, mix = self._from
        found: list[int] = []
        for handle in handles:
            permuted = handle >> 8
            if permuted != known:
                if not 0 <= permuted <= _MASK:
                    found.append(-1)
                    continue
                known, base, mix = self._restore(permuted)
            found.append(base | ((handle & 255) ^ mix))
        return found

    def handle(self, lease: int) -> int:
        """Return the handle of a lease."""
        return self.handles(lease, 1)[0]

    def lease(self, handle: int) -> int:
        """Return the lease of a handle."""
        return self.leases((handle,))[0]
