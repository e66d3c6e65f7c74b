"""Checkpoints of random weights, and of trained models."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from lmdeploy_ext.models import checkpoint, shapes
from lmdeploy_ext.models.checkpoint import save_checkpoint, write_checkpoint
from lmdeploy_ext.models.tokenizer import build_tokenizer

SCRIPT = Path(__file__).parents[2] / 'scripts' / 'write_checkpoint.py'


def test_a_folder_holds_what_the_engines_read_and_no_python(tiny_checkpoint):
    names = {file.name for file in tiny_checkpoint().iterdir()}
    assert names == {
        'config.json', 'generation_config.json', 'model.safetensors', 'special_tokens_map.json',
        'tokenizer.json', 'tokenizer_config.json'
    }


@pytest.mark.parametrize('shape', ['tiny', 'tiny-internlm2', 'tiny-llama', 'demo'])
@torch.no_grad()
def test_every_small_shape_answers(tiny_checkpoint, shape):
    folder = tiny_checkpoint(shape)
    model, loading = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert not any(loading.values())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model.img_context_token_id = tokenizer.convert_tokens_to_ids('<IMG_CONTEXT>')
    ids = tokenizer.encode('<img>' + '<IMG_CONTEXT>' * model.num_image_token + '</img>\n?')
    side = model.config.vision_config.image_size
    torch.manual_seed(0)
    answers = {
        tuple(
            model.generate(torch.tensor([ids]),
                           torch.randn(1, 3, side, side),
                           max_new_tokens=8,
                           do_sample=False,
                           pad_token_id=0)[0].tolist())
        for _ in range(3)
    }
    assert len(answers) > 1  # the image decides


def test_both_engines_run_the_head_size_of_the_small_shapes():
    for shape in ('tiny', 'tiny-internlm2', 'tiny-llama', 'demo'):
        llm = shapes.shape_config(shape, 320).llm_config
        assert llm.hidden_size // llm.num_attention_heads == 128


def test_config_json_spells_out_what_turbomind_reads(tiny_checkpoint):
    """TurboMind reads config.json without the classes' defaults."""
    for shape in ('tiny', 'tiny-internlm2', 'tiny-llama'):
        fields = json.loads((tiny_checkpoint(shape) / 'config.json').read_text())
        llm = fields['llm_config']
        for name in ('num_hidden_layers', 'rms_norm_eps', 'hidden_size', 'num_attention_heads',
                     'num_key_value_heads', 'rope_theta', 'max_position_embeddings', 'vocab_size',
                     'intermediate_size', 'tie_word_embeddings', 'architectures'):
            assert name in llm, (shape, name)
        assert fields['torch_dtype'] == llm['torch_dtype'] == 'float32'
        assert 'transformers_version' not in json.dumps(fields)
        assert 'auto_map' not in fields


def test_the_head_is_as_wide_as_the_tokenizer(tiny_checkpoint):
    for shape in ('tiny', 'tiny-internlm2', 'tiny-llama'):
        weights = load_file(tiny_checkpoint(shape) / 'model.safetensors')
        head = next(weights[name] for name in weights if name.endswith(
            ('lm_head.weight', 'language_model.output.weight')))
        assert len(head) == len(AutoTokenizer.from_pretrained(tiny_checkpoint(shape)))


def test_large_checkpoints_come_in_shards(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / 'whole', 'tiny', dtype='bfloat16')
    monkeypatch.setattr(checkpoint, 'SHARD_BYTES', 400_000)
    write_checkpoint(tmp_path / 'shards', 'tiny', dtype='bfloat16')
    files = sorted((tmp_path / 'shards').glob('*.safetensors'))
    assert len(files) > 3
    assert files[0].name == f'model-00001-of-{len(files):05d}.safetensors'
    parts = {}
    for file in files:
        part = load_file(file)
        assert len(part) == 1 or file.stat().st_size < 420_000
        parts.update(part)
    whole = load_file(tmp_path / 'whole' / 'model.safetensors')
    assert parts.keys() == whole.keys()
    assert all(torch.equal(parts[name], whole[name]) for name in whole)
    index = json.loads((tmp_path / 'shards' / 'model.safetensors.index.json').read_text())
    assert index['weight_map'].keys() == whole.keys()
    assert index['metadata']['total_size'] == sum(t.nbytes for t in whole.values())
    assert AutoModel.from_pretrained(tmp_path / 'shards', torch_dtype='auto').dtype is \
        torch.bfloat16


def test_the_seed_decides(tmp_path):
    weights = []
    for name, seed in (('a', 1), ('b', 1), ('c', 2)):
        write_checkpoint(tmp_path / name, 'tiny', seed=seed)
        weights.append((tmp_path / name / 'model.safetensors').read_bytes())
    assert weights[0] == weights[1] != weights[2]


