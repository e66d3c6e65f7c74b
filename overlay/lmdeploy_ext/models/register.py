"""Make InternVL2's classes known to transformers' Auto classes."""


def register():
    """Register `internvl_chat`, `intern_vit_6b`, `internlm2` and InternLM2's tokenizer.

    A checkpoint folder of these types then loads without `trust_remote_code` and without Python
    files. One that carries remote code still loads it where `trust_remote_code=True` is given:
    transformers prefers a folder's `auto_map` to what is registered. Doing it twice is harmless.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    from lmdeploy_ext.models.configuration import (InternLM2Config, InternVisionConfig,
                                                   InternVLChatConfig)
    from lmdeploy_ext.models.internlm2 import InternLM2ForCausalLM, InternLM2Model
    from lmdeploy_ext.models.internlm2_tokenizer import InternLM2Tokenizer
    from lmdeploy_ext.models.internvl import InternVLChatModel
    from lmdeploy_ext.models.vision import InternVisionModel

    for config in (InternVisionConfig, InternLM2Config, InternVLChatConfig):
        AutoConfig.register(config.model_type, config, exist_ok=True)
    for model in (InternVisionModel, InternLM2Model, InternVLChatModel):
        AutoModel.register(model.config_class, model, exist_ok=True)
    for model in (InternLM2ForCausalLM, InternVLChatModel):
        AutoModelForCausalLM.register(model.config_class, model, exist_ok=True)
    # Found by the class name in tokenizer_config.json, whatever the checkpoint's own type is.
    AutoTokenizer.register(InternLM2Config, slow_tokenizer_class=InternLM2Tokenizer, exist_ok=True)
