"""InternVL's image encoder on the CPU: upstream's own code and preprocessing, in float32.

Upstream rounds weights, pixels and features to fp16, in which a CPU is 7 to 15 times slower. Here
nothing is rounded: pixels reach the ViT in float32, so the features are those of a float32
reference. Tiles and resizing are upstream's.
"""
import os
from typing import Any

from lmdeploy.archs import get_model_arch
from lmdeploy.utils import get_model
from lmdeploy.vl.model.internvl import InternVLVisionModel

from .limits import refuse_unsupported_settings, refuse_unsupported_vision
from .memory import free_memory
from .retarget import TO_FP32, retarget


class CpuInternVLVision(InternVLVisionModel):
    """Upstream's class with `half` read as `float`.

    These are copies: a patch of the originals does not reach them.
    """

    build_model = retarget(InternVLVisionModel.build_model, TO_FP32)
    _forward_v1_5 = retarget(InternVLVisionModel._forward_v1_5, TO_FP32)
    _forward = retarget(InternVLVisionModel._forward, TO_FP32)


def load_cpu_vision_model(model_path: str, engine_config: Any) -> CpuInternVLVision:
    """Load the image encoder of a checkpoint, without the language model's weights.

    Args:
        model_path: folder of the checkpoint, or its name on a hub.
        engine_config: the `PytorchEngineConfig` that the language model will get.

    Raises:
        UnsupportedOnCpu: the model is not InternVL, or the settings need a GPU.
    """
    refuse_unsupported_settings(engine_config)
    if not os.path.exists(model_path):
        model_path = get_model(model_path, revision=engine_config.revision,
                               download_dir=engine_config.download_dir)
    architecture, hf_config = get_model_arch(model_path)
    refuse_unsupported_vision(architecture)
    return CpuInternVLVision(model_path=model_path, with_llm=False,
                             max_memory={'cpu': free_memory()}, hf_config=hf_config)
