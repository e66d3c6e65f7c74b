"""The chat model: pixel shuffle, features, training and generation."""
import pytest
import torch

from lmdeploy_ext.models.internvl import pixel_shuffle

from .conftest import LLMS


def test_pixel_shuffle_by_hand():
    """A 2 x 4 grid with one channel: each token takes a 2 x 2 square, row by row."""
    grid = torch.arange(8).reshape(1, 2, 4, 1)  # 0 1 2 3 / 4 5 6 7
    assert pixel_shuffle(grid, 0.5).tolist() == [[[[0, 1, 4, 5], [2, 3, 6, 7]]]]
    assert pixel_shuffle(grid, 0.5, 'v1').tolist() == [[[[0, 1, 4, 5]], [[2, 3, 6, 7]]]]
    assert pixel_shuffle(grid, 1.0).tolist() == grid.tolist()


def test_pixel_shuffle_keeps_channels_of_a_patch_together():
    grid = torch.arange(8).reshape(1, 2, 2, 2)
    assert pixel_shuffle(grid, 0.5).tolist() == [[[[0, 1, 2, 3, 4, 5, 6, 7]]]]


def test_the_three_parts_have_the_published_names(chat_model):
    names = chat_model().state_dict().keys()
    assert {name.split('.')[0] for name in names} == {'vision_model', 'language_model', 'mlp1'}
    projector = {name for name in names if name.startswith('mlp1')}
    assert projector == {f'mlp1.{i}.{kind}' for i in (0, 1, 3) for kind in ('weight', 'bias')}


@pytest.mark.parametrize('size, tokens', [((112, 112), 16), ((112, 168), 24), ((56, 56), 4)])
@torch.no_grad()
def test_feature_shape(chat_model, size, tokens):
    assert chat_model().extract_feature(torch.randn(3, 3, *size)).shape == (3, tokens, 32)


@torch.no_grad()
def test_features_are_of_the_patches_without_the_class_token(chat_model):
    model, pixels = chat_model(), torch.randn(1, 3, 112, 112)
    patches = model.vision_model(pixels).last_hidden_state[0, 1:].reshape(8, 8, 64)
    square = patches[2:4, 6:8].reshape(256)  # the token at row 1, column 3 of the 4 x 4 grid
    torch.testing.assert_close(model.extract_feature(pixels)[0, 1 * 4 + 3], model.mlp1(square))


@torch.no_grad()
def test_select_layer_takes_an_earlier_layer(chat_model):
    model, pixels = chat_model(select_layer=-2), torch.randn(1, 3, 112, 112)
    last = chat_model().extract_feature(pixels)
    assert not torch.allclose(model.extract_feature(pixels), last)
    model.vision_model.encoder.layers = model.vision_model.encoder.layers[:1]
    model.config.select_layer = -1
    first_only = model.extract_feature(pixels)
    torch.testing.assert_close(chat_model(select_layer=-2).extract_feature(pixels), first_only)


@torch.no_grad()
def test_image_tokens_are_replaced_in_order(chat_model):
    model, pixels = chat_model(), torch.randn(2, 3, 112, 112)
    features = model.extract_feature(pixels)
    ids = torch.tensor([[7, *[5] * 16, 8], [*[5] * 16, 9, 10]])
    embedded = model.embed(ids, pixels)
    torch.testing.assert_close(embedded[0, 1:17], features[0])
    torch.testing.assert_close(embedded[1, :16], features[1])
    table = model.get_input_embeddings().weight
    torch.testing.assert_close(embedded[1, 16:], table[[9, 10]])


@torch.no_grad()
def test_a_tile_that_only_fills_the_batch_is_left_out(chat_model):
    model, pixels = chat_model(), torch.randn(2, 3, 112, 112)
    ids = torch.tensor([[*[5] * 16, 8]])
    embedded = model.embed(ids, pixels, image_flags=torch.tensor([[0], [1]]))
    torch.testing.assert_close(embedded, model.embed(ids, pixels[1:]))


def test_image_tokens_that_do_not_match_the_tiles_are_refused(chat_model):
    model = chat_model()
    with pytest.raises(ValueError, match='hold 15 image tokens, but 1 tiles give 16'):
        model.embed(torch.tensor([[5] * 15]), torch.randn(1, 3, 112, 112))
    model.img_context_token_id = None
    with pytest.raises(ValueError, match='img_context_token_id is None; set it'):
        model.embed(torch.tensor([[5] * 16]), torch.randn(1, 3, 112, 112))


@pytest.mark.parametrize('llm', LLMS)
def test_training_reaches_every_weight_and_lowers_the_loss(chat_model, llm):
    model = chat_model(llm).train()
    torch.manual_seed(1)
    pixels = torch.randn(2, 3, 112, 112)
    ids = torch.tensor([[1, *[5] * 16, 7, 20], [1, *[5] * 16, 7, 30]])
    labels = ids.clone()
    labels[:, :-1] = -100
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(8):
        loss = model(pixels, ids, labels=labels).loss
        loss.backward()
        missing = [name for name, p in model.named_parameters() if p.grad is None]
        assert missing == []
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    assert losses[-1] < 0.5 * losses[0]


def greedy(model, ids, pixels, steps):
    """Greedy ids by whole forwards, without a cache."""
    embedded = model.embed(ids, pixels)
    new = []
    for _ in range(steps):
        logits = model.language_model(inputs_embeds=embedded, use_cache=False).logits
        new.append(int(logits[0, -1].argmax()))
        token = model.get_input_embeddings()(torch.tensor([[new[-1]]]))
        embedded = torch.cat([embedded, token], dim=1)
    return new


@pytest.mark.parametrize('llm', LLMS)
@torch.no_grad()
def test_generate_with_a_cache_equals_whole_forwards(chat_model, llm):
    model, pixels = chat_model(llm), torch.randn(1, 3, 112, 112)
    ids = torch.tensor([[7, *[5] * 16, 8, 9]])
    expected = greedy(model, ids, pixels, 8)
    assert len(set(expected)) > 1
    found = model.generate(ids, pixels, max_new_tokens=8, do_sample=False, eos_token_id=-1,
                           pad_token_id=0)
    assert found[0].tolist() == expected


@torch.no_grad()
def test_generate_answers_text_without_an_image(chat_model):
    model = chat_model()
    ids = torch.tensor([[7, 8, 9]])
    found = model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=-1, pad_token_id=0)
    assert found[0].tolist() == greedy(model, ids, None, 3)


@torch.no_grad()
def test_the_image_matters(chat_model):
    model = chat_model()
    ids = torch.tensor([[7, *[5] * 16, 8, 9]])
    logits = [model(torch.randn(1, 3, 112, 112), ids).logits[0, -1] for _ in range(2)]
    assert (logits[0] - logits[1]).abs().max() > 1e-3


@pytest.mark.parametrize('llm', LLMS)
def test_a_tied_head_stays_tied(chat_model, llm, tmp_path):
    model = chat_model(llm, llm_fields=dict(tie_word_embeddings=True))
    llm_part = model.language_model
    assert llm_part.get_output_embeddings().weight is llm_part.get_input_embeddings().weight
    model.tie_weights()
    assert llm_part.get_output_embeddings().weight is llm_part.get_input_embeddings().weight
