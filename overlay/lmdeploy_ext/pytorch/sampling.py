"""Random sampling that depends on the request's seed and the token's index only."""
from typing import Optional

import numpy as np
import torch
from lmdeploy.pytorch.backends.multinomial_sampling import (MultinomialSamplingBuilder,
                                                            MultinomialSamplingImpl)


def uniform(seed: int, offset: int) -> float:
    """A number in [0, 1) that is a function of its arguments.

    A counter-based generator (Philox, Salmon et al. 2011, https://doi.org/10.1145/2063384.2063405)
    needs no state that would have to survive between the steps of a request.
    """
    return np.random.Generator(np.random.Philox(key=seed, counter=offset)).random()


class SeededSampling(MultinomialSamplingImpl):
    """Inverts the distribution function at one uniform number for each sequence.

    The same seed gives the same tokens, whatever else is in the batch.
    """

    def forward(self,
                scores: torch.Tensor,
                seeds: torch.Tensor,
                offsets: torch.Tensor,
                indices: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Draw one token a sequence.

        Args:
            scores: [sequences, candidates] probabilities.
            seeds, offsets: [sequences] int64, the request's seed and the token's index.
            indices: [sequences, candidates] token ids; default: 0, 1, 2, …

        Returns:
            [sequences] int64 token ids.
        """
        numbers = [uniform(*pair) for pair in zip(seeds.tolist(), offsets.tolist())]
        cumulative = scores.double().cumsum(-1)
        total = cumulative[:, -1:]
        # below the total also where the product is rounded up: never a candidate without weight
        point = torch.minimum(cumulative.new_tensor(numbers)[:, None] * total,
                              torch.nextafter(total, torch.zeros_like(total)))
        chosen = torch.searchsorted(cumulative, point, right=True)
        return (chosen if indices is None else indices.gather(1, chosen)).flatten()


class SeededSamplingBuilder(MultinomialSamplingBuilder):
    """Builds the sampler."""

    @staticmethod
    def build() -> SeededSampling:
        """The sampler."""
        return SeededSampling()
