"""What turns tiles into features; see docs/vision.md."""
from typing import Protocol, Sequence

import torch


class VisionBackend(Protocol):
    """Something that encodes tiles. One thread at a time calls it.

    Attributes:
        device: where it takes tiles and computes.
        dtype: of the features.
        side: of a tile, in pixels.
        tokens: rows of features of a tile.
        hidden: length of a row.
        max_tiles: in one call.
    """
    device: torch.device
    dtype: torch.dtype
    side: int
    tokens: int
    hidden: int
    max_tiles: int

    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """Fill `out` with the features of tiles, in order.

        The work is issued to the current stream of `device`; the host does not wait for it.

        Args:
            tiles: uint8 RGB [n, side, side, 3] on `device`, n from 1 to `max_tiles`.
            out: tensors [n_i, tokens, hidden] whose n_i add up to n; they may be of another
                floating dtype.
        """
        ...


def run(backend: VisionBackend, tiles: torch.Tensor) -> torch.Tensor:
    """The features of tiles in a tensor of their own.

    Args:
        tiles: as `encode` takes them.

    Returns:
        [n, tokens, hidden] in the backend's dtype, on its device.
    """
    features = torch.empty((len(tiles), backend.tokens, backend.hidden), dtype=backend.dtype,
                           device=backend.device)
    backend.encode(tiles, [features])
    return features


def check(backend: VisionBackend, tiles: torch.Tensor, out: Sequence[torch.Tensor]):
    """Raise ValueError unless a call of `encode` is what its backend takes. Nothing is waited for.
    """
    side, most = backend.side, backend.max_tiles
    if (tiles.dtype != torch.uint8 or tiles.device != backend.device
            or tiles.shape[1:] != (side, side, 3)):
        raise ValueError(f'tiles are {tiles.dtype} {list(tiles.shape)} on {tiles.device}; '
                         f'expected torch.uint8 [n, {side}, {side}, 3] on {backend.device}')
    if not 1 <= len(tiles) <= most:
        raise ValueError(f'{len(tiles)} tiles in one call; expected 1 to {most}, cut them into '
                         'calls of at most so many')
    row = (backend.tokens, backend.hidden)
    for part in out:
        if part.shape[1:] != row or not part.is_floating_point():
            raise ValueError(f'out has a tensor {part.dtype} {list(part.shape)}; '
                             f'expected a floating dtype and [tiles, {row[0]}, {row[1]}]')
    if sum(len(part) for part in out) != len(tiles):
        raise ValueError(f'out is for {[len(part) for part in out]} tiles, but {len(tiles)} were '
                         'given; each tile needs its place')


def fill(out: Sequence[torch.Tensor], features: torch.Tensor):
    """Copy features [n, tokens, hidden] into the tensors of `out`, in order."""
    for part, found in zip(out, features.split([len(part) for part in out])):
        part.copy_(found, non_blocking=True)
