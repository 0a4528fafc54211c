"""The core: score, mask, softmax, mix."""
