"""The worker threads: as many as there are cores, and no library makes more of them."""
import os

import cv2

from lmdeploy_ext.vl.image_workers import ImageWorkers, shared_workers


def test_there_are_as_many_threads_as_the_process_may_use_cores():
    mine = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(mine)})
        workers = ImageWorkers()
    finally:
        os.sched_setaffinity(0, mine)
    assert workers.threads == 1 and workers.admission.places == 64
    workers.close()


def test_settings_go_before():
    workers = ImageWorkers(threads=20)
    assert workers.threads == 20 and workers.admission.places == 160
    workers.close()
    workers = ImageWorkers(threads=2, in_flight=3)
    assert workers.admission.places == 3
    workers.close()


def test_opencv_uses_no_threads_of_its_own():
    cv2.setNumThreads(4)
    workers = ImageWorkers(threads=2)
    assert cv2.getNumThreads() == 1
    workers.close()


def test_models_side_by_side_share_the_threads():
    assert shared_workers(2, 3) is shared_workers(2, 3)
    assert shared_workers(2, 3) is not shared_workers(2, 4)
