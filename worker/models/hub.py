"""Models from the Hugging Face hub: data files only, never code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from contract.errors import ModelError
from worker.models.catalog import CATALOG
from worker.models.progress import Progress

# Weights that cannot run code when loaded, and what a tokenizer and a chat template need.
_WANTED = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model"]
# Subfolders hold other formats of the same weights; "consolidated" is Mistral's second copy.
_UNWANTED = ["*/*", "consolidated*"]


def download_from_hub(name: str, out: Path, *, progress: Progress) -> None:
    """Download the model `name` into the folder `out`. Raises ModelError saying what to do.

    Token, mirror and certificates are those of the user's `huggingface_hub` (HF_TOKEN,
    HF_ENDPOINT, ...).
    """
    import huggingface_hub as hub
    from huggingface_hub import errors, utils

    bars: Any = utils  # it exports these without saying so
    progress("download", 0, None)
    quiet_before = bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        hub.snapshot_download(
            name, local_dir=out, allow_patterns=_WANTED, ignore_patterns=_UNWANTED
        )
    except errors.GatedRepoError as error:
        raise ModelError(
            f"the hub gives model {name} only to those who accepted its terms",
            given=name,
            remedy="Accept them on the model's page, then set HF_TOKEN and try again.",
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ModelError(
            f"the hub has no model {name}, or it is private",
            given=name,
            expected=f"a hub id such as org/name, or one of {', '.join(CATALOG)}",
            remedy="Check the spelling; for a private model set HF_TOKEN.",
        ) from error
    finally:
        if not quiet_before:
            bars.enable_progress_bars()
