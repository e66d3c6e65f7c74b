"""What a benchmark leaves beside its JSON file."""
import json
from pathlib import Path
from typing import Any, Callable, Mapping

Result = Mapping[str, Any]


def write_beside(out: Path, table: Callable[[Result], str], draw: Callable[[Result, Path], None],
                 summary: Callable[[Result], str]) -> None:
    """Write the table (.md) and the picture (.png) of a result, and print its summary and where
    all of it is.

    Args:
        out: the JSON file, written before.
    """
    result = json.loads(out.read_text(encoding='utf-8'))
    text, picture = out.with_suffix('.md'), out.with_suffix('.png')
    text.write_text(table(result), encoding='utf-8')
    draw(result, picture)
    print(summary(result))
    print(f'\nresult:  {out}\ntable:   {text}\npicture: {picture}')
