"""A sequence may go on inside an image whose first blocks are known."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.messages:HistoryEmbeddings.get_step',
       group='correctness',
       upstream={'685fbd595ff99c9d': '0.6.0 to 0.6.4'},
       why='A match that ends inside an image goes back to its start but keeps the shared blocks, '
       'and overwrites them while others read them: an answer differed from its token 28 on.',
       remove_when='block_trie_match is removed')
def step_inside_image(original):

    def get_step(self, step):
        whole = sum(image.end <= step for image in self.embeddings)
        return step, whole, len(self) - whole

    return get_step
