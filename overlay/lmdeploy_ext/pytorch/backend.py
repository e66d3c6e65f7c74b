"""The operators of the CPU backend: upstream's default ones, and ours where it has none."""
from lmdeploy.pytorch.backends.base import OpType
from lmdeploy.pytorch.backends.default.op_backend import DefaultOpsBackend

from .attention import CpuAttentionBuilder, CpuAttentionMetadata
from .limits import UnsupportedOnCpu
from .linear import CpuLinearW4A16Builder
from .sampling import SeededSamplingBuilder

_OURS = {
    OpType.Attention: CpuAttentionBuilder,
    OpType.LinearW4A16: CpuLinearW4A16Builder,
    OpType.MultinomialSampling: SeededSamplingBuilder,
}


class CpuOpsBackend(DefaultOpsBackend):
    """Operators for `device_type='cpu'`."""

    @staticmethod
    def get_name() -> str:
        """Name of the backend."""
        return 'cpu'

    @classmethod
    def get_layer_impl_builder(cls, layer_type: OpType):
        """The builder of an operator.

        Raises:
            UnsupportedOnCpu: neither we nor upstream's default backend has the operator.
        """
        if layer_type in _OURS:
            return _OURS[layer_type]
        try:
            return super().get_layer_impl_builder(layer_type)
        except RuntimeError as error:  # upstream's word for an operator that it does not know
            raise UnsupportedOnCpu(f'This model needs the operator {layer_type.name}, which only '
                                   f'GPU backends have; choose another model') from error

    @staticmethod
    def get_attention_metadata_cls() -> type:
        """Class of the attention metadata."""
        return CpuAttentionMetadata

    @classmethod
    def update_step_context(cls, step_context):
        """Compute the attention metadata once for all layers."""
        step_context.attn_metadata = CpuAttentionMetadata.from_context(step_context)
        return step_context
