"""AWQ linear layers (4-bit weights) in the dtype of the activations."""
from typing import Optional

import torch
from lmdeploy.pytorch.backends.default.awq_modules import (DefaultLinearW4A16Builder,
                                                           DefaultLinearW4A16Impl, dequantize_gemm)


class CpuLinearW4A16(DefaultLinearW4A16Impl):
    """Upstream's default layer without its rounding of activations and weights to fp16, in which a
    CPU is slow."""

    def forward(self,
                x: torch.Tensor,
                qweight: torch.Tensor,
                scales: torch.Tensor,
                qzeros: torch.Tensor,
                bias: Optional[torch.Tensor] = None,
                all_reduce: bool = False) -> torch.Tensor:
        """Multiply with the dequantised weight.

        Args:
            x: [.., in_features] in any floating dtype.
            qweight: [in_features, out_features / 8] int32.
            scales: [in_features / group_size, out_features].
            qzeros: [in_features / group_size, out_features / 8] int32.
            bias: [out_features].
            all_reduce: not used; tensor parallelism is refused on the CPU.

        Returns:
            [.., out_features] in the dtype of `x`.
        """
        weight = dequantize_gemm(qweight, qzeros, scales.to(x.dtype), self.w_bit, self.group_size)
        out = x @ weight
        return out if bias is None else out + bias.to(x.dtype)


class CpuLinearW4A16Builder(DefaultLinearW4A16Builder):
    """Builds such a layer."""

    @staticmethod
    def build(in_features: int,
              out_features: int,
              w_bit: int,
              group_size: int,
              bias: bool = False,
              dtype: Optional[torch.dtype] = None) -> CpuLinearW4A16:
        """The layer."""
        return CpuLinearW4A16(in_features, out_features, w_bit, group_size)
