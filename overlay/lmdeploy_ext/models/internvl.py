"""InternVL2: InternViT, pixel shuffle, a projector and a language model.

Module names are those of the published checkpoints (OpenGVLab/InternVL2-1B to 8B); the method is
described in https://arxiv.org/abs/2404.16821. LMDeploy builds `vision_model` and `mlp1` from this
class and calls `extract_feature`; `forward` trains, and both are the fp32 reference in tests.
"""
from typing import Optional

import torch
from torch import nn
from transformers import LlamaForCausalLM, Qwen2ForCausalLM
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.modeling_utils import PreTrainedModel

from .configuration import InternVLChatConfig
from .internlm2 import InternLM2ForCausalLM
from .vision import InternVisionModel

LLM_MODELS = {
    'InternLM2ForCausalLM': InternLM2ForCausalLM,
    'LlamaForCausalLM': LlamaForCausalLM,
    'Qwen2ForCausalLM': Qwen2ForCausalLM,
}


def pixel_shuffle(x: torch.Tensor, scale: float, version: str = 'v2') -> torch.Tensor:
    """Trade patches for channels: each square of 1 / scale x 1 / scale patches becomes one token.

    Args:
        x: [tiles, height, width, channels].
        scale: 0.5 halves both axes.
        version: `v1` leaves height and width exchanged in the result.

    Returns:
        [tiles, height * scale, width * scale, channels / scale**2]; the channels of a token are
        those of its patches, row by row.
    """
    side = round(1 / scale)
    tiles, height, width, channels = x.shape
    x = x.reshape(tiles, height // side, side, width // side, side, channels)
    # [tiles, height / side, width / side, row in square, column in square, channels]
    x = x.permute(0, 1, 3, 2, 4, 5).flatten(3)
    return x if version == 'v2' else x.transpose(1, 2)


class InternVLChatModel(PreTrainedModel):
    """InternVL2 with an InternLM2, Llama or Qwen2 language model.

    Attributes:
        img_context_token_id: id of the token that stands for one row of image features
            (`<IMG_CONTEXT>`). Set it from the tokenizer before images are given to `forward` or
            `generate`; a configuration does not hold it.
        num_image_token: rows of features, so also tokens, of one tile.
    """
    config_class = InternVLChatConfig
    main_input_name = 'pixel_values'
    _no_split_modules = ['InternVisionEncoderLayer', 'InternLM2DecoderLayer', 'LlamaDecoderLayer',
                         'Qwen2DecoderLayer']

    def __init__(self, config: InternVLChatConfig):
        super().__init__(config)
        self.img_context_token_id: Optional[int] = None
        self.num_image_token = config.num_image_token
        self.vision_model = InternVisionModel(config.vision_config)
        self.language_model = LLM_MODELS[config.llm_config.architectures[0]](config.llm_config)
        shuffled = int(config.vision_config.hidden_size / config.downsample_ratio**2)
        hidden = config.llm_config.hidden_size
        self.mlp1 = nn.Sequential(nn.LayerNorm(shuffled), nn.Linear(shuffled, hidden), nn.GELU(),
                                  nn.Linear(hidden, hidden))
        self.post_init()

    def _init_weights(self, module: nn.Module):
        """The projector; the vision tower and the language model initialise themselves."""
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)

    def get_input_embeddings(self) -> nn.Module:
        """The language model's token embedding."""
        return self.language_model.get_input_embeddings()

    def tie_weights(self):
        """Tie the head to the embedding where the language model's own configuration says so."""
        self.language_model.tie_weights()

    def extract_feature(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Tiles to rows that the language model reads in place of token embeddings.

        Args:
            pixel_values: [tiles, 3, height, width], normalised; any floating dtype.

        Returns:
            [tiles, tokens, llm hidden] in the weights' dtype.
        """
        select_layer = self.config.select_layer
        encoded = self.vision_model(pixel_values.to(self.mlp1[1].weight.dtype),
                                    output_hidden_states=select_layer != -1,
                                    return_dict=True)
        if select_layer == -1:
            patches = encoded.last_hidden_state[:, 1:]
        else:
            patches = encoded.hidden_states[select_layer][:, 1:]
        height, width = (size // self.config.vision_config.patch_size
                         for size in pixel_values.shape[-2:])
        grid = pixel_shuffle(patches.unflatten(1, (height, width)), self.config.downsample_ratio,
                             self.config.ps_version)
        return self.mlp1(grid.flatten(1, 2))

    def embed(self,
              input_ids: torch.Tensor,
              pixel_values: Optional[torch.Tensor] = None,
              image_flags: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Token embeddings with image features in the place of image tokens.

        Args:
            input_ids: [batch, length]; `img_context_token_id` where a feature row goes.
            pixel_values: [tiles, 3, height, width], the tiles of the whole batch in order.
            image_flags: [tiles] or [tiles, 1]; 0 marks a tile that only fills the batch.

        Returns:
            [batch, length, llm hidden].

        Raises:
            ValueError: image tokens that are not as many as feature rows, or no id for them.
        """
        embeddings = self.get_input_embeddings()(input_ids)
        if pixel_values is None:
            return embeddings
        if self.img_context_token_id is None:
            raise ValueError('pixel_values are given but img_context_token_id is None; set it to '
                             "the tokenizer's id of <IMG_CONTEXT>")
        features = self.extract_feature(pixel_values)
        if image_flags is not None:
            features = features[image_flags.flatten() == 1]
        is_image = input_ids == self.img_context_token_id  # [batch, length]
        found, expected = int(is_image.sum()), features.shape[0] * features.shape[1]
        if found != expected:
            raise ValueError(f'input_ids hold {found} image tokens, but {features.shape[0]} tiles '
                             f'give {expected}; put {features.shape[1]} for each tile')
        return embeddings.masked_scatter(is_image.unsqueeze(-1), features.to(embeddings.dtype))

    def forward(self,
                pixel_values: Optional[torch.Tensor] = None,
                input_ids: Optional[torch.Tensor] = None,
                attention_mask: Optional[torch.Tensor] = None,
                labels: Optional[torch.Tensor] = None,
                image_flags: Optional[torch.Tensor] = None,
                **kwargs) -> CausalLMOutputWithPast:
        """Logits, and the next-token loss where labels are given.

        Args:
            pixel_values, input_ids, image_flags: as `embed` takes them.
            attention_mask: [batch, length], 0 for padding.
            labels: [batch, length], -100 where no loss is wanted.
            **kwargs: passed to the language model.
        """
        return self.language_model(inputs_embeds=self.embed(input_ids, pixel_values, image_flags),
                                   attention_mask=attention_mask,
                                   labels=labels,
                                   **kwargs)

    @torch.no_grad()
    def generate(self,
                 input_ids: torch.Tensor,
                 pixel_values: Optional[torch.Tensor] = None,
                 attention_mask: Optional[torch.Tensor] = None,
                 **kwargs) -> torch.Tensor:
        """Answer a prompt with the language model's `generate`, which gets `kwargs`.

        Returns:
            the new ids only, [batch, new tokens].
        """
        if attention_mask is None:
            attention_mask = torch.ones_like(input_ids)
        return self.language_model.generate(inputs_embeds=self.embed(input_ids, pixel_values),
                                            attention_mask=attention_mask,
                                            **kwargs)
