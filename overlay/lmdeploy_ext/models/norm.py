"""RMSNorm."""
import torch
from torch import nn


class RMSNorm(nn.Module):
    """Root mean square normalisation (https://arxiv.org/abs/1910.07467), computed in fp32.

    The result is rounded to the input's dtype before the weight multiplies it, as InternViT and
    InternLM2 were trained.
    """

    def __init__(self, hidden_size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., hidden_size] -> the same shape."""
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)
