"""What a run is: the model, the question, the images, and how they are asked."""
from dataclasses import dataclass
from pathlib import Path
from typing import Optional, Tuple

from lmdeploy_ext.classify.labels import check_names

from .demo.questions import NEGATIVE, POSITIVE, QUESTION
from .errors import EvalError


@dataclass(frozen=True)
class EvalSettings:
    """Settings that all variants of a run share; stored with it.

    Attributes:
        model: the model's folder.
        manifest: JSONL or CSV with the columns id, image, label and, optional, split.
        prompt: what is asked about each image.
        labels: all labels, the same words as in the manifest.
        positive: the label whose recall counts.
        target_recall: the recall that the threshold is chosen for.
        test_split, calibration_split: names of the splits that figures are given for, and that
            the threshold is chosen on.
        limit: at most so many images of each split; None for all.
        rounds: how often each variant answers all images, the variants in turn.
        concurrency: requests in flight.
        warmup: first answers of each process that QPM and latency leave out.
        max_new_tokens: answer tokens at most; None for those of the longest label.
        max_dynamic_patch: tiles of an image at most; None for the model's own limit.
        prompt_first: whether the prompt stands before the image.
        chat_template: LMDeploy's name of it; None for the one that config.json tells.
        backend, device, tp, session_len, vision_batch, prefix_caching: as in
            `lmdeploy_ext.classify.pipeline_engine.PipelineSettings`.
    """
    model: str
    manifest: str
    prompt: str = QUESTION
    labels: Tuple[str, ...] = (POSITIVE, NEGATIVE)
    positive: str = POSITIVE
    target_recall: float = 0.95
    test_split: str = 'test'
    calibration_split: str = 'calibration'
    limit: Optional[int] = None
    rounds: int = 1
    concurrency: int = 8
    warmup: int = 16
    max_new_tokens: Optional[int] = None
    max_dynamic_patch: Optional[int] = None
    prompt_first: bool = False
    backend: str = 'auto'
    device: str = 'auto'
    tp: int = 1
    session_len: Optional[int] = None
    vision_batch: int = 1
    chat_template: Optional[str] = None
    prefix_caching: bool = False

    def check(self) -> None:
        """Check what can be checked without reading an image or loading a model.

        Raises:
            ClassifyError: a setting cannot be used; the message names its flag.
        """
        check_names(self.labels)
        check_model(self.model)
        check_target_recall(self.target_recall)
        if self.test_split == self.calibration_split:
            raise EvalError(
                f'--calibration-split {self.calibration_split} is the test split too; a '
                f'threshold must not be chosen on the images it is reported for')
        for name in ('rounds', 'concurrency'):
            if getattr(self, name) < 1:
                raise EvalError(f'--{name} {getattr(self, name)} is too few; expected at least 1')
        if self.warmup < 0:
            raise EvalError(f'--warmup {self.warmup} is negative; expected 0 or more answers')


def check_model(model: str) -> None:
    """Check that there is a model.

    Raises:
        EvalError: the folder has no config.json.
    """
    if not Path(model, 'config.json').is_file():
        raise EvalError(f'{model} is no model folder (it has no config.json); '
                        f'pass the folder of a checkpoint with --model')


def check_target_recall(target: float) -> None:
    """Check a wanted recall.

    Raises:
        EvalError: it cannot be reached.
    """
    if not 0 < target <= 1:
        raise EvalError(f'--target-recall {target:g} cannot be reached; '
                        f'expected above 0 and at most 1')
