"""lmdeploy-ext: an overlay on LMDeploy 0.6 for vision-language models.

Importing this package is cheap and changes nothing: no torch, no LMDeploy.
`import lmdeploy_ext.autopatch` arms the patches.
"""
__version__ = '0.1.0'
