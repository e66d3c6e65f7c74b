"""`make bench-prefix` on a GPU: what its result holds, not how fast the machine is."""
import json

import pytest
import torch

from lmdeploy_ext.eval.bench import prefix

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason='TurboMind runs on GPUs only'),
]


@pytest.mark.timeout(400)
def test_all_features_stay_on_the_gpu(tmp_path):
    model = prefix.random_model(tmp_path, '2b', 'cuda')
    out = tmp_path / 'prefix.json'
    assert prefix.main(['--quick', '--model', model, '--commit', 'of a test',
                        '--out', str(out)]) == 0
    rows = {(row['part'], row.get('cache')): row for row in json.loads(out.read_text())['rows']}
    features = rows['features', 'on']
    assert (features['virtual_share'], features['on_gpu_share']) == (1, 1)
    assert rows['setup', None]['warnings'] == []
    # 13 tiles are found again, which nobody can mistake for noise
    assert rows['questions', 'on']['later_ms'] < rows['questions', 'off']['later_ms']
    assert rows['questions', 'on']['input_tokens'] > 13 * 256
