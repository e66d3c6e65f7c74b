"""InternViT as it is, or compiled."""
from typing import Sequence

import torch

from lmdeploy_ext.vision.backend import VisionBackend, check, fill
from lmdeploy_ext.vision.vit import InternViT

# A CPU's caches hold the states of so many tiles: 8 at once took a fifth longer than twice 4.
CPU_TILES = 4


class EagerBackend(VisionBackend):
    """Runs `InternViT` operation by operation, or as `torch.compile` makes it.

    Args:
        vit: on the device that it is to run on.
        max_tiles: in one call.
        compiled: compile at the first call with one tile and at the first with more; later calls
            compile nothing, however many tiles they have.
    """

    def __init__(self, vit: InternViT, max_tiles: int, compiled: bool = False):
        self.device, self.dtype = vit.table.device, vit.table.dtype
        self.side, self.tokens, self.hidden = vit.side, vit.tokens, vit.hidden
        self.max_tiles = max_tiles
        self._vit = torch.compile(vit, fullgraph=True) if compiled else vit
        self._compiled = compiled
        self._at_once = CPU_TILES if self.device.type == 'cpu' else max_tiles

    # Not inference_mode: its tensors may not be written to outside of it, and it compiles anew.
    @torch.no_grad()
    def encode(self, tiles: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
        """As `VisionBackend.encode`.

        Raises:
            ValueError: `tiles` or `out` are not what the backend takes.
        """
        check(self, tiles, out)
        parts = [self._run(part) for part in tiles.split(self._at_once)]
        fill(out, parts[0] if len(parts) == 1 else torch.cat(parts))

    def _run(self, tiles: torch.Tensor) -> torch.Tensor:
        if self._compiled and len(tiles) > 1:
            # The size 1 is always compiled for itself; this keeps 2 from being, too.
            torch._dynamo.mark_dynamic(tiles, 0)
        return self._vit(tiles)
