"""`pipeline` lets the engines cache prefixes also of models that see images."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.api:pipeline',
       group='speed',
       upstream={'dab4f02111efd4c3': '0.6.4'},
       why='In 0.6.4 it switches prefix caching off for all models that see images, with a '
       'warning; the server leaves it on.',
       remove_when='pipeline leaves enable_prefix_caching as it is')
def keep_prefix_caching(original):
    from lmdeploy_ext.pytorch.prefix.pipeline import without_refusal
    unrefused = without_refusal(original)

    def pipeline(model_path, backend_config=None, *args, **kwargs):
        from lmdeploy.pytorch.paging.block_trie import BlockTrie

        # The PyTorch engine's stock trie (block_trie_match is off) answers about the wrong image,
        # and upstream may turn a TurbomindEngineConfig into that engine's. TurboMind itself
        # matches no prompt with embeddings.
        keep = getattr(BlockTrie.match, 'tells_images_apart', False)
        build = unrefused if keep else original
        return build(model_path, backend_config, *args, **kwargs)

    return pipeline
