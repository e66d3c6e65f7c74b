"""One image to classify, and the compact identity by which ids are remembered."""
import hashlib
from dataclasses import dataclass, field
from typing import Mapping, Optional, Set, Union

_REMOTE = ('http://', 'https://')


@dataclass(frozen=True)
class Item:
    """One image of a source.

    Attributes:
        id: unique in its source; what a resumed run goes by.
        image: a path, an http(s) URL or a data URL.
        label: the expected label where the source has one; nothing here uses it.
        prompt: this image's own prompt; None for the run's.
        system: this image's own system message; None for the chat template's.
        options: how the engine cuts this image into tiles, `detail` and `max_dynamic_patch`, where
            that differs from the run's.
    """
    id: str
    image: str
    label: Optional[str] = None
    prompt: Optional[str] = None
    system: Optional[str] = None
    options: Mapping[str, Union[str, int]] = field(default_factory=dict)

    @property
    def is_remote(self) -> bool:
        return self.image.startswith(_REMOTE)

    @property
    def is_inline(self) -> bool:
        return self.image.startswith('data:')

    @property
    def is_file(self) -> bool:
        return not (self.is_remote or self.is_inline)

    @property
    def path(self) -> str:
        """What a row shows: the path or URL; of a data URL only its media type."""
        return self.image.partition(',')[0] if self.is_inline else self.image


class IdSet:
    """A set of ids that keeps 64 bits of each.

    About 60 bytes an id whatever its length; two of a million ids collide with a probability of
    3e-8.
    """

    def __init__(self) -> None:
        self._hashes: Set[int] = set()

    def add(self, id_: str) -> bool:
        """Add an id; False where it was there already."""
        before = len(self._hashes)
        self._hashes.add(_hash64(id_))
        return len(self._hashes) > before

    def __contains__(self, id_: str) -> bool:
        return _hash64(id_) in self._hashes

    def __len__(self) -> int:
        return len(self._hashes)


def _hash64(id_: str) -> int:
    # surrogatepass: a file name that is not valid UTF-8 is an id too
    digest = hashlib.blake2b(id_.encode('utf-8', 'surrogatepass'), digest_size=8).digest()
    return int.from_bytes(digest, 'big')
