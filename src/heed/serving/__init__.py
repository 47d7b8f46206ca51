"""HTTP to translations: the API that LibreTranslate's clients speak, and more of our own."""
