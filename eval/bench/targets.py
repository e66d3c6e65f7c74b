"""The figures that the image pipeline is to reach, held against the measured rows."""
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .scope import NATIVE, OURS, SAME_TILES, SHIPPED_NAME

Rows = Sequence[Mapping[str, Any]]


def targets(rows: Rows) -> List[Dict[str, Any]]:
    """`{'name', 'want', 'got', 'met'}` of each figure; one whose rows were not measured is left
    out."""
    found = [
        _at_least('ratio to stock: 612x464 JPEG, same tiles, one thread', 10,
                  _ratio(rows, '612x464', SAME_TILES)),
        _at_least('ratio to stock: 612x464 JPEG, native, one thread', 20,
                  _ratio(rows, '612x464', NATIVE)),
        _at_least('ratio to stock: 4032x3024 JPEG, native, one thread', 5,
                  _ratio(rows, '4032x3024', NATIVE)),
        _at_least('all cores, share of linear scaling, the least of native and same tiles', 0.85,
                  _extreme(min, rows, 'cores', 'share_of_linear', (NATIVE, SAME_TILES))),
        _below('peak memory over decoded image, the largest of all ours, below', 4,
               _extreme(max, rows, 'memory', 'multiple', OURS)),
        *_fidelity(rows)
    ]
    return [target for target in found if target is not None]


def _fidelity(rows: Rows) -> List[Optional[Dict[str, Any]]]:
    """One figure for each folder of photographs that was given."""
    return [
        _at_least(f'PSNR of same tiles in dB, median over the photographs of {row["folder"]}', 44,
                  row['psnr_median_db']) for row in rows
        if row['part'] == 'photographs' and row['way'] == SAME_TILES
        and row['folder'] != SHIPPED_NAME
    ]


def _ratio(rows: Rows, size: str, way: str) -> Optional[float]:
    """Stock's time over a way's, of a JPEG."""
    return next((row['ratio'] for row in rows if row['part'] == 'size' and row['size'] == size
                 and row['format'] == 'JPEG' and row['way'] == way), None)


def _extreme(choose: Callable, rows: Rows, part: str, field: str,
             ways: Sequence[str]) -> Optional[float]:
    """The least or the largest value of a field over the rows of some ways."""
    return choose((row[field] for row in rows if row['part'] == part and row['way'] in ways),
                  default=None)


def _at_least(name: str, want: float, got: Optional[float]) -> Optional[Dict[str, Any]]:
    """A figure that is met from `want` on."""
    return None if got is None else {'name': name, 'want': want, 'got': got, 'met': got >= want}


def _below(name: str, want: float, got: Optional[float]) -> Optional[Dict[str, Any]]:
    """A figure that is met below `want`."""
    return None if got is None else {'name': name, 'want': want, 'got': got, 'met': got < want}
