"""Muon for matrices, Adam for the rest, on fp32 weights with a moving average; a low precision
copy computes.

Muon: Keller Jordan, 2024, https://kellerjordan.github.io/posts/muon/: momentum, made orthogonal by
five steps of a Newton-Schulz iteration. Everything is tensor arithmetic on the device without a
look at values, so that an update can be captured in a CUDA graph.
"""
from dataclasses import dataclass

import torch
from torch import nn

MATRIX_PARTS = ('vision_model.encoder.', 'language_model.model.layers.', 'mlp1.')
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True)
class Rates:
    """Attributes:
        muon: step of Muon, for updates of about unit spectral norm.
        adam: step of Adam.
        decay: weight decay of matrices, as a part of their step.
        average: decay of the moving average.
        clip: largest norm of the gradient.
    """
    muon: float = 0.012
    adam: float = 1.5e-3
    decay: float = 0.03
    average: float = 0.998
    clip: float = 1.0


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """Matrices `[k, rows, columns]` with all singular values moved close to 1."""
    a, b, c = NEWTON_SCHULZ
    tall = x.shape[1] > x.shape[2]
    y = x.transpose(1, 2) if tall else x
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = y @ y.transpose(1, 2)
        y = a * y + (b * gram + c * gram @ gram) @ y
    return y.transpose(1, 2) if tall else y


class Optimizer:
    """Updates the fp32 weights of `master` and their moving average from one flat gradient.

    `rate` is a scalar on the device: the schedule's factor on every step size.

    Args:
        master, averaged: modules with the same parameters.
        precision: dtype of the Newton-Schulz iteration.
    """

    def __init__(self, master: nn.Module, averaged: nn.Module, rates: Rates,
                 precision: torch.dtype):
        self.rates, self.precision = rates, precision
        self.weights, self.averages = list(master.parameters()), list(averaged.parameters())
        self.sizes = [weight.numel() for weight in self.weights]
        shapes: dict[tuple, list[int]] = {}
        self.others = []
        for i, (name, weight) in enumerate(master.named_parameters()):
            if weight.dim() == 2 and any(part in name for part in MATRIX_PARTS):
                shapes.setdefault(tuple(_blocks(weight).shape[1:]), []).append(i)
            else:
                self.others.append(i)
        self.groups = list(shapes.values())
        device = self.weights[0].device
        self.rate, self.count = torch.zeros((), device=device), torch.zeros((), device=device)
        self.momenta = [
            torch.cat([torch.zeros_like(_blocks(self.weights[i])) for i in group])
            for group in self.groups
        ]
        self.means = [torch.zeros_like(self.weights[i]) for i in self.others]
        self.squares = [torch.zeros_like(self.weights[i]) for i in self.others]

    @torch.no_grad()
    def step(self, gradient: torch.Tensor) -> None:
        """One update. `gradient`: float32 `[parameters]`, in the order of `parameters()`."""
        scale = (self.rates.clip / (gradient.norm() + 1e-6)).clamp(max=1.0)
        grads = [
            grad.view_as(weight)
            for grad, weight in zip((gradient * scale).split(self.sizes), self.weights)
        ]
        for group, momentum in zip(self.groups, self.momenta):
            self._muon([self.weights[i] for i in group], [grads[i] for i in group], momentum)
        self.count.add_(1)
        for i, mean, square in zip(self.others, self.means, self.squares):
            self._adam(self.weights[i], grads[i], mean, square)
        for mean, weight in zip(self.averages, self.weights):
            mean.lerp_(weight, 1 - self.rates.average)

    def _muon(self, weights: list, grads: list, momentum: torch.Tensor) -> None:
        grad = torch.cat([_blocks(grad) for grad in grads])
        momentum.lerp_(grad, 0.05)
        update = orthogonal(grad.lerp(momentum, 0.95).to(self.precision)).float()
        step, first = self.rate * self.rates.muon, 0
        update = step * max(1.0, update.shape[1] / update.shape[2])**0.5 * update
        for weight in weights:
            blocks = _blocks(weight)
            blocks.mul_(1 - step * self.rates.decay).sub_(update[first:first + len(blocks)])
            first += len(blocks)

    def _adam(self, weight: torch.Tensor, grad: torch.Tensor, mean: torch.Tensor,
              square: torch.Tensor) -> None:
        mean.lerp_(grad, 0.1)
        square.lerp_(grad.square(), 0.02)
        unbiased = (square / (1 - 0.98**self.count)).sqrt() + 1e-8
        step = self.rate * self.rates.adam
        if weight.dim() >= 2:
            weight.mul_(1 - step * self.rates.decay)
        weight.sub_(step * mean / (1 - 0.9**self.count) / unbiased)


def _blocks(weight: torch.Tensor) -> torch.Tensor:
    """A view `[k, rows, columns]` of the matrices in a weight: a ViT's query, key and value are
    three in one."""
    rows, columns = weight.shape
    return weight.view(3, columns, columns) if rows == 3 * columns else weight.unsqueeze(0)
