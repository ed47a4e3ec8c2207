"""The skeleton of a project for the native door; this file stays here."""
