"""Paths and URLs in a prompt are read by the worker threads, not by the caller's."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.templates:VLChatTemplateWrapper.prompt_to_messages',
       group='speed',
       upstream={'e185cce30ee7a36a': '0.6.0 to 0.6.4'},
       why='It loads the images of all prompts one after another before the first is answered, '
       'and takes neither encoded bytes nor arrays.',
       remove_when='vl_engine_image_loader is removed')
def leave_images_unread(original):
    from lmdeploy_ext.vl.messages import question_about

    def prompt_to_messages(self, prompt):
        if isinstance(prompt, str) or getattr(self, 'image_loader', None) is None:
            return original(self, prompt)
        return question_about(*prompt)

    return prompt_to_messages
