"""Read and write Hugging Face folders, CTranslate2 and ONNX: a table per family, a proof for every conversion."""
