"""Matrix products with what follows them; on a CPU with weights in oneDNN's own layout."""
from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN


class Linear(nn.Linear):
    """`x @ weight.T + bias`, then an activation or a sum.

    Args:
        activation: its name in transformers, or None.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True,
                 activation: Optional[str] = None):
        super().__init__(inputs, outputs, bias=bias)
        self.activation = activation
        self.activate = None if activation is None else ACT2FN[activation]

    def forward(self, x: torch.Tensor, added_to: Optional[torch.Tensor] = None) -> torch.Tensor:
        """x: [..., inputs] -> [..., outputs].

        Args:
            added_to: [..., outputs], to which the result is added in place.
        """
        if added_to is None and self._fuses_gelu(x):
            y = torch._addmm_activation(self.bias, x.flatten(0, -2), self.weight.t(),
                                        use_gelu=True)
            return y.unflatten(0, x.shape[:-1])
        y = F.linear(x, self.weight, self.bias)
        if self.activate is not None:
            y = self.activate(y)
        return y if added_to is None else added_to.add_(y)

    def _fuses_gelu(self, x: torch.Tensor) -> bool:
        """Whether cuBLASLt applies GELU while it writes the product: 6 to 9 % of the time of an
        InternViT on an H200. Its GELU is the tanh form, which differs from the exact one by 5e-4
        at most: less than half precision rounds by where it does, too much for float32."""
        return (self.activation == 'gelu' and x.is_cuda and self.bias is not None
                and x.dtype in (torch.float16, torch.bfloat16))


class PackedLinear(nn.Module):
    """A float32 `Linear` on a CPU whose weight oneDNN has reordered; it holds no other copy.

    Twice as fast as `F.linear`, which is MKL's, on the AMD processors of our tests.
    """

    def __init__(self, linear: Linear):
        super().__init__()
        self.register_buffer('bias', None if linear.bias is None else linear.bias.detach())
        # No buffer: a tensor in oneDNN's layout can be neither copied nor saved by modules.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        # oneDNN applies GELU, which is every released model's, while it writes the product.
        self.fused = 'gelu' if linear.activation == 'gelu' else 'none'
        self.activate = None if self.fused == 'gelu' else linear.activate

    def forward(self, x: torch.Tensor, added_to: Optional[torch.Tensor] = None) -> torch.Tensor:
        """As `Linear.forward`."""
        y = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.fused, [], 'none')
        if self.activate is not None:
            y = self.activate(y)
        return y if added_to is None else added_to.add_(y)


def can_pack(weight: torch.Tensor) -> bool:
    """Whether this torch and the weight's device and dtype suit `PackedLinear`."""
    return (weight.device.type == 'cpu' and weight.dtype == torch.float32
            and torch.backends.mkldnn.is_available()
            and hasattr(torch.ops.mkldnn, '_reorder_linear_weight')
            and hasattr(torch.ops.mkldnn, '_linear_pointwise'))


def pack(model: nn.Module):
    """Replace each `Linear` in a model by a `PackedLinear` where that can be."""
    for name, child in list(model.named_children()):
        if isinstance(child, Linear):
            if can_pack(child.weight):
                setattr(model, name, PackedLinear(child))
        else:
            pack(child)
