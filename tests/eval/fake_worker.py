"""In place of `lmdeploy_ext.eval.worker` in tests: answers without a model.

Behaves as the variables of its variant say: FAIL_AFTER=n ends it with an error after n rows,
HANG=1 makes it wait for a signal after two rows.
"""
import json
import os
import sys
import time
from pathlib import Path

from lmdeploy_ext.eval.run_folder import RunFolder, stored_records
from tests.eval.conftest import row


def main(path, name, number):
    """Append the rows and times that are missing."""
    folder = RunFolder(Path(path))
    own = folder.variant(name)
    done = {record['id'] for record in stored_records(own.rows_file(int(number)))}
    patches = [{'name': 'x', 'group': 'cpu', 'target': 'a:b', 'why': 'slow', 'state': 'applied'}]
    own.process_file.write_text(json.dumps({'pid': os.getpid(), 'versions': {'python': '3'},
                                            'patches': patches}), encoding='utf-8')
    missing = [image for image in folder.read_images() if image.id not in done]
    for count, image in enumerate(missing):
        if count == int(os.environ.get('FAIL_AFTER', -1)):
            sys.exit('Traceback …\nRuntimeError: the engine stopped')
        if count == 2 and 'HANG' in os.environ:
            time.sleep(60)
        with open(own.rows_file(int(number)), 'a', encoding='utf-8') as rows:
            rows.write(json.dumps(row(image, .9 if image.label == '是' else .2)) + '\n')
        with open(own.times_file(int(number)), 'a', encoding='utf-8') as times:
            times.write(
                json.dumps({
                    'id': image.id,
                    'session': len(done),
                    'started': count * .1,
                    'finished': count * .1 + .3
                }) + '\n')


if __name__ == '__main__':
    main(*sys.argv[1:])
