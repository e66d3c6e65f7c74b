"""The figures that the vision encoder is to reach, held against the measured rows."""
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .vit_ways import COMPILE, COMPILED_GRAPHS, EAGER, GRAPHS, REPLICAS

Rows = Sequence[Mapping[str, Any]]
ONE_GPU = (EAGER, GRAPHS, COMPILE, COMPILED_GRAPHS)
SHAPE_OF_TARGETS = '8b'
SHAPES_300M = ('1b', '2b', '8b')
MIB_OF_1_GB = 1e9 / 2**20
TILES_OF_REPLICAS = 64


def targets(rows: Rows) -> List[Dict[str, Any]]:
    """`{'name', 'want', 'got', 'met'}` of each figure whose rows were measured.

    Those of speed and memory hold for one kind of model on a GPU. Of our ways on one GPU the
    fastest counts, and is named.
    """
    setup = next(row for row in rows if row['part'] == 'setup')
    found = [_below('tile scheduler, ms a batch, below', 0.3, _scheduler_ms(rows))]
    if setup['device'].startswith('cuda'):
        if setup['shape'] in SHAPES_300M:
            found.append(_below('graphs of 1 to 8 tiles, MiB, below', MIB_OF_1_GB,
                                _graph_mib(rows)))
        if setup['shape'] == SHAPE_OF_TARGETS:
            found += [_at_least('1 tile, times faster than stock', 2.8, _best(rows, 1, 'ratio')),
                      _at_least('13 tiles, times faster than stock', 2.4,
                                _best(rows, 13, 'ratio')),
                      _at_least('104 tiles, tiles/s', 580, _best(rows, 104, 'tiles_per_second'))]
        if setup['devices'] == 2:
            found.append(_at_least(f'{TILES_OF_REPLICAS} tiles on two GPUs, times one\'s tiles/s',
                                   1.7, _replicas(rows)))
    return [target for target in found if target is not None]


def _best(rows: Rows, tiles: int, field: str) -> Optional[Tuple[float, str]]:
    """The largest value of a field over our ways on one GPU, and the way."""
    return max(((row[field], row['way']) for row in rows if row['part'] == 'speed'
                and row['tiles'] == tiles and row['way'] in ONE_GPU), default=None)


def _scheduler_ms(rows: Rows) -> Optional[float]:
    """What a GPU at work has of it; on a CPU, which does one thing after the other, all of it."""
    on_gpu = next(row for row in rows if row['part'] == 'setup')['device'].startswith('cuda')
    return next((row.get('added_ms' if on_gpu else 'wall_ms') for row in rows
                 if row['part'] == 'scheduler'), None)


def _graph_mib(rows: Rows) -> Optional[float]:
    """Of the way without a compiler, all of whose graphs were captured."""
    return next((row['mib'] for row in rows if row['part'] == 'graphs' and row['way'] == GRAPHS
                 and not row['given_up']), None)


def _replicas(rows: Rows) -> Optional[Tuple[float, str]]:
    """Tiles/s of all GPUs over those of one, both with graphs."""
    speeds = {row['way']: row['tiles_per_second'] for row in rows if row['part'] == 'speed'
              and row['tiles'] == TILES_OF_REPLICAS}
    if GRAPHS not in speeds or REPLICAS not in speeds:
        return None
    return round(speeds[REPLICAS] / speeds[GRAPHS], 3), REPLICAS


def _at_least(name: str, want: float,
              got: Optional[Tuple[float, str]]) -> Optional[Dict[str, Any]]:
    """A figure that is met from `want` on, with the way that reached it."""
    if got is None:
        return None
    return {'name': f'{name} ({got[1]})', 'want': want, 'got': got[0], 'met': got[0] >= want}


def _below(name: str, want: float, got: Optional[float]) -> Optional[Dict[str, Any]]:
    """A figure that is met below `want`."""
    return None if got is None else {'name': name, 'want': round(want, 1), 'got': got,
                                     'met': got < want}
