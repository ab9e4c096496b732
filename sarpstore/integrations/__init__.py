"""What connects sarpstore with model runtimes. Each module is an optional extra and uses the public API alone.

`sarpstore.integrations.transformers` (extra `hf`) reuses chunks with models of Hugging Face transformers;
`sarpstore.integrations.prompts` builds prompts whose chunks are whole documents.
"""
