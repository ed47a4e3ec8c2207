"""The skeleton of a project for the simple door; this file stays here."""
