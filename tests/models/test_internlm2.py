"""InternLM2 against transformers' Llama with the same weights in Llama's layout."""
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lmdeploy_ext.models.configuration import InternLM2Config
from lmdeploy_ext.models.internlm2 import InternLM2ForCausalLM
from lmdeploy_ext.models.rope import rotary

SIZES = dict(vocab_size=100,
             hidden_size=64,
             intermediate_size=96,
             num_hidden_layers=2,
             num_attention_heads=4,
             num_key_value_heads=2,
             max_position_embeddings=16,
             rms_norm_eps=1e-6,
             pad_token_id=0)
SCALINGS = [None, {'type': 'linear', 'factor': 2.0}, {'type': 'dynamic', 'factor': 2.0}]
TO_LLAMA = {
    'attention.wo': 'self_attn.o_proj',
    'feed_forward.w1': 'mlp.gate_proj',
    'feed_forward.w2': 'mlp.down_proj',
    'feed_forward.w3': 'mlp.up_proj',
    'attention_norm': 'input_layernorm',
    'ffn_norm': 'post_attention_layernorm',
    'tok_embeddings': 'embed_tokens',
}


def internlm2(**fields):
    torch.manual_seed(0)
    config = InternLM2Config(**dict(SIZES, bias=True, initializer_range=0.2), **fields)
    model = InternLM2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


def llama_of(model):
    """transformers' Llama with an InternLM2's weights; in wqkv: two queries, a key, a value."""
    scaling = model.config.rope_scaling
    config = LlamaConfig(attention_bias=True, rope_scaling=scaling and dict(scaling), **SIZES)
    weights = {}
    for name, tensor in model.state_dict().items():
        name = 'lm_head.weight' if name == 'output.weight' else name
        for ours, theirs in TO_LLAMA.items():
            name = name.replace(ours, theirs)
        if 'wqkv' not in name:
            weights[name] = tensor
            continue
        groups = tensor.reshape(2, 4, 16, *tensor.shape[1:])
        for letter, heads in zip('qkv', (slice(0, 2), slice(2, 3), slice(3, 4))):
            own = name.replace('attention.wqkv', f'self_attn.{letter}_proj')
            weights[own] = groups[:, heads].reshape(-1, *tensor.shape[1:])
    llama = LlamaForCausalLM(config).eval()
    llama.load_state_dict(weights)
    return llama


@pytest.fixture(params=SCALINGS, ids=['plain', 'linear', 'dynamic'])
def models(request):
    model = internlm2(rope_scaling=request.param)
    return model, llama_of(model)


@torch.no_grad()
def test_logits_equal_llamas(models):
    """fp32, tolerance 1e-5 of the largest logit: the two add up in different orders."""
    ids = torch.randint(1, 100, (2, 40))  # beyond max_position_embeddings: dynamic scaling acts
    mask = torch.ones_like(ids)
    mask[1, :5] = 0
    found, expected = (model(ids, attention_mask=mask).logits[mask.bool()] for model in models)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5 * float(expected.abs().max()))


def test_loss_equals_llamas(models):
    ids = torch.randint(1, 100, (2, 12))
    labels = ids.clone()
    labels[:, :4] = -100
    found, expected = (float(model(ids, labels=labels, use_cache=False).loss) for model in models)
    assert found == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_generation_with_and_without_a_cache_equals_llamas(models):
    model, llama = models
    ids = torch.randint(1, 100, (2, 8))
    mask = torch.ones_like(ids)
    mask[0, :3] = 0  # padded on the left
    options = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None)
    expected = llama.generate(ids, **options)
    assert torch.equal(model.generate(ids, **options), expected)
    assert torch.equal(model.generate(ids, use_cache=False, **options), expected)


@torch.no_grad()
def test_generation_from_embeddings(models):
    model, llama = models
    ids = torch.randint(1, 100, (1, 8))
    options = dict(attention_mask=torch.ones_like(ids),
                   max_new_tokens=6,
                   do_sample=False,
                   eos_token_id=None)
    expected = llama.generate(ids, **options)[:, 8:]
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model.generate(inputs_embeds=embedded, **options), expected)
    assert torch.equal(model.generate(inputs_embeds=embedded, use_cache=False, **options),
                       expected)


@torch.no_grad()
def test_a_prompt_may_come_in_chunks(models):
    model, _ = models
    ids = torch.randint(1, 100, (1, 12))
    whole = model(ids).logits
    first = model(ids[:, :7])
    second = model(ids[:, 7:], past_key_values=first.past_key_values)
    torch.testing.assert_close(second.logits, whole[:, 7:], atol=1e-4, rtol=1e-4)


def test_state_dict_is_the_published_one():
    """InternVL2-8B's language model; shapes of its first layer and what surrounds the layers."""
    config = InternLM2Config(vocab_size=92553,
                             intermediate_size=14336,
                             num_key_value_heads=8,
                             bias=False)
    with torch.device('meta'):
        model = InternLM2ForCausalLM(config)
    found = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    layer = {
        'attention.wqkv.weight': (6144, 4096),
        'attention.wo.weight': (4096, 4096),
        'feed_forward.w1.weight': (14336, 4096),
        'feed_forward.w2.weight': (4096, 14336),
        'feed_forward.w3.weight': (14336, 4096),
        'attention_norm.weight': (4096, ),
        'ffn_norm.weight': (4096, ),
    }
    expected = {
        'model.tok_embeddings.weight': (92553, 4096),
        'model.norm.weight': (4096, ),
        'output.weight': (92553, 4096),
    }
    for i in range(32):
        expected.update({f'model.layers.{i}.{name}': shape for name, shape in layer.items()})
    assert found == expected


def test_half_precision_keeps_the_angles_exact():
    """fp16 steps by 16 at 20,001: positions and angles must be computed in fp32."""
    config = InternLM2Config(**SIZES)
    position = torch.tensor([[20001]])
    cos, _ = rotary(position, config, torch.float16)
    assert cos[0, 0, 0, 0] == torch.tensor(20001.0).cos().half()


@torch.no_grad()
def test_dynamic_scaling_leaves_short_prompts_alone():
    plain, dynamic = internlm2(), internlm2(rope_scaling={'type': 'dynamic', 'factor': 2.0})
    ids = torch.randint(1, 100, (1, 16))
    torch.testing.assert_close(plain(ids).logits, dynamic(ids).logits)
    ids = torch.randint(1, 100, (1, 17))
    assert not torch.allclose(plain(ids).logits, dynamic(ids).logits, atol=1e-3)
