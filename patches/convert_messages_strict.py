"""An image that the model would not see is an error."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.vl.templates:VLChatTemplateWrapper.convert_messages',
       group='correctness',
       upstream={'5f0da5ac9a06b5cf': '0.6.0 to 0.6.4'},
       why="An image in a message that is not the user's, or one more than the text has "
       '<IMAGE_TOKEN>, is dropped without a word and the rest answered; an image without a text '
       'is an UnboundLocalError, or goes with the text of the message before.',
       remove_when='a request with an image in the system message is refused or answered with it')
def refuse_unseen_images(original):
    from lmdeploy_ext.vl.messages import check_images_are_shown

    def convert_messages(self, messages, sequence_start=True):
        check_images_are_shown(messages)
        return original(self, messages, sequence_start)

    return convert_messages
