"""The chat template of an InternVL checkpoint, from its configuration."""
import json
from pathlib import Path
from typing import Mapping, Optional, Tuple

# `template` of the released configurations -> LMDeploy's names, InternVL2's first, then those of
# older InternVL models, whose configurations say the same
TEMPLATES = {
    'Hermes-2': ('internvl2-internlm2', 'internvl-zh-hermes2'),
    'internlm2-chat': ('internvl2-internlm2', 'internvl-internlm2'),
    'internvl2_5': ('internvl2_5', ),
    'phi3-chat': ('internvl2-phi3', 'internvl-phi3'),
}


def choose_template(model_path: str, templates: Mapping[str, type]) -> Optional[str]:
    """The name of the chat template that an InternVL checkpoint was trained with.

    The path still decides between InternVL2 and older models.

    Args:
        model_path: folder of a checkpoint, or any other name of a model.
        templates: LMDeploy's chat templates by name.

    Returns:
        a name, or None where upstream has to choose: no InternVL checkpoint, or a template that
        this release of LMDeploy does not have.
    """
    names = [name for name in _names_of(Path(model_path)) if name in templates]
    return next((name for name in names if templates[name].match(model_path) == name),
                names[0] if names else None)


def _names_of(folder: Path) -> Tuple[str, ...]:
    """Names of the templates that a checkpoint may mean."""
    file = folder / 'config.json'
    if not file.is_file():
        return ()
    config = json.loads(file.read_text(encoding='utf-8'))
    if config.get('model_type') != 'internvl_chat':
        return ()
    return TEMPLATES.get(config.get('template'), ())
