"""Import from and export to other toolkits: MarianMT, fairseq, SentencePiece, CTranslate2 and ONNX."""
