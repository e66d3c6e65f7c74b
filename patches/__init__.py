"""The catalogue: one file for each patch or seam; the file's name is its name.

Importing a file here is cheap: it needs the standard library and `lmdeploy_ext.patching` only.
What a replacement needs is imported inside the decorated function.
"""
