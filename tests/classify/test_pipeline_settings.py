"""What a result file says about the tiles of an engine in this process."""
import pytest

from lmdeploy_ext.classify import pipeline_engine
from lmdeploy_ext.classify.pipeline_engine import PipelineEngine, PipelineSettings


@pytest.mark.parametrize('loader', ['applied', 'off'])
@pytest.mark.parametrize('forward', ['applied', 'ready', 'off'])
def test_tiles_are_what_the_vision_model_cuts(monkeypatch, loader, forward):
    """The loader only decides in which thread."""
    rows = [{'name': 'vl_engine_image_loader', 'state': loader},
            {'name': 'internvl_forward_tiles', 'state': forward}]
    monkeypatch.setattr(pipeline_engine.patching, 'status', lambda: rows)
    monkeypatch.setenv('LMDEPLOY_EXT_TILES', 'budget:512')
    told = PipelineEngine(PipelineSettings('model')).settings()['tiles']
    assert told == 'upstream' if forward == 'off' else told['budget'] == 512
