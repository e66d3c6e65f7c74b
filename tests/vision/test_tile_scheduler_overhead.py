"""The measurement of what the scheduler itself costs."""
import torch

from lmdeploy_ext.eval.bench.scheduler_overhead import scheduler_overhead


def test_it_measures_whole_batches():
    """Less than a tenth of a second in all: what is measured is no ViT. The limit that counts,
    0.3 ms, is the benchmark's: other programs run beside tests."""
    overhead = scheduler_overhead(torch.device('cpu'), rounds=20)
    assert 0 < overhead.cpu_ms < 100 and 0 < overhead.wall_ms
