"""In place of `lmdeploy_ext.eval.worker` in tests: answers without a model.

Behaves as the variables of its variant say: FAIL_AFTER=n ends it with an error after n rows,
HANG=1 makes it wait for a signal after two rows.
"""
import json
import os
import sys
import time
from pathlib import Path

from lmdeploy_ext.classify.result_file import ResultFile
from lmdeploy_ext.classify.row import Row
from lmdeploy_ext.eval.run_folder import RunFolder
from tests.eval.conftest import row


def main(path, name, number):
    """Append the rows and times that are missing."""
    folder = RunFolder(Path(path))
    own = folder.variant(name)
    patches = [{'name': 'x', 'group': 'cpu', 'target': 'a:b', 'why': 'slow', 'state': 'applied'}]
    own.process_file.write_text(json.dumps({'pid': os.getpid(), 'versions': {'python': '3'},
                                            'patches': patches}), encoding='utf-8')
    with ResultFile(own.rows_file(int(number)), {}) as rows, \
            open(own.times_file(int(number)), 'a', encoding='utf-8') as times:
        rows.begin({})
        session = len(rows.done)
        missing = [image for image in folder.read_images() if image.id not in rows.done]
        for count, image in enumerate(missing):
            if count == int(os.environ.get('FAIL_AFTER', -1)):
                sys.exit('Traceback …\nRuntimeError: the engine stopped')
            if count == 2 and 'HANG' in os.environ:
                time.sleep(60)
            rows.append(Row(**row(image, .9 if image.label == '是' else .2)))
            times.write(json.dumps({'id': image.id, 'session': session, 'started': count * .1,
                                    'finished': count * .1 + .3}) + '\n')
            times.flush()


if __name__ == '__main__':
    main(*sys.argv[1:])
