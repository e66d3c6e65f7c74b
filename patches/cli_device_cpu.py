"""`--device cpu` on LMDeploy's command line."""
from lmdeploy_ext.patching import patch


@patch(target='lmdeploy.cli.utils:ArgumentHelper.device',
       group='cpu',
       upstream={
           '41753997f2c4eb86': '0.6.0 to 0.6.1',
           '9377bd420151ab4a': '0.6.2 to 0.6.4',
       },
       why="The option's choices have no cpu.",
       remove_when='`lmdeploy serve api_server --help` lists cpu for --device')
def offer_cpu(original):

    def device(*args, **kwargs):
        action = original(*args, **kwargs)
        action.choices = [*action.choices, 'cpu']
        return action

    return device
