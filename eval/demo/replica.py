"""Gradients of a batch, computed in low precision; on a GPU, replayed as CUDA graphs."""
from typing import Callable, Optional

import torch

from .batch import Batch, tensors
from .objective import Objective

WARM_UP = 3  # runs before a capture, so that libraries have made their plans


class Replica:
    """A copy of the objective in low precision.

    Attributes:
        weights: flat `[parameters]`, what the copy computes with; write to it, then call
        `gradient`.
        grads: flat float32 `[parameters]`, the last gradient.
    """

    def __init__(self, objective: Objective):
        self.objective, self.parameters = objective, list(objective.parameters())
        first = self.parameters[0]
        size = sum(parameter.numel() for parameter in self.parameters)
        self.weights = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.grads = torch.zeros(size, device=first.device)
        self._graphs: dict[tuple, tuple[torch.cuda.CUDAGraph, Batch, dict]] = {}
        self._pool: Optional[tuple] = None

    @torch.no_grad()
    def load_weights(self) -> None:
        """Copy `weights` to the parameters."""
        parts = self.weights.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts):
            parameter.copy_(part.view_as(parameter))

    def gradient(self, batch: Batch) -> dict[str, torch.Tensor]:
        """Gradient of the sum of the losses, to `grads`; returns the losses and hits, valid until
        the next call."""
        if not self.weights.is_cuda:
            return self._compute(batch)
        shape = tuple(batch.patches.shape), tuple(batch.tail.shape)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(batch)
        graph, inputs, outputs = self._graphs[shape]
        inputs.copy_(batch)
        graph.replay()
        return outputs

    def _compute(self, batch: Batch) -> dict[str, torch.Tensor]:
        self.load_weights()
        losses = self.objective(batch)
        for parameter in self.parameters:
            parameter.grad = None
        (losses['answer'] + losses['mark'] + losses['dense']).backward()
        self.grads.copy_(torch.cat([parameter.grad.flatten() for parameter in self.parameters]))
        return {name: value.detach() for name, value in losses.items()}

    def _capture(self, batch: Batch) -> tuple[torch.cuda.CUDAGraph, Batch, dict]:
        inputs = Batch(*(tensor.clone() for tensor in tensors(batch)))
        graph, outputs = capture(lambda: self._compute(inputs), self._pool)
        self._pool = graph.pool()
        return graph, inputs, outputs


def capture(work: Callable, pool: Optional[tuple] = None) -> tuple[torch.cuda.CUDAGraph, object]:
    """Record `work` on the current device as a CUDA graph; returns it, and what `work`
    returned."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool, capture_error_mode='thread_local'):
        outputs = work()
    return graph, outputs


def replayable(work: Callable, device: torch.device) -> Callable:
    """`work` itself on a CPU. On a GPU a recording of it: the call that records runs `work` a few
    times, and the result replays it."""
    if device.type != 'cuda':
        return work
    graph, _ = capture(work)
    return graph.replay
