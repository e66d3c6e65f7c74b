"""Groups of patches alone: each is right by itself, and without them LMDeploy is the stock one."""
import json
import os
import subprocess
import sys

import pytest

from lmdeploy_ext.models.checkpoint import write_checkpoint
from tests.vl.image_files import jpeg

PROGRAM = '''
import json, sys
import lmdeploy_ext.autopatch
from PIL import Image
from lmdeploy import GenerationConfig, PytorchEngineConfig, pipeline
if __name__ == '__main__':
    folder, good, bad = sys.argv[1:]
    pipe = pipeline(folder, PytorchEngineConfig(device_type='cpu'))
    config = GenerationConfig(max_new_tokens=1)
    told = {}
    for name, image in dict(path=good, pil=Image.open(good), bad=bad,
                             data=open(good, 'rb').read()).items():
        try:
            told[name] = pipe(('?', image), gen_config=config).input_token_len
        except ValueError as error:
            told[name] = str(error)
    try:
        list(pipe.stream_infer([('?', bad), '?'], gen_config=config))
    except ValueError as error:
        told['stream'] = str(error)
    print(json.dumps(told))
'''


@pytest.fixture(scope='module')
def told(tmp_path_factory):
    """Input tokens of an image by path and by object, and of a file that is cut off."""
    folder = tmp_path_factory.mktemp('selections')
    write_checkpoint(folder / 'model', 'tiny', dtype='float32', seed=7)
    good, bad = folder / 'good.jpg', folder / 'bad.jpg'
    good.write_bytes(jpeg(112, 84))
    bad.write_bytes(jpeg(112, 84)[:900])

    def ask(patches):
        env = dict(os.environ, LMDEPLOY_EXT_PATCHES=patches)
        done = subprocess.run([sys.executable, '-c', PROGRAM, folder / 'model', good, bad],
                              env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout.splitlines()[-1])

    return ask


def test_groups_alone(told):
    # the template's patch is there for the folder's name
    stock = told('cpu,best_match_model_internvl')
    assert stock['path'] == stock['pil'] == stock['bad']
    right = told('cpu,correctness')
    assert right['path'] == right['pil'] == stock['pil'] and 'cut off' in right['bad']
    fast = told('cpu,speed,best_match_model_internvl')
    assert fast['path'] == fast['pil'] < stock['pil'] and 'cut off' in fast['bad']
    # upstream's stream would hang at the error that the loader raises
    assert 'cut off' in fast['stream'] and 'cut off' in right['stream'] and 'stream' not in stock
    assert fast['data'] == fast['path']
    # one of the patches that work together is left out: slower, but right
    most = told('all,-internvl_forward_tiles')
    assert most['path'] == most['pil'] == stock['pil'] and 'cut off' in most['bad']
    # without it bytes would get to upstream's load_image, and be answered as a black image
    rest = told('cpu,speed,best_match_model_internvl,-collect_images_workers')
    assert rest['path'] == rest['pil'] and 'should be a str' in rest['data'] == stock['data']
