"""Small InternVL models whose every weight matters, and their features by the reference."""
import torch

from lmdeploy_ext.models.configuration import InternVLChatConfig
from lmdeploy_ext.models.internvl import InternVLChatModel
from lmdeploy_ext.models.shapes import LLM_TINY, QWEN2, VIT_TINY
from lmdeploy_ext.vision.backend import run
from lmdeploy_ext.vision.upstream import UpstreamBackend

CPU = torch.device('cpu')
LIKE_6B = dict(norm_type='rms_norm', qk_normalization=True, qkv_bias=False)


def chat_model(vision=None, **chat):
    """A model with random weights, float32.

    Args:
        vision, chat: fields of the vision configuration, and of the chat model's, that differ
            from the shape `tiny`.
    """
    torch.manual_seed(0)
    llm = dict(QWEN2, **dict(LLM_TINY, hidden_size=32, intermediate_size=32, num_hidden_layers=1),
               vocab_size=16)
    fields = dict(dict(ps_version='v2'), **chat)
    model = InternVLChatModel(InternVLChatConfig(vision_config=dict(VIT_TINY, **vision or {}),
                                                 llm_config=llm, **fields)).eval()
    for parameter in [*model.vision_model.parameters(), *model.mlp1.parameters()]:
        # products of a wide model as large as those of a narrow one: attention that only ever
        # sees one patch would say nothing about rounding
        width = parameter[0].numel() if parameter.dim() > 1 else 1
        parameter.data.add_(torch.randn_like(parameter) * 0.1 * min(1, 64 / width)**0.5)
    return model


def random_tiles(count, side=112, seed=0):
    """uint8 [count, side, side, 3], every byte equally likely."""
    chance = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, side, side, 3), dtype=torch.uint8, generator=chance)


def reference(model, tiles):
    """[n, tokens, hidden], as the checkpoint's code computes them."""
    return run(UpstreamBackend(model, len(tiles)), tiles)


def errors(found, expected):
    """The least cosine of a row of features, and the greatest error beside the largest value."""
    found, expected = found.float().cpu(), expected.float().cpu()
    cosine = torch.cosine_similarity(found, expected, dim=-1).min().item()
    return cosine, ((found - expected).abs().max() / expected.abs().max()).item()
