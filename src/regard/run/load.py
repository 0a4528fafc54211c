"""Load a run folder, a Hugging Face folder, or a name on the Hugging Face hub."""

from pathlib import Path

from regard.errors import UserError
from regard.hardware import choose_device
from regard.interop.convert import is_huggingface_folder
from regard.run.huggingface import HUB_NAME, download, load_huggingface
from regard.tasks import load_run_folder
from regard.tasks.base import Run


def load(path: str | Path, *, device: str = "auto", allow_pickle: bool = False) -> Run:
    """Load a run folder, a Hugging Face folder, or the name of one on the hub.

    The class of the result, and so its verbs, depends on the task: `TranslateRun.translate`, `LanguageRun.generate`,
    `MaskedRun.fill`, `ClassifyRun.classify`, `TagRun.tag`, `AnswerRun.answer`, `CaptionRun.caption`, `ContrastiveRun.match`,
    `TextToImageRun.draw`, and `embed` and `explain` for most. `dir(run)` lists them.
    """
    folder = Path(path)
    if not folder.parent.exists() and HUB_NAME.fullmatch(str(path)):
        folder = download(str(path), allow_pickle=allow_pickle)
    if is_huggingface_folder(folder):
        return load_huggingface(folder, device=device, allow_pickle=allow_pickle)
    if not (folder / "recipe.toml").is_file():
        what = "is not a run folder (it has no recipe.toml)" if folder.exists() else "does not exist"
        raise UserError(f"{folder} {what}; make one with: regard train RECIPE --out {folder}")
    if not (folder / "model.safetensors").is_file():
        raise UserError(f"{folder} has no model yet; finish its training with: regard train {folder} --resume")
    return load_run_folder(folder, choose_device(device))
