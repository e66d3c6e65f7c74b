"""Probabilities from TurboMind, which reports only what its top-k leaves over. Needs a GPU."""
from pathlib import Path

import pytest
import torch

from lmdeploy_ext.classify.files import FolderSource
from lmdeploy_ext.classify.job import Job, execute
from lmdeploy_ext.classify.pipeline_engine import PipelineSettings
from lmdeploy_ext.classify.result_file import read_rows
from lmdeploy_ext.classify.runner import RunSettings

from .checkpoint import write_yes_no_checkpoint
from .fakes import write_images


def rows_of(backend, model: Path, images: Path, output: Path):
    settings = PipelineSettings(str(model), backend=backend, chat_template='internvl2-internlm2')
    run_settings = RunSettings(prompt='房间里有床吗？请只回答是或否。')
    execute(Job(settings, ('是', '否'), output, run_settings), FolderSource(images))
    return list(read_rows(output))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason='TurboMind runs on GPUs only')
def test_turbomind_and_the_pytorch_engine_give_the_same_answers(tmp_path):
    model = write_yes_no_checkpoint(tmp_path / 'model')
    write_images(tmp_path / 'in', 32)
    turbomind = rows_of('turbomind', model, tmp_path / 'in', tmp_path / 'turbomind.jsonl')
    pytorch = rows_of('pytorch', model, tmp_path / 'in', tmp_path / 'pytorch.jsonl')
    for ours, theirs in zip(turbomind, pytorch):
        # greedy, although TurboMind has drawn it from 64 candidates
        assert ours.error is None and ours.text == theirs.text
        # float16 against bfloat16 or float32
        assert ours.probabilities == pytest.approx(theirs.probabilities, abs=0.05)
