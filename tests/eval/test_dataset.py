"""Manifests: what is read, and what is refused before any model is loaded."""
import csv
import json

import pytest

from lmdeploy_ext.classify.errors import ClassifyError
from lmdeploy_ext.eval.dataset import check_labels, read_images


@pytest.fixture
def manifest(tmp_path):
    """A function that writes a JSONL manifest and its files."""

    def write(records, files=True):
        for record in records:
            if files and 'image' in record:
                (tmp_path / record['image']).write_bytes(b'jpeg')
        path = tmp_path / 'manifest.jsonl'
        path.write_text(''.join(json.dumps(record) + '\n' for record in records), encoding='utf-8')
        return path

    return write


def record(number, split='test', label='是', **fields):
    """One row of a manifest."""
    return {
        'id': f'{split}-{number}',
        'image': f'{split}-{number}.jpg',
        'label': label,
        'split': split,
        **fields
    }


def test_test_images_come_first_and_train_images_not_at_all(manifest, tmp_path):
    path = manifest([record(0, 'calibration'), record(0, 'train'), record(0), record(1)])
    images = read_images(path, 'test', 'calibration')
    assert [image.id for image in images] == ['test-0', 'test-1', 'calibration-0']
    assert images[0].path == str(tmp_path / 'test-0.jpg')
    assert [image.split for image in images] == ['test', 'test', 'calibration']


def test_limit_is_for_each_split(manifest):
    path = manifest([record(n, split) for split in ('test', 'calibration') for n in range(5)])
    assert [image.id for image in read_images(path, 'test', 'calibration', 2)
            ] == ['test-0', 'test-1', 'calibration-0', 'calibration-1']


def test_without_splits_all_images_are_test_images(manifest):
    records = [record(number) for number in range(3)]
    for item in records:
        del item['split']
    images = read_images(manifest(records), 'test', 'calibration')
    assert [image.split for image in images] == ['test'] * 3


def test_a_csv_manifest_is_read_alike(tmp_path):
    path = tmp_path / 'manifest.csv'
    with open(path, 'w', encoding='utf-8', newline='') as file:
        writer = csv.DictWriter(file, ['id', 'image', 'label', 'split'])
        writer.writeheader()
        writer.writerows([record(0), record(0, 'calibration')])
    for name in ('test-0.jpg', 'calibration-0.jpg'):
        (tmp_path / name).write_bytes(b'jpeg')
    assert len(read_images(path, 'test', 'calibration')) == 2


def without(field):
    """A row without a field."""
    fields = record(0)
    del fields[field]
    return fields


@pytest.mark.parametrize('records, message', [
    ([], 'no images'),
    ([without('label')], 'no label'),
    ([record(0, 'validation')], "no row of the split 'test'; found validation"),
    ([record(0), record(0)], 'duplicate ids'),
])
def test_bad_manifests(manifest, records, message):
    with pytest.raises(ClassifyError) as error:
        read_images(manifest(records), 'test', 'calibration')
    assert message in str(error.value)
    assert '\n' not in str(error.value)


def test_missing_files_are_named(manifest):
    with pytest.raises(ClassifyError, match='missing files.*test-0.jpg'):
        read_images(manifest([record(0)], files=False), 'test', 'calibration')


def test_a_missing_manifest_is_named(tmp_path):
    with pytest.raises(ClassifyError, match='cannot read .*nowhere.jsonl'):
        read_images(tmp_path / 'nowhere.jsonl', 'test', 'calibration')


def test_a_limit_of_nothing_is_refused(manifest):
    with pytest.raises(ClassifyError, match='--limit 0 leaves no image'):
        read_images(manifest([record(0)]), 'test', 'calibration', 0)


@pytest.mark.parametrize('labels, positive, message', [
    (('是', '否'), 'yes', "positive label 'yes' is not among 是, 否"),
    (('yes', 'no'), 'yes', "has the label '是'; expected one of yes, no"),
    (('是', '否'), '是', 'all test images are labelled 是'),
    (('是', '否'), '否', 'all test images are labelled 是'),
])
def test_labels_that_allow_no_figures(manifest, labels, positive, message):
    images = read_images(
        manifest([record(0), record(1), record(0, 'calibration', '否')] if labels[0] ==
                 '是' else [record(0)]), 'test', 'calibration')
    with pytest.raises(ClassifyError) as error:
        check_labels(images, labels, positive, 'test')
    assert message in str(error.value)
