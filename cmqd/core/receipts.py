"""Receipt handles: the lease number behind a keyed permutation of the 64-bit integers.

The permutation hides how many receives a broker has served and makes a handle of one broker meaningless to another;
it is not what keeps a handle valid (that is the queue's table of leases).

     lease   | block (56 bits)                    | place (8 bits)             |
     handle  | permuted block (56 bits)           | place ^ top of that        |

Leases of one receive share a block as a rule, so one permutation serves a whole batch: what matters on the hot path.
The block goes through two rounds of an affine map modulo 2**56 with an odd factor and a right xor-shift, both of which
are bijections (the mixing steps of the SplitMix and Murmur finalizers): https://xoshiro.di.unimi.it/splitmix64.c
"""

from collections.abc import Iterable
from typing import TypeAlias

_BLOCK_BITS = 56
_MASK = (1 << _BLOCK_BITS) - 1
_SHIFT = 28
_PLACES = 256
_TOP = 48
"""Shift that leaves the uppermost 8 bits of a block."""

HandleKey: TypeAlias = tuple[int, int, int, int]
"""Two factors (made odd) and two summands, each of 64 random bits, of which 56 are used."""


class ReceiptHandles:
    """The permutation of one broker."""

    __slots__ = ("_a", "_a_inverse", "_b", "_c", "_c_inverse", "_d")

    def __init__(self, key: HandleKey) -> None:
        self._a = (key[0] | 1) & _MASK
        self._b = key[1] & _MASK
        self._c = (key[2] | 1) & _MASK
        self._d = key[3] & _MASK
        self._a_inverse = pow(self._a, -1, 1 << _BLOCK_BITS)
        self._c_inverse = pow(self._c, -1, 1 << _BLOCK_BITS)

    def _permuted(self, block: int) -> int:
        x = (block * self._a + self._b) & _MASK
        x = ((x ^ (x >> _SHIFT)) * self._c + self._d) & _MASK
        return x ^ (x >> _SHIFT)

    def _block(self, permuted: int) -> int:
        x = ((permuted ^ (permuted >> _SHIFT)) - self._d) * self._c_inverse & _MASK
        return ((x ^ (x >> _SHIFT)) - self._b) * self._a_inverse & _MASK

    def handles(self, first_lease: int, count: int) -> list[int]:
        """The handles of ``count`` leases from ``first_lease`` on."""
        made: list[int] = []
        lease, stop = first_lease, first_lease + count
        while lease < stop:
            block, place = divmod(lease, _PLACES)
            permuted = self._permuted(block)
            base, mix = permuted << 8, permuted >> _TOP
            last = min(_PLACES, place + stop - lease)
            made += [base | (one ^ mix) for one in range(place, last)]
            lease += last - place
        return made

    def leases(self, handles: Iterable[int]) -> list[int]:
        """The leases that handles stand for; any 64-bit integer stands for some number, others for none (-1)."""
        found: list[int] = []
        known: int | None = None
        base = mix = 0
        for handle in handles:
            permuted = handle >> 8
            if permuted != known:
                if not 0 <= permuted <= _MASK:
                    found.append(-1)
                    continue
                known = permuted
                base, mix = self._block(permuted) * _PLACES, permuted >> _TOP
            found.append(base | ((handle & 255) ^ mix))
        return found

    def handle(self, lease: int) -> int:
        """The handle of one lease."""
        return self.handles(lease, 1)[0]

    def lease(self, handle: int) -> int:
        """The lease of one handle."""
        return self.leases((handle,))[0]
