"""The labelled images of a manifest."""
import os
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

from lmdeploy_ext.classify.item import Item
from lmdeploy_ext.classify.manifest import ManifestSource, read_records
from lmdeploy_ext.classify.source import check_source

from .errors import EvalError
from .run_folder import LabelledImage


@dataclass(frozen=True)
class LabelledSource:
    """Labelled images as a source for `lmdeploy_ext.classify`; the labels are not passed on."""
    name: str
    images: Tuple[LabelledImage, ...]

    def __iter__(self) -> Iterator[Item]:
        for image in self.images:
            yield Item(id=image.id, image=image.path)


def read_images(manifest: Path,
                test_split: str,
                calibration_split: str,
                limit: Optional[int] = None) -> List[LabelledImage]:
    """The test images, then the calibration images, each in the manifest's order.

    A manifest without a split column holds test images only; one without the calibration split has
    none of those.

    Args:
        manifest: JSONL or CSV with the columns id, image, label and, optional, split.
        test_split, calibration_split: names of the splits.
        limit: at most so many images of each split; None for all.

    Raises:
        SourceError: no such manifest, no label column, no test images, files missing, an id twice.
        EvalError: the limit leaves nothing.
    """
    if limit is not None and limit < 1:
        raise EvalError(f'--limit {limit} leaves no image; expected at least 1')
    splits = {record.get('split') for _, record in read_records(manifest)} - {None, ''}
    images = _of_split(manifest, test_split if splits else None, test_split, limit)
    if calibration_split in splits:
        images += _of_split(manifest, calibration_split, calibration_split, limit)
    check_source(LabelledSource(str(manifest), tuple(images)))
    return images


def check_labels(images: Sequence[LabelledImage], labels: Sequence[str], positive: str,
                 test_split: str) -> None:
    """Check that figures can be computed.

    Raises:
        EvalError: a label of the manifest is none of `labels`, the positive label is not among
            them, or all test images carry the same label.
    """
    if positive not in labels:
        raise EvalError(f'the positive label {positive!r} is not among {", ".join(labels)}; '
                        f'choose one of them with --positive, or pass all with --labels')
    for image in images:
        if image.label not in labels:
            raise EvalError(f'image {image.id!r} has the label {image.label!r}; expected one of '
                            f'{", ".join(labels)}: pass all labels with --labels')
    of_test = {image.label for image in images if image.split == test_split}
    if positive not in of_test or len(of_test) == 1:
        raise EvalError(
            f'all {test_split} images are labelled {" or ".join(sorted(of_test))}; recall '
            f'and precision need images with the label {positive!r} and without it')


def _of_split(manifest: Path, split: Optional[str], name: str,
              limit: Optional[int]) -> List[LabelledImage]:
    """The images of a split (None: of the whole manifest), filed under `name`."""
    source = ManifestSource(manifest, split, require_label=True)
    return [
        LabelledImage(item.id,
                      os.path.abspath(item.image) if item.is_file else item.image, item.label,
                      name) for item in islice(source, limit)
    ]
