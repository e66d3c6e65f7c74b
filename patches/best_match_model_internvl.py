"""The chat template of an InternVL checkpoint is what its configuration says."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.model:best_match_model',
       group='correctness',
       upstream={'1f141b70c0182be4': '0.6.0 to 0.6.4'},
       why='The template is chosen by substrings of the path: InternVL2 in a folder "my-model" is '
       'refused, in "internvl2/4b" or "qwen2-finetuned" it gets the template of another model.',
       remove_when='best_match_model reads the field `template` of config.json')
def read_template_of_checkpoint(original):

    def best_match_model(query):
        from lmdeploy.model import MODELS

        from lmdeploy_ext.vl.chat_template import choose_template
        return choose_template(query, MODELS.module_dict) or original(query)

    return best_match_model
