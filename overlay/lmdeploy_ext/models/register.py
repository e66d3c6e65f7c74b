"""Make InternVL2's classes known to transformers' Auto classes."""


def register():
    """Register `internvl_chat`, `intern_vit_6b` and `internlm2` with transformers.

    A checkpoint folder of these types then loads without `trust_remote_code` and without Python
    files. One that carries remote code still loads it where `trust_remote_code=True` is given:
    transformers prefers a folder's `auto_map` to what is registered. Doing it twice is harmless.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from lmdeploy_ext.models.configuration import InternVisionConfig, InternVLChatConfig
    from lmdeploy_ext.models.internvl import InternVLChatModel
    from lmdeploy_ext.models.vision import InternVisionModel
    for config in (InternVisionConfig, InternVLChatConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModel.register(InternVisionConfig, InternVisionModel, exist_ok=True)
    AutoModel.register(InternVLChatConfig, InternVLChatModel, exist_ok=True)
    AutoModelForCausalLM.register(InternVLChatConfig, InternVLChatModel, exist_ok=True)