@torch.no_grad()
def test_activations_stay_small_over_32_layers(tmp_path, monkeypatch):
    """fp16 ends at 65504; random weights must stay far from it at InternVL2-8B's depth."""
    vision, llm = shapes.SHAPES['tiny-internlm2']
    deep = (dict(vision, num_hidden_layers=24), dict(llm, num_hidden_layers=32))
    monkeypatch.setitem(shapes.SHAPES, 'deep', deep)
    write_checkpoint(tmp_path, 'deep')
    model = AutoModel.from_pretrained(tmp_path, torch_dtype=torch.float32)
    largest = []
    for module in model.modules():
        module.register_forward_hook(
            lambda _, __, output: largest.append(output.abs().max())
            if isinstance(output, torch.Tensor) else None)
    features = model.extract_feature(torch.randn(2, 3, 112, 112) * 2)
    logits = model.language_model(inputs_embeds=features).logits
    assert max(largest) < 100
    assert 0.2 < logits.std() < 5


def test_a_given_tokenizer_sets_the_vocabulary(tmp_path):
    tokenizer = build_tokenizer(['a bed'], 270)
    config = write_checkpoint(tmp_path, 'tiny', tokenizer=tokenizer)
    assert config.llm_config.vocab_size == len(tokenizer)
    fields = json.loads((tmp_path / 'config.json').read_text())
    assert fields['llm_config']['eos_token_id'] == tokenizer.eos_token_id


@pytest.mark.parametrize('options, message', [
    (dict(shape='tinny'), "no shape 'tinny'.*did you mean 'tiny'"),
    (dict(shape='tiny', dtype='int8'), "dtype is 'int8'; it must be one of float16"),
    (dict(shape='tiny', device='tpu'), "device is 'tpu'; it must be cpu, cuda or cuda:N"),
    (dict(shape='8b', tokenizer=build_tokenizer(['a'], 263)), 'vocabulary of 92553 .* one of 263'),
])
def test_bad_requests_leave_the_folder_alone(tmp_path, options, message):
    (tmp_path / 'model.safetensors').write_bytes(b'precious')
    with pytest.raises(ValueError, match=message):
        write_checkpoint(tmp_path, overwrite=True, **options)
    assert (tmp_path / 'model.safetensors').read_bytes() == b'precious'


def test_weights_are_replaced_only_on_purpose(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, 'SHARD_BYTES', 400_000)
    write_checkpoint(tmp_path, 'tiny')
    (tmp_path / 'README.md').write_text('kept')
    with pytest.raises(FileExistsError, match='holds weights already'):
        write_checkpoint(tmp_path, 'tiny')
    monkeypatch.undo()
    write_checkpoint(tmp_path, 'tiny', overwrite=True)
    assert [file.name for file in tmp_path.glob('*safetensors*')] == ['model.safetensors']
    assert (tmp_path / 'README.md').read_text() == 'kept'


@pytest.mark.parametrize('llm', ['InternLM2ForCausalLM', 'LlamaForCausalLM', 'Qwen2ForCausalLM'])
@pytest.mark.parametrize('tied', [False, True])
def test_a_trained_model_loads_as_it_was(chat_model, tmp_path, llm, tied):
    tokenizer = build_tokenizer(['a'], 263)
    fields = dict(vocab_size=263, tie_word_embeddings=tied)
    model = chat_model(llm, llm_fields=fields, template='internlm2-chat')
    save_checkpoint(model, tmp_path, 'float16', tokenizer)
    loaded = AutoModel.from_pretrained(tmp_path, torch_dtype='auto')
    assert loaded.dtype is torch.float16
    assert model.dtype is torch.float32
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.half()), name
    assert loaded.config.template == 'internlm2-chat'
    assert loaded.config.llm_config.tie_word_embeddings is tied
    assert loaded.config.llm_config.eos_token_id == tokenizer.eos_token_id
    # TurboMind finds a head under its own name, tied or not.
    names = load_file(tmp_path / 'model.safetensors').keys()
    assert any(name.endswith(('lm_head.weight', 'language_model.output.weight')) for name in names)


def test_what_must_not_be_saved_is_refused(chat_model, tmp_path):
    model = chat_model()
    with pytest.raises(ValueError, match='tokenizer has 263 entries .* vocabulary of 64'):
        save_checkpoint(model, tmp_path, 'float16', build_tokenizer(['a'], 263))
    model = chat_model(llm_fields=dict(vocab_size=263))
    with torch.no_grad():
        model.mlp1[1].bias[0] = 1e6  # finite in fp32, infinite in fp16
    with pytest.raises(ValueError, match='mlp1.1.bias has values that are not finite in float16'):
        save_checkpoint(model, tmp_path, 'float16', build_tokenizer(['a'], 263))
    assert not list(tmp_path.iterdir())


def run_script(*args):
    return subprocess.run([sys.executable, '-W', 'ignore', SCRIPT, *args],
                          capture_output=True,
                          text=True)


def test_the_command(tmp_path):
    folder = tmp_path / 'model'
    done = run_script(folder, '--shape', 'tiny-llama', '--dtype', 'bfloat16', '--seed', '3')
    assert done.returncode == 0, done.stderr
    assert (folder / 'model.safetensors').exists()
    again = run_script(folder)
    assert again.returncode == 1
    assert again.stderr.startswith('write_checkpoint: ') and again.stderr.count('\n') == 1
