"""Evaluation: recall, precision and images per minute of variants of LMDeploy on one labelled set
of images.

`python -m lmdeploy_ext.eval run` predicts each variant in its own process and writes a run folder;
`score` and `report` work on the stored rows of such a folder, without a model and without torch.
"""
