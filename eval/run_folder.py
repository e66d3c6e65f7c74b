"""What a run stores, and where.

    run.json                        settings, variants and their own settings, provenance
    images.jsonl                    the labelled images, in the order that every variant sees
    variants/NAME/rows-ROUND.jsonl  answers, as lmdeploy_ext.classify writes them
    variants/NAME/times-ROUND.jsonl when each answer was complete
    variants/NAME/process.json      patch status, versions and tokens of a tile in the process that
                                    answered
    variants/NAME/error.txt         why that process ended early, if it did
    variants/NAME/log.txt           what it printed
    report.json, report.md, *.png   made from the above by `score` and `report`
"""
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence

from lmdeploy_ext.classify import Row, read_header, read_rows

from .errors import EvalError
from .outcomes import Outcome
from .provenance import write_json
from .timing import Completion


@dataclass(frozen=True)
class LabelledImage:
    """One image of the manifest: its id, absolute path, true label and split."""
    id: str
    path: str
    label: str
    split: str


@dataclass(frozen=True)
class VariantFolder:
    """A variant's files of one run."""
    path: Path

    @property
    def process_file(self) -> Path:
        """Patch status and versions of its process."""
        return self.path / 'process.json'

    @property
    def error_file(self) -> Path:
        """Why its process ended early; absent where it did not."""
        return self.path / 'error.txt'

    @property
    def log_file(self) -> Path:
        """What its processes printed."""
        return self.path / 'log.txt'

    def rows_file(self, number: int) -> Path:
        """Answers of round `number`, from 1."""
        return self.path / f'rows-{number}.jsonl'

    def times_file(self, number: int) -> Path:
        """Completion times of round `number`, from 1."""
        return self.path / f'times-{number}.jsonl'

    def read_rows(self, number: int) -> List[Row]:
        """The rows of a round; none where it has not begun.

        Raises:
            OutputError: the rows are damaged.
        """
        path = self.rows_file(number)
        return list(read_rows(path)) if path.is_file() else []

    def read_outcomes(self, images: Iterable[LabelledImage], number: int) -> List[Outcome]:
        """Outcomes of a round in the order of `images`; images without a row are left out.

        Raises:
            OutputError: the rows are damaged.
        """
        rows = {row.id: row for row in self.read_rows(number)}
        return [_outcome(image, rows[image.id]) for image in images if image.id in rows]

    def read_completions(self, number: int) -> List[Completion]:
        """When the answers of a round were complete."""
        records = stored_records(self.times_file(number))
        return [Completion(**{**record, 'session': (number, record['session'])})
                for record in records]

    def read_engine(self) -> Dict[str, Any]:
        """How its process ran the engine: backend, device, requests in flight; empty without rows.
        """
        if not self.rows_file(1).is_file():
            return {}
        header = read_header(self.rows_file(1))
        return {**header.get('settings', {}), **header.get('engine', {})}

    def read_process(self) -> Dict[str, Any]:
        """Patch status and versions of its process; empty where it never got that far."""
        if not self.process_file.is_file():
            return {}
        return json.loads(self.process_file.read_text(encoding='utf-8'))

    def read_error(self) -> Optional[str]:
        """Why its process ended early, or None."""
        if not self.error_file.is_file():
            return None
        return self.error_file.read_text(encoding='utf-8').strip()


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""
    path: Path

    @property
    def run_file(self) -> Path:
        """Settings, variants and provenance."""
        return self.path / 'run.json'

    @property
    def images_file(self) -> Path:
        """The labelled images."""
        return self.path / 'images.jsonl'

    @property
    def report_file(self) -> Path:
        """The figures."""
        return self.path / 'report.json'

    def variant(self, name: str) -> VariantFolder:
        """The folder of a variant."""
        return VariantFolder(self.path / 'variants' / name)

    def read_run(self) -> Dict[str, Any]:
        """The content of run.json.

        Raises:
            EvalError: the folder is not one of a run.
        """
        return self._read(self.run_file, f'run --out {self.path} …')

    def read_report(self) -> Dict[str, Any]:
        """The content of report.json.

        Raises:
            EvalError: there is none yet.
        """
        return self._read(self.report_file, f'score {self.path}')

    def write_run(self, run: Dict[str, Any]) -> None:
        """Store what is run."""
        write_json(self.run_file, run)

    def write_images(self, images: Sequence[LabelledImage]) -> None:
        """Store the labelled images."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.images_file, 'w', encoding='utf-8') as file:
            file.writelines(
                json.dumps(asdict(image), ensure_ascii=False) + '\n' for image in images)

    def read_images(self) -> List[LabelledImage]:
        """The labelled images."""
        return [LabelledImage(**record) for record in stored_records(self.images_file)]

    def _read(self, path: Path, command: str) -> Dict[str, Any]:
        """A JSON file that `command` would have written."""
        if not path.is_file():
            raise EvalError(f'{self.path} holds no {path.name}; '
                            f'`python -m lmdeploy_ext.eval {command}` writes it')
        return json.loads(path.read_text(encoding='utf-8'))


def stored_records(path: Path) -> List[Dict[str, Any]]:
    """The JSON objects of a file, one a line; none where there is no file.

    A last line that a killed process left half-written is no record yet.
    """
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b'\n')[:-1]]


def _outcome(image: LabelledImage, row: Row) -> Outcome:
    """An image with its row."""
    return Outcome(image.id, image.label, row.label, row.probabilities, row.text or '', row.error)
