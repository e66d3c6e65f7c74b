"""Numbers of the CUDA graph pool."""
from dataclasses import dataclass
from typing import Mapping


@dataclass(frozen=True)
class GraphFigures:
    """Counters since the start, and what is there now.

    Attributes:
        graphs: that can be replayed now.
        bytes: of GPU memory that they hold: activations, which all share, input and output. What
            the driver keeps for the graphs themselves is not in it.
        limit_bytes: that they may hold.
        captures: graphs captured so far.
        capture_seconds: which that took.
        given_up: buckets that run without a graph: they would not fit, or could not be captured.
        replays: graphs run.
        replays_by_bucket: the same, by batch size.
        replayed_tiles: tiles that came out of graphs.
        padded_tiles: tiles that graphs computed for nothing.
        eager_runs, eager_tiles: slices run without a graph, and their tiles.
    """
    graphs: int
    bytes: int
    limit_bytes: int
    captures: int
    capture_seconds: float
    given_up: int
    replays: int
    replays_by_bucket: Mapping[int, int]
    replayed_tiles: int
    padded_tiles: int
    eager_runs: int
    eager_tiles: int
