"""Code that several tasks share: run folders, labels, images, gold alignments, chat templates, decoding requests."""
