"""Weights from the files people have: GGUF and safetensors, and the tokenizer that they carry."""
