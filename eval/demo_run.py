"""What `make demo` runs after set-up: stock against patched LMDeploy on the demo model and set."""
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping

from .errors import EvalError
from .provenance import gpus, usable_cores
from .runner import evaluate
from .settings import EvalSettings
from .variants import parse_variants

DEMO = Path(__file__).parent / 'demo'
# Two variants over these take about three minutes on two cores.
IMAGES = {'test': 200, 'calibration': 100}
SEED = 0


def run_demo(out: Path, progress: bool = True) -> Dict[str, Any]:
    """Render the demo set unless it is there, and evaluate; a finished run is done again.

    Returns:
        The report, as in report.json.

    Raises:
        ClassifyError: the model or a variant fails.
    """
    settings = EvalSettings(model=str(DEMO / 'model'),
                            manifest=str(render_set(DEMO / 'images', IMAGES)))
    variants = parse_variants('stock,patched', has_gpu=bool(gpus()))
    finished = (out / 'report.json').is_file()
    return evaluate(settings, variants, out, overwrite=finished, progress=progress)


def render_command(folder: Path, split: str, count: int, seed: int = SEED) -> List[str]:
    """The command that renders a split; costs next to nothing where it is rendered already."""
    return [sys.executable, '-m', 'lmdeploy_ext.eval.demo.render', '--out', str(folder),
            '--split', split, '--count', str(count), '--seed', str(seed),
            '--jobs', str(usable_cores())]


def render_set(folder: Path, counts: Mapping[str, int], seed: int = SEED) -> Path:
    """Render so many images of each split below `folder`; returns the manifest of them all.

    Raises:
        EvalError: the renderer fails.
    """
    rows = []
    for split, count in counts.items():
        part = folder / (f'{split}-{count}' if seed == SEED else f'{split}-{count}-seed-{seed}')
        if subprocess.run(render_command(part, split, count, seed), check=False).returncode:
            raise EvalError(f'the demo images of {part} could not be rendered; '
                            f'delete that folder and try again')
        for line in (part / 'manifest.jsonl').read_text(encoding='utf-8').splitlines():
            row = json.loads(line)
            rows.append({**row, 'image': f'{part.name}/{row["image"]}'})
    manifest = folder / 'manifest.jsonl'
    manifest.write_text(''.join(json.dumps(row, ensure_ascii=False) + '\n' for row in rows),
                        encoding='utf-8')
    return manifest
