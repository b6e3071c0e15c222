"""Model specs from files that others made: GGUF, safetensors folders, Hugging Face config.json."""
