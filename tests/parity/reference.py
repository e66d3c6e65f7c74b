"""The plain float32 reference: transformers' greedy search, one prompt at a time, no engine."""
from typing import List, Optional

import torch

from lmdeploy_ext.models.internvl import InternVLChatModel


class Reference:
    """An InternVL checkpoint in transformers."""

    def __init__(self, folder: str):
        self.model = InternVLChatModel.from_pretrained(folder, torch_dtype=torch.float32).eval()

    def ids(self, prompt: List[int], tokens: int,
            pixel_values: Optional[torch.Tensor] = None) -> List[int]:
        """The next `tokens` ids.

        Args:
            prompt: token ids, with `model.img_context_token_id` where image features belong.
            tokens: how many; the end token is never chosen, as with LMDeploy's `ignore_eos`.
            pixel_values: [tiles, 3, side, side], normalised.
        """
        return self.model.generate(torch.tensor([prompt]),
                                   pixel_values,
                                   max_new_tokens=tokens,
                                   min_new_tokens=tokens,
                                   do_sample=False,
                                   eos_token_id=None,
                                   suppress_tokens=[self.model.config.llm_config.eos_token_id],
                                   pad_token_id=0)[0].tolist()

    @torch.no_grad()
    def logprobs(self, prompt: List[int], answer: List[int]) -> torch.Tensor:
        """Log-probabilities of all tokens at each position of an answer: [tokens, vocabulary]."""
        logits = self.model(input_ids=torch.tensor([prompt + answer])).logits[0]
        return logits[len(prompt) - 1:-1].log_softmax(-1)
