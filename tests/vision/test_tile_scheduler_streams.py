"""The order in which work is issued to a GPU's streams, told by streams that only take notes.

That the order is enough is what tests/gpu/test_tile_scheduler.py shows on a GPU.
"""
import contextlib
import threading
import weakref

import pytest
import torch

from lmdeploy_ext.vision import tile_scheduler
from lmdeploy_ext.vision.tile_scheduler import TileScheduler
from lmdeploy_ext.vision.transfer import (CudaToHostTransfer, CudaTransfer, HostTransfer,
                                          transfer_to)

from .tile_scheduler_fakes import PATIENCE, Backend, Counted, features, image

NAMES = ('upload', 'compute', 'download')
WEIGHTS = 'compute waits for default'


class Stream:

    def __init__(self, notes, name):
        self.notes, self.name = notes, name

    def wait_stream(self, other):
        self.notes.append(f'{self.name} waits for {other.name}')

    def synchronize(self):
        self.notes.append(f'the host waits for {self.name}')


class Event:

    def __init__(self, notes, blocking):
        assert blocking, 'the host would spin'
        self.notes = notes

    def record(self, stream):
        self.stream = stream.name
        self.notes.append(f'event on {stream.name}')

    def synchronize(self):
        # of other threads, so not in the notes
        assert self.stream in NAMES


@pytest.fixture
def notes(monkeypatch):
    """What was issued, in order, by the scheduler's thread."""
    notes, current, names = [], ['default'], iter(NAMES)
    empty, copy = torch.empty, torch.Tensor.copy_

    @contextlib.contextmanager
    def stream(stream):
        current.append(stream.name)
        yield
        current.pop()

    def noted_copy(tensor, other, non_blocking=False):
        if current[-1] != 'default':
            assert non_blocking or current[-1] == 'compute', 'the host would wait'
            notes.append(f'copy on {current[-1]}')
        return copy(tensor, other)

    def noted_empty(*arguments, pin_memory=False, **options):
        if pin_memory:
            notes.append('pinned')
        elif current[1:] and current[-1] == 'default':
            notes.append('memory of default')
        return empty(*arguments, **options)

    cuda = {'Stream': lambda _: Stream(notes, next(names)), 'stream': stream,
            'Event': lambda blocking: Event(notes, blocking),
            'current_stream': lambda _: Stream(notes, current[-1]),
            'default_stream': lambda _: Stream(notes, 'default')}
    for name, fake in cuda.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, 'empty', noted_empty)
    monkeypatch.setattr(torch.Tensor, 'copy_', noted_copy)
    return notes


def run(monkeypatch, kind, count=20):
    """An image of two batches through the whole scheduler."""
    monkeypatch.setattr(tile_scheduler, 'transfer_to', lambda *_: kind(torch.device('cpu')))
    scheduler = TileScheduler(Backend(), 16)
    tiles = image(5, count)
    uploaded = Counted(tiles)
    future = scheduler.submit(tiles, scheduler.flow(), uploaded)
    assert torch.equal(future.result(PATIENCE), features(5, count))
    scheduler.close()
    assert uploaded.calls == 1


def test_features_stay_on_the_device(monkeypatch, notes):
    run(monkeypatch, CudaTransfer)
    upload = ['copy on upload', 'event on upload', 'compute waits for upload']
    # the image has its memory from the first batch on
    memory = ['memory of default', 'compute waits for default']
    compute = ['copy on compute', 'event on compute']
    assert notes == [WEIGHTS, *upload, *memory, *compute, *upload, *compute]


def test_features_go_to_pinned_memory_of_the_host(monkeypatch, notes):
    run(monkeypatch, CudaToHostTransfer)
    batch = ['copy on upload', 'event on upload', 'compute waits for upload', 'pinned',
             'copy on compute', 'download waits for compute', 'copy on download',
             'event on download']
    assert notes == [WEIGHTS, *batch] + [note for note in batch if note != 'pinned']


@pytest.mark.parametrize('kind', [CudaTransfer, CudaToHostTransfer])
def test_memory_that_streams_share_is_held_until_they_are_done_and_no_longer(notes, kind,
                                                                             monkeypatch):
    """The allocator would give it to the next batch, which another stream writes."""
    transfer = kind(torch.device('cpu'))
    reached, gate = threading.Event(), threading.Event()

    def wait(event):
        if event.stream != 'upload':
            reached.set()
            assert gate.wait(PATIENCE)

    monkeypatch.setattr(Event, 'synchronize', wait)
    alive, ended = [], threading.Event()

    def then(error):
        alive.append([reference() is not None for reference in shared])
        ended.set()

    with transfer.computing():
        tiles = transfer.upload([image(1, 3)], lambda error: None)
        wanted, = transfer.features([(3, 2, 3)], torch.float32)
        output, = transfer.outputs([wanted])
        shared = [weakref.ref(tiles)] + [weakref.ref(output)] * (output is not wanted)
        transfer.finish(tiles, [(output, wanted)], then)
        del tiles, output
    assert reached.wait(PATIENCE)
    assert all(reference() is not None for reference in shared)
    gate.set()
    assert ended.wait(PATIENCE)
    assert alive == [[False] * len(shared)]
    transfer.close()
    transfer.join(PATIENCE)


def test_memory_of_features_that_nobody_wants_is_held_until_their_batch_has_ended(monkeypatch,
                                                                                  notes):
    """The default stream could have it while the batch still writes."""
    reached, gate, wanted = threading.Event(), threading.Event(), []

    class Transfer(CudaTransfer):

        def __init__(self, *_):
            super().__init__(torch.device('cpu'))

        def features(self, shapes, dtype):
            features = super().features(shapes, dtype)
            wanted.extend(map(weakref.ref, features))
            return features

    def wait(event):
        if event.stream == 'compute':
            reached.set()
            assert gate.wait(PATIENCE)

    monkeypatch.setattr(Event, 'synchronize', wait)
    monkeypatch.setattr(tile_scheduler, 'transfer_to', Transfer)
    scheduler = TileScheduler(Backend(), 16)
    future = scheduler.submit(image(5, 3), scheduler.flow(), lambda: None)
    assert reached.wait(PATIENCE)
    assert future.cancel()
    del future
    assert wanted[0]() is not None
    gate.set()
    scheduler.close()
    assert wanted[0]() is None


def test_after_a_failed_upload_the_copies_under_way_are_waited_for(monkeypatch, notes):
    transfer = CudaTransfer(torch.device('cpu'))

    def no_memory(array):
        raise RuntimeError('CUDA error')

    monkeypatch.setattr(torch, 'from_numpy', no_memory)
    with pytest.raises(RuntimeError, match='CUDA error'):
        transfer.upload([image(1, 3)], pytest.fail)
    assert notes == [WEIGHTS, 'the host waits for upload']
    transfer.close()
    transfer.join(PATIENCE)


@pytest.mark.parametrize('device, host_results, kind', [
    ('cuda:0', False, CudaTransfer),
    ('cuda:0', True, CudaToHostTransfer),
    ('cpu', False, HostTransfer),
    ('cpu', True, HostTransfer),
])
def test_each_kind_of_device_has_its_own(notes, device, host_results, kind):
    transfer = transfer_to(torch.device(device), host_results)
    assert type(transfer) is kind
    transfer.close()
    transfer.join(PATIENCE)
