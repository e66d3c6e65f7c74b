"""Models with a sliding window and capped scores: Mistral and Gemma2 against transformers.

The reference computes every token from the whole text: with its own cache, transformers 4.44 gives
other tokens for prompts just below the window.
"""
import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, MistralConfig, MistralForCausalLM

from lmdeploy_ext.models.checkpoint import SAMPLE_LINES
from lmdeploy_ext.models.tokenizer import build_tokenizer, save_tokenizer
from tests.parity.engine import ask, greedy
from tests.parity.test_text import ids_of, prompts_of

TOKENS, WINDOW = 20, 24
PROMPTS = prompts_of([5, 20, 24, 25, 33, 47, 64, 90], seed=4)
CAPS = dict(attn_logit_softcapping=3.0, final_logit_softcapping=None, query_pre_attn_scalar=16)


def write(folder, model_class, config_class, **fields):
    tokenizer = build_tokenizer(SAMPLE_LINES, 320)
    config = config_class(vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128,
                          num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                          head_dim=16, sliding_window=WINDOW, initializer_range=0.3,
                          bos_token_id=0, pad_token_id=1, eos_token_id=tokenizer.eos_token_id,
                          attn_implementation='eager', **fields)
    torch.manual_seed(0)
    model = model_class(config).eval()
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    return model


@torch.no_grad()
def reference_ids(model, prompt):
    ids = list(prompt)
    for _ in range(TOKENS):
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        logits[model.config.eos_token_id] = float('-inf')
        ids.append(int(logits.argmax()))
    return ids[len(prompt):]


@pytest.mark.parametrize('model_class, config_class, fields', [
    (MistralForCausalLM, MistralConfig, dict()),
    (Gemma2ForCausalLM, Gemma2Config, CAPS),
], ids=['mistral', 'gemma2'])
def test_ids_are_those_of_the_reference(tmp_path, model_class, config_class, fields):
    model = write(tmp_path, model_class, config_class, **fields)
    expected = [reference_ids(model, prompt) for prompt in PROMPTS]
    for settings in (dict(), dict(block_size=16, max_prefill_token_num=32)):
        assert ids_of(ask(str(tmp_path), PROMPTS, greedy(TOKENS), **settings)) == expected
