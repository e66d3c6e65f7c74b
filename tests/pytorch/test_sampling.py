"""Sampling: the right frequencies, and a choice that depends on seed and offset only."""
import torch

from lmdeploy_ext.pytorch.sampling import SeededSamplingBuilder, uniform

sample = SeededSamplingBuilder.build().forward


def column(*values):
    return torch.tensor(values, dtype=torch.int64)


def test_frequencies_are_the_probabilities():
    number = 4000
    scores = torch.tensor([[0.5, 0.3, 0.15, 0.05, 0.0]]).expand(number, -1)
    chosen = sample(scores, torch.arange(number), torch.zeros(number, dtype=torch.int64))
    share = torch.bincount(chosen, minlength=5) / number
    # four standard errors of the largest, 4 * sqrt(0.25 / 4000)
    torch.testing.assert_close(share, scores[0], atol=0.032, rtol=0)
    assert share[4] == 0


def test_offsets_of_one_seed_are_independent_numbers():
    numbers = torch.tensor([uniform(7, offset) for offset in range(2000)])
    assert 0 <= numbers.min() and numbers.max() < 1
    assert abs(numbers.mean() - 0.5) < 0.03
    assert abs(torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1]) < 0.09


def test_a_row_does_not_depend_on_the_others():
    scores = torch.rand(3, 10).softmax(-1)
    seeds, offsets = column(1, 2, 1), column(0, 5, 9)
    together = sample(scores, seeds, offsets)
    for row in range(3):
        alone = sample(scores[row:row + 1], seeds[row:row + 1], offsets[row:row + 1])
        assert alone == together[row]


def test_candidates_without_weight_do_not_matter():
    scores = torch.tensor([[0.6, 0.4]])
    wide = torch.cat([scores, torch.zeros(1, 500)], 1)
    for offset in range(50):
        pair = column(3), column(offset)
        assert sample(scores, *pair) == sample(wide, *pair)


def test_indices_translate_the_choice():
    scores, indices = torch.tensor([[0.0, 1.0], [1.0, 0.0]]), column(7, 8, 9, 10).view(2, 2)
    assert sample(scores, column(1, 2), column(0, 0), indices).tolist() == [8, 9]


def test_a_number_next_to_one_chooses_a_candidate_with_weight(monkeypatch):
    monkeypatch.setattr('lmdeploy_ext.pytorch.sampling.uniform', lambda seed, offset: 1 - 2**-53)
    scores = torch.tensor([[0.1, 0.7, 0.2, 0.0, 0.0]])
    assert sample(scores, column(0), column(0)) == 2
