"""HTTP to translations: the API that LibreTranslate's clients use, and routes of our own."""
