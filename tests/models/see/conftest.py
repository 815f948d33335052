"""A model in a GGUF file, made on the spot."""

from pathlib import Path

import pytest


@pytest.fixture
def tiny_gguf() -> Path:
    """A Llama of one layer in float32, without a tokenizer."""
    gguf = pytest.importorskip("gguf")
    import numpy as np

    path = Path("tiny.gguf")
    rng = np.random.default_rng(0)
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(8)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(100)
    shapes = {
        "token_embd": (100, 32),
        "output": (100, 32),
        "output_norm": (32,),
        "blk.0.attn_norm": (32,),
        "blk.0.ffn_norm": (32,),
        "blk.0.attn_q": (32, 32),
        "blk.0.attn_k": (16, 32),
        "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32),
        "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32),
        "blk.0.ffn_down": (32, 64),
    }
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
