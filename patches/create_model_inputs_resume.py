"""The features of an image that is known in part go where the rest of it is computed."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.pytorch.engine.engine:Engine.create_model_inputs',
       group='correctness',
       upstream={
           '961861be1ce27359': '0.6.0',
           'b5ee979b3a8776dc': '0.6.1',
           'd67b914744f7af41': '0.6.2 to 0.6.4',
       },
       guards={
           'lmdeploy.pytorch.model_inputs:VisionModelInputs.get_inputs':
           {'dc322fe99c678b9d': '0.6.0 to 0.6.4'},
       },
       why='The start of an image that is known in part lies before the first token to compute; '
       'as a negative index it counts from the end, and no features are used at all.',
       remove_when='history_embeddings_get_step is removed')
def place_known_images(original):
    from lmdeploy_ext.pytorch.prefix.positions import place_images

    def create_model_inputs(self, messages, *args, **kwargs):
        inputs = original(self, messages, *args, **kwargs)
        place_images(self, messages, inputs)
        return inputs

    return create_model_inputs
