"""LMDeploy's own code reads our checkpoints: configuration, tokenizer, vision tower, TurboMind."""
import numpy as np
import pytest
import torch
from PIL import Image

SHAPES = ('tiny', 'tiny-internlm2', 'tiny-llama')


@pytest.fixture(params=SHAPES)
def folder(request, tiny_checkpoint):
    return str(tiny_checkpoint(request.param))


def test_configuration(folder):
    from lmdeploy.archs import get_model_arch, get_task
    from lmdeploy.pytorch.config import ModelConfig
    from lmdeploy.pytorch.supported_models import is_supported
    from lmdeploy.utils import _get_and_verify_max_len
    arch, config = get_model_arch(folder)
    assert arch == 'InternVLChatModel'
    assert get_task(folder)[0] == 'vlm'
    assert is_supported(folder)
    assert _get_and_verify_max_len(config, None) == 32768
    model = ModelConfig.from_pretrained(folder)
    llm = config.llm_config
    assert (model.hidden_size, model.num_layers, model.head_dim) == (256, 2, 128)
    assert (model.num_attention_heads, model.num_key_value_heads) == (2, 1)
    assert (model.vocab_size, model.sliding_window) == (llm.vocab_size, -1)
    assert model.eos_token_id == [llm.eos_token_id]


def test_tokenizer(folder):
    from lmdeploy.tokenizer import DetokenizeState, Tokenizer
    tokenizer = Tokenizer(folder)
    text = '你好 world <img></img> é🦜\n\n是'
    ids = tokenizer.encode(text)
    assert ids == tokenizer.encode(text, add_bos=False)
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    state, pieces = DetokenizeState(), []
    for end in range(1, len(ids) + 1):
        piece, state = tokenizer.detokenize_incrementally(ids[:end],
                                                          state,
                                                          skip_special_tokens=False)
        pieces.append(piece)
    assert ''.join(pieces) == text
    assert tokenizer.indexes_containing_token('<|im_end|>') == [tokenizer.eos_token_id]


def test_every_id_of_the_head_can_be_written(folder):
    """An id without a token raises TypeError in LMDeploy and stops the whole batch."""
    from lmdeploy.archs import get_model_arch
    from lmdeploy.tokenizer import DetokenizeState, Tokenizer
    tokenizer = Tokenizer(folder)
    for token in range(get_model_arch(folder)[1].llm_config.vocab_size):
        tokenizer.detokenize_incrementally([token], DetokenizeState())


@torch.no_grad()
def test_vision_tower_as_upstream_builds_and_calls_it(folder, monkeypatch):
    # where patches apply in this process, they keep to upstream's tiles and pixels here
    monkeypatch.setenv('LMDEPLOY_EXT_TILES', 'stock')
    monkeypatch.setenv('LMDEPLOY_EXT_PIXELS', 'upstream')
    from lmdeploy.archs import get_model_arch
    from lmdeploy.vl.model.internvl import InternVLVisionModel

    from lmdeploy_ext.models.internvl import InternVLChatModel
    vision = InternVLVisionModel(folder,
                                 with_llm=False,
                                 max_memory={'cpu': 10**9},
                                 hf_config=get_model_arch(folder)[1])
    vision.build_model()
    assert not hasattr(vision.model, 'language_model')
    noise = np.random.default_rng(0).integers(0, 255, (200, 300, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    found = vision.forward([image], [{}])
    tiles = torch.stack(tuple(vision._preprocess_v1_5([image], [{}])[0]))
    assert found[0].shape == (len(tiles) * 16, 256)
    # fp16 against fp32: 11 bits over some ten layers, outputs near 1.
    expected = InternVLChatModel.from_pretrained(folder).extract_feature(tiles.float())
    torch.testing.assert_close(found[0].float(), expected.flatten(0, 1), atol=0.05, rtol=0.05)


def test_turbomind_reads_config_json(folder):
    from lmdeploy.turbomind.deploy.source_model.internvl import InternVLModel
    info = InternVLModel(folder, folder).model_info()
    assert (info['num_layer'], info['hidden_units'], info['kv_head_num']) == (2, 256, 1)
    assert info['max_position_embeddings'] == 32768


def test_the_seam_registers_when_lmdeploy_is_imported():
    from lmdeploy_ext.patches import transformers_internvl_chat
    seam = transformers_internvl_chat.register_internvl
    assert seam.after == 'lmdeploy.archs'
    import lmdeploy.archs
    seam.register(lmdeploy.archs)
    from transformers import AutoConfig
    assert AutoConfig.for_model('internlm2').model_type == 'internlm2'
