"""What the demo set shows: the same pictures every time, with labels that follow from them."""
import hashlib
from collections import Counter

import cv2
import numpy as np
import pytest

from lmdeploy_ext.eval.demo import picture, questions
from lmdeploy_ext.eval.demo.orders import SORTS
from lmdeploy_ext.eval.demo.picture import SIZES, draw, size_of
from lmdeploy_ext.eval.demo.scene import CLASSES


@pytest.fixture(scope='module')
def pictures():
    """With class maps fine enough for the smallest pillows, which are half a cell high else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(picture, 'CLASS_STEP', 2)
        return [draw('test', 0, index) for index in range(60)]


def test_a_picture_depends_on_seed_split_and_index_alone(pictures):
    assert draw('test', 0, 7).jpeg == pictures[7].jpeg
    others = [draw('test', 1, 7), draw('train', 0, 7), draw('test', 0, 8)]
    digests = {hashlib.sha256(p.jpeg).digest() for p in [pictures[7], *others]}
    assert len(digests) == 4


def test_files_are_jpegs_of_the_stated_size(pictures):
    for drawn in pictures[:12]:
        assert drawn.jpeg[:2] == b'\xff\xd8'
        decoded = cv2.imdecode(np.frombuffer(drawn.jpeg, np.uint8), cv2.IMREAD_COLOR)
        assert decoded.shape == (drawn.height, drawn.width, 3)
        assert decoded.std() > 10  # not a blank sheet


@pytest.mark.parametrize('beds,bunks,label', [(0, 0, '否'), (2, 0, '否'), (3, 0, '是'),
                                              (1, 1, '是'), (6, 0, '是'), (3, 2, '是')])
def test_label_rule(beds, bunks, label):
    assert questions.label(beds, bunks) == label
    assert questions.answers(beds, bunks)[questions.QUESTION] == label
    assert questions.answers(beds, bunks)[questions.COUNT] == str(beds)


def test_label_of_a_picture_follows_from_its_beds(pictures):
    for drawn in pictures:
        assert 0 <= drawn.bunks <= drawn.beds <= 6
        assert drawn.row('test')['label'] == questions.label(drawn.beds, drawn.bunks)
        marked = sum(mark.kind in ('single', 'double', 'bunk') for mark in drawn.marks)
        assert marked == drawn.beds  # each bed can be seen


def test_each_bed_shows_its_pillow_or_its_ladder(pictures):
    for drawn in pictures:
        if drawn.beds > drawn.bunks:
            assert (drawn.classes == CLASSES['pillow']).any()
        if drawn.bunks:
            assert (drawn.classes == CLASSES['ladder']).any()


def test_sizes_come_in_their_shares():
    drawn = Counter(tuple(sorted(size_of('train', 3, index), reverse=True))
                    for index in range(3000))
    for size, share, _ in SIZES:
        assert abs(drawn[size] / 3000 - share) < 0.03
    assert sum(drawn.values()) == 3000 and len(drawn) == len(SIZES)


def test_both_labels_and_all_sorts_of_rooms_occur(pictures):
    positive = np.mean([questions.is_positive(p.beds, p.bunks) for p in pictures])
    assert 0.25 < positive < 0.65
    assert {p.sort for p in pictures} == set(SORTS)


def test_size_is_known_without_drawing(pictures):
    for index in (0, 1, 2):
        assert size_of('test', 0, index) == (pictures[index].width, pictures[index].height)
    assert set(picture.SPLITS) == {'train', 'calibration', 'test'}
