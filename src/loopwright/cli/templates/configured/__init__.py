"""The skeleton of a project for the configured door; this file stays here."""
