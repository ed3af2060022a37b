"""The open event streams of the console: their number, their ends, and the news that all of them get.

A stream keeps at most one unsent frame of each kind, so that a slow browser costs no memory: the browser gets the
newest figures when it reads again. A stream ends when its session ends, when the permissions of its key change, and
when the gateway ends; the last event says why.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Literal, TypeAlias

import msgspec

from cmqd_gateway.callers.key_secrets import KeySecret
from cmqd_gateway.console.sampler import Sampler, frame_of

MAX_STREAMS: Final = 512
MAX_STREAMS_PER_KEY: Final = 16
"""Pages of a key. A page that is hidden closes its stream."""
PROBE_SECONDS: Final = 1.0
"""Time between two looks at the broker, while a stream is open."""

End: TypeAlias = Literal["session_ended", "key_changed", "draining"]
"""The reason of an end."""


class TooManyStreams(Exception):
    """The text says which limit is reached."""


class Access(msgspec.Struct, frozen=True):
    """The permissions of a key that the console depends on."""

    account: str
    is_admin: bool
    roles: tuple[str, ...]
    names: tuple[str, ...]

    @property
    def reads_figures(self) -> bool:
        """True if the key may read the figures of its account: the sums tell of all names."""
        return "read" in self.roles and "*" in self.names


class Opener(msgspec.Struct, frozen=True):
    """The caller that opened a stream."""

    key: KeySecret
    session: str | None = None
    """Identity of the session; None = the caller proves the key with each request."""
    expires_at: float | None = None
    """End of the session in seconds since 1970, unless later requests prolong it; None = no end."""


class Stream:
    """An open event stream."""

    def __init__(self, caller: "Opener", access: Access, checked_at: float) -> None:
        """Make a stream of a key.

        Args:
            caller: the key, and the session of its browser.
            access: the permissions of the key at the opening.
            checked_at: time of the opening, by the gateway's clock.
        """
        self.caller = caller
        self.access = access
        self.checked_at = checked_at
        """Time of the last check of the permissions."""
        self.wake = asyncio.Event()
        """Set when there is a frame, an end, or a need for a check."""
        self.ended: End | None = None
        self.must_check = False
        self._unsent: dict[str, bytes] = {}

    @property
    def key(self) -> KeySecret:
        """The key of the session."""
        return self.caller.key

    def post(self, kind: str, frame: bytes) -> None:
        """Take a frame; a frame takes the place of an unsent frame of the same kind."""
        self._unsent[kind] = frame
        self.wake.set()

    @property
    def has_unsent(self) -> bool:
        """True if there is a frame to send."""
        return bool(self._unsent)

    def take(self) -> bytes:
        """Return the unsent frames."""
        frames = b"".join(self._unsent.values())
        self._unsent.clear()
        return frames

    def check(self) -> None:
        """Have the permissions checked before anything else is sent."""
        self.must_check = True
        self.wake.set()

    def end(self, reason: End) -> None:
        """End the stream; the first reason counts."""
        self.ended = self.ended or reason
        self.wake.set()


class Streams:
    """The open streams of all keys."""

    def __init__(
        self,
        sampler: Sampler,
        is_ready: Callable[[], Awaitable[bool]],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """Keep the parts of the gateway.

        Args:
            sampler: reads the figures.
            is_ready: asks whether the broker answers; its result is shared for a second.
            wall_clock: the time of day, in seconds since 1970.
        """
        self._sampler = sampler
        self._is_ready = is_ready
        self._wall_clock = wall_clock
        self._streams: dict[Stream, None] = {}
        self._by_key: Counter[str] = Counter()
        self._is_draining = False
        self._watching: asyncio.Task[None] | None = None
        self.away_since: float | None = None
        """Time since which the broker does not answer, in seconds since 1970; None = the broker answers."""
        self.probe_seconds = PROBE_SECONDS
        sampler.is_away = lambda: self.away_since is not None

    def __len__(self) -> int:
        """Return the number of open streams."""
        return len(self._streams)

    @property
    def streams(self) -> Iterable[Stream]:
        """The open streams."""
        return self._streams

    def check_room(self, secret_id: str) -> None:
        """Check that a key may open another stream.

        Raises:
            TooManyStreams: the key, or all keys together, have as many streams as allowed.
        """
        if self._by_key[secret_id] >= MAX_STREAMS_PER_KEY:
            raise TooManyStreams(f"the key has {MAX_STREAMS_PER_KEY} open pages of the console; close a page")
        if len(self._streams) >= MAX_STREAMS:
            raise TooManyStreams(f"{MAX_STREAMS} pages of the console are open; try again later")

    def open(self, stream: Stream) -> None:
        """Count a stream, and watch the broker while a stream is open.

        Raises:
            TooManyStreams: see :meth:`check_room`.
        """
        self.check_room(stream.key.secret_id)
        self._streams[stream] = None
        self._by_key[stream.key.secret_id] += 1
        if self._is_draining:
            stream.end("draining")
        stream.post("broker", self._broker_frame())
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def close(self, stream: Stream) -> None:
        """Count a stream no more."""
        del self._streams[stream]
        secret_id = stream.key.secret_id
        self._by_key[secret_id] -= 1
        if not self._by_key[secret_id]:
            del self._by_key[secret_id]

    def key_changed(self, secret_id: str | None) -> None:
        """Have the streams of a key checked; None = all streams, because changes may have been missed."""
        self._sampler.key_changed(secret_id)
        for stream in self._streams:
            if secret_id in (None, stream.key.secret_id):
                stream.check()

    def session_ended(self, session: str) -> None:
        """End the streams of a session: its user has signed out."""
        for stream in self._streams:
            if stream.caller.session == session:
                stream.end("session_ended")

    def end_all(self) -> None:
        """End all streams, and every later stream at once: the gateway ends."""
        self._is_draining = True
        for stream in self._streams:
            stream.end("draining")

    async def stop(self) -> None:
        """Watch the broker no more."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])

    async def _watch(self) -> None:
        """Tell all streams when the broker is away and when it is back."""
        while self._streams:
            is_ready = await self._is_ready()
            if is_ready == (self.away_since is not None):
                self.away_since = None if is_ready else self._wall_clock()
                frame = self._broker_frame()
                for stream in self._streams:
                    stream.post("broker", frame)
                if is_ready:
                    self._sampler.wake()
            await asyncio.sleep(self.probe_seconds)
        # No stream would be told: the next stream asks anew.
        self.away_since = None

    def _broker_frame(self) -> bytes:
        return frame_of("broker", {"is_away": self.away_since is not None, "since": self.away_since})
