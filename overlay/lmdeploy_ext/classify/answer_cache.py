"""Identical images are computed once: finished verdicts on disk, unfinished ones in flight."""
import asyncio
import hashlib
import json
import logging
import sqlite3
from dataclasses import asdict
from typing import Awaitable, Callable, Dict, Optional, Tuple

from .item import Item
from .row import Verdict

_LOGGER = logging.getLogger('lmdeploy_ext')
_MEMORY_KIB = 16 << 10


def content_key(data: bytes, item: Item) -> bytes:
    """16 bytes that are equal for identical image bytes asked the same question."""
    digest = hashlib.blake2b(data, digest_size=16)
    own = [item.prompt, item.system, sorted(item.options.items())]
    digest.update(json.dumps(own).encode())
    return digest.digest()


class VerdictCache:
    """Verdicts by content key.

    Finished ones lie in a private SQLite database that spills to disk, so that memory does not
    grow with the number of images. Failures are not kept. For one event loop at a time.
    """

    def __init__(self) -> None:
        # an empty name: a temporary database that SQLite deletes when it is closed
        self._database = sqlite3.connect('', isolation_level=None, check_same_thread=False)
        self._database.execute(f'PRAGMA cache_size = -{_MEMORY_KIB}')
        self._database.execute('PRAGMA journal_mode = OFF')
        self._database.execute('CREATE TABLE verdicts (key BLOB PRIMARY KEY, verdict TEXT) '
                               'WITHOUT ROWID')
        self._in_flight: Dict[bytes, 'asyncio.Task[Verdict]'] = {}

    async def get(self, key: bytes, compute: Callable[[],
                                                      Awaitable[Verdict]]) -> Tuple[Verdict, bool]:
        """The verdict of `key`, and whether it was computed for another image.

        Raises:
            Whatever `compute` raises; to everybody who waits for that computation.
        """
        found = self._load(key)
        if found is not None:
            return found, True
        if key in self._in_flight:
            # shielded: who merely waits must not cancel the computation of others
            return await asyncio.shield(self._in_flight[key]), True
        task = asyncio.ensure_future(compute())
        self._in_flight[key] = task
        try:
            verdict = await task
        finally:
            del self._in_flight[key]
        self._store(key, verdict)
        return verdict, False

    def close(self) -> None:
        self._database.close()

    def _load(self, key: bytes) -> Optional[Verdict]:
        rows = self._database.execute('SELECT verdict FROM verdicts WHERE key = ?', (key, ))
        found = rows.fetchone()
        return None if found is None else Verdict(**json.loads(found[0]))

    def _store(self, key: bytes, verdict: Verdict) -> None:
        try:
            self._database.execute('INSERT INTO verdicts VALUES (?, ?)',
                                   (key, json.dumps(asdict(verdict))))
        except sqlite3.OperationalError as error:
            # the disk for temporary files is full: then copies are computed again
            _LOGGER.warning('cannot keep a verdict for identical images: %s', error)
