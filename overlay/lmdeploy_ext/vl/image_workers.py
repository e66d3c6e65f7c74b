"""The threads that prepare images, and how many images may be in their hands."""
import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Optional

import cv2

from lmdeploy_ext.vl.admission import Admission

_MIN_IN_FLIGHT, _IN_FLIGHT_PER_WORKER = 64, 8
# Fetching waits for the network and needs no core; a slow server must neither keep cores idle nor,
# named by a few requests, those out that fetch from others. Threads are made when they are needed.
_FETCHERS = 64


class ImageWorkers:
    """Threads and places, shared by everything in this process that prepares images.

    Attributes:
        threads: how many prepare images.
        pool: for what needs a core: decoding, resizing, cutting.
        fetchers: for what waits for the network.
        admission: a place for each image between the start of its decoding and its copy to the
            device of the vision model.

    Args:
        threads: None for the cores that this process may use.
        in_flight: places; None for 8 for each thread, at least 64: the vision model finds its next
            batch ready, and memory stays bounded.
    """

    def __init__(self, threads: Optional[int] = None, in_flight: Optional[int] = None) -> None:
        self.threads = threads or len(os.sched_getaffinity(0))
        # One image is one thread's work: with its own threads OpenCV would start cores times cores
        # of them. The setting is OpenCV's, for the whole process.
        cv2.setNumThreads(1)
        self.pool = ThreadPoolExecutor(self.threads, 'image')
        self.fetchers = ThreadPoolExecutor(_FETCHERS, 'image-fetch')
        self.admission = Admission(in_flight
                                   or max(_MIN_IN_FLIGHT, _IN_FLIGHT_PER_WORKER * self.threads))

    def close(self) -> None:
        """End the threads; work that has not begun is dropped."""
        for pool in (self.pool, self.fetchers):
            pool.shutdown(wait=False, cancel_futures=True)


@functools.lru_cache(maxsize=None)
def shared_workers(threads: Optional[int] = None, in_flight: Optional[int] = None) -> ImageWorkers:
    """This process's workers of given settings: models that live side by side share the cores."""
    return ImageWorkers(threads, in_flight)
