"""HTTP server for model folders: LibreTranslate's API for translation, and heed's own routes for everything else."""
